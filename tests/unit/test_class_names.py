"""Names of the package: no class has another's, and each long function has its reason."""

from __future__ import annotations

import ast
from collections import defaultdict

from lab.code_size import PACKAGE, REASONS, long_functions

# PyTorch has these twice: `torch.cuda.amp` derives them from those of `torch.amp`.
AS_IN_PYTORCH = {"autocast", "GradScaler"}


def test_no_name_is_shared_by_two_classes() -> None:
    files: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                files[node.name].append(path.relative_to(PACKAGE).as_posix())
    shared = {name: found for name, found in files.items() if len(found) > 1}
    assert shared.keys() == AS_IN_PYTORCH, shared


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
