"""Names of the package: no class has another's, no constant two values.

And each long function has its reason.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict

from lab.code_size import PACKAGE, REASONS, long_functions

# PyTorch has these twice: `torch.cuda.amp` derives two from those of `torch.amp`, and a way to
# prune has the name of a layer. Its distributions and torchvision both have a `Transform`; before
# `torch.profiler` there was `torch.autograd.profiler.profile`.
AS_IN_PYTORCH = {"autocast", "GradScaler", "Identity", "Transform", "profile"}


def test_no_name_is_shared_by_two_classes() -> None:
    files: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                files[node.name].append(path.relative_to(PACKAGE).as_posix())
    shared = {name: found for name, found in files.items() if len(found) > 1}
    assert shared.keys() == AS_IN_PYTORCH, shared


def test_no_module_gives_a_name_two_meanings() -> None:
    """A second constant of one name silently replaces the first."""
    twice = []
    for path in sorted(PACKAGE.rglob("*.py")):
        names: Counter[str] = Counter()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names[node.name] += 1
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                parts = (part for target in targets for part in ast.walk(target))
                stored = (part for part in parts if isinstance(part, ast.Name))
                names.update(n.id for n in stored if isinstance(n.ctx, ast.Store) and n.id != "_")
        twice += [f"{path.name}: {name}" for name, count in names.items() if count > 1]
    assert not twice


def test_every_long_function_has_a_reason_and_no_other_has() -> None:
    entries = (line.split(maxsplit=1) for line in REASONS.read_text("utf-8").splitlines())
    reasons = {name: reason for name, reason in entries if name != "#"}
    found = {
        f"{path.stem}.{name}"
        for path in PACKAGE.rglob("*.py")
        for name in long_functions(path.read_text(encoding="utf-8"))
    }
    assert found == reasons.keys()
    assert all(len(reason.split()) > 2 for reason in reasons.values())
