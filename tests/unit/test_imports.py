"""The import ranks of the design, parsed from the source, and what `import tinygrad_cuda` loads."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tinygrad_cuda"

# Longest prefix wins. A module imports lower ranks; within a rank only itself, except as written
# in SIBLINGS.
RANKS = {
    "core": 0,
    "graph.node": 1,
    "graph.saved_products": 0,
    "graph.saved": 1,
    "graph.program": 2,
    "graph.versions": 2,
    "graph.ops": 2,
    "graph.gradient": 3,
    "graph.batching": 3,
    "graph.compare": 3,
    "graph.rewrite": 3,
    "graph.draw": 5,
    "graph.layout": 4,
    "lowering": 6,
    "backend": 7,
    "backend.cpu": 8,
    "backend.launch": 9,
    "backend.emu": 10,
    "backend.cuda": 10,
    "engine": 11,
    "replay": 12,
    "tensors": 13,
    "amp": 14,
    "autograd": 14,
    "backends": 14,
    "distributed": 14,
    "multiprocessing": 14,
    "version": 14,
    "_C": 14,
    "_utils": 14,
    "overrides": 14,
    "serialization": 17,
    "cuda": 14,
    "distributions": 14,
    "linalg": 14,
    "random": 14,
    "fft": 14,
    "special": 14,
    "kernels": 15,  # with gradients that are checked
    "nn": 15,
    "optim": 15,
    "data": 15,
    "accelerator": 15,
    "array_api": 15,
    "capture": 16,
    "compiler": 16,
    "einops_support": 16,
    "futures": 16,
    "fx": 16,
    "jit": 16,
    "onnx": 16,
    "testing": 16,
    "types": 16,
    "func": 16,
    "utils": 16,
    "_dynamo": 17,
    "_vmap_internals": 16,
    "hub": 17,
    "profiler": 17,
    "autograd.profiler": 17,
    "utils.model_zoo": 18,
    "__main__": 17,
    "commands": 18,
    "": 17,
}
# (importer, imported) of one rank.
SIBLINGS = {
    ("__main__", ""),
    ("cuda", "amp"),  # the older name
    ("optim", "nn"),  # averages of a Module's weights
    ("compiler", "capture"),
    ("utils", "capture"),  # the training loop's compiled steps
}
# The op table is one table in several files: the gradient of a sum is an expand, and the reverse.
MUTUAL = {"graph.ops"}
# For a type checker alone: functions name the class that binds them.
TYPED = {("tensors", "tensors.tensor")}
# Imported on first use, so that `import tinygrad_cuda` loads none of them.
# Module -> what it may import inside functions.
LATE = {
    "backend.cuda.compiler": {"cuda"},
    "backend.cuda.cupti": {"cupti"},
    "backend.cuda.libraries.cublas": {"nvmath"},
    "backend.cuda.libraries.cudnn": {"cuda", "cudnn"},
    "backend.cuda.libraries.cufft": {"nvmath"},
    "backend.cuda.driver": {"cuda"},
    "cuda.nvtx": {"nvtx"},
    "data.transforms.colour": {"scipy"},
    "data.transforms.warping": {"scipy"},
    "distributions.gamma": {"scipy"},
    "graph.draw": {"networkx", "matplotlib"},
    "graph.ops.elementwise": {"scipy"},
    "graph.ops.numeric": {"scipy"},
    "lowering.schedule.kernel_dag": {"networkx"},
    "onnx.library": {"onnx"},
    "tensors.linalg.decomposing": {"scipy"},
    "tensors.linalg.factorizing": {"scipy"},
    "utils.compat": {"torch"},
    "utils.drawing": {"networkx"},
    "utils.profiling.pictures": {"matplotlib"},
    "utils.safetensors_file": {"safetensors"},
    "utils.tensorboard": {"tensorboardX"},
    "utils.training_logs": {"tensorboardX"},
}
LAZY = {
    "cuda", "cudnn", "cupti", "networkx", "matplotlib", "nvmath", "nvtx", "onnx", "onnxruntime",
    "safetensors", "scipy", "tensorboardX", "torch",
}  # fmt: skip


def modules() -> dict[str, Path]:
    """Every module of the package by its name below tinygrad_cuda."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def unit(module: str) -> str:
    """The part of the package that a module belongs to: the longest prefix that has a rank."""
    parts = module.split(".") if module else []
    for length in range(len(parts), 0, -1):
        if (prefix := ".".join(parts[:length])) in RANKS:
            return prefix
    if parts and parts != ["graph"]:
        pytest.fail(f"tinygrad_cuda.{module} has no rank")
    return ""


def imports(path: Path, typed: bool = False) -> Iterator[tuple[str, int, bool]]:
    """Each imported module, its line, and whether it stands in a function.

    Args:
        path: of the importing module.
        typed: those for a type checker too.
    """

    def walk(node: ast.AST, inside: bool) -> Iterator[tuple[str, int, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for branch in [*(child.body if typed else []), *child.orelse]:
                    yield from walk(ast.Module([branch], []), inside)
            elif isinstance(child, ast.Import):
                yield from ((alias.name, child.lineno, inside) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}:{child.lineno}: relative import"
                assert child.module is not None
                for alias in child.names:
                    yield f"{child.module}.{alias.name}", child.lineno, inside
            else:
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from walk(child, inside or function)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), False)


def internal(name: str, known: dict[str, Path]) -> str | None:
    """The module of this package that an imported name lies in, or None for a foreign one."""
    parts = name.split(".")
    if parts[0] != "tinygrad_cuda":
        return None
    for length in range(len(parts) - 1, 0, -1):
        if (module := ".".join(parts[1 : 1 + length])) in known:
            return module
    return ""


@pytest.mark.smoke("core")
def test_ranks() -> None:
    """No module imports a higher rank, nor a sibling that is not written down."""
    known = modules()
    wrong = []
    for module, path in known.items():
        here = unit(module)
        for name, line, _ in imports(path):
            target = internal(name, known)
            if target is None:
                continue
            there = unit(target)
            if here == there or (here, there) in SIBLINGS:
                continue
            # graph/__init__.py gathers nothing; an import of the bare package is the package's own.
            if target == "graph" and here.startswith("graph"):
                continue
            if RANKS[there] >= RANKS[here]:
                wrong.append(
                    f"{path.relative_to(ROOT)}:{line}: {here or 'tinygrad_cuda'}, rank "
                    f"{RANKS[here]}, imports {name}, rank {RANKS[there]}"
                )
    assert not wrong, "\n".join(wrong)


def test_a_schedule_is_made_without_a_text() -> None:
    """Rules of fusion ask shapes and the target, never what a skeleton would generate."""
    known = modules()
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for module, path in known.items()
        if module.startswith("lowering.schedule")
        for name, line, _ in imports(path, typed=True)
        if (internal(name, known) or "").startswith(("lowering.skeletons", "lowering.codegen"))
    ]
    assert not wrong, "\n".join(wrong)


def test_no_cycles() -> None:
    """Within one room, such as backend or tensors, modules import each other one way only."""
    known = modules()

    def edges_of(module: str, path: Path) -> set[str]:
        targets = {internal(name, known) for name, _, _ in imports(path)}
        typed = {internal(name, known) for name, _, _ in imports(path, typed=True)}
        targets |= {target for target in typed if (unit(module), target) not in TYPED}
        return {
            target
            for target in targets
            if target is not None
            and target not in (module, "")
            and not (unit(module) == unit(target) and unit(module) in MUTUAL)
            # A package's own __init__ is loaded anyway when one of its modules is.
            and not module.startswith(target + ".")
        }

    edges = {module: edges_of(module, path) for module, path in known.items()}
    finished: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, "import cycle: " + " -> ".join((*trail, module))
        if module not in finished:
            for target in sorted(edges[module]):
                visit(target, (*trail, module))
            finished.add(module)

    for module in edges:
        visit(module, ())


def test_no_package_hides_a_function() -> None:
    """`import tinygrad_cuda.x` must not turn the function `x` of the same name into a module."""
    import tinygrad_cuda as tc

    parts = {module.split(".")[0] for module in modules() if module}
    assert not [name for name in sorted(parts) if inspect.isroutine(getattr(tc, name, None))]


def test_nothing_is_imported_inside_functions() -> None:
    """Except the listed heavy packages, which are loaded on first use."""
    wrong = []
    for module, path in modules().items():
        for name, line, inside in imports(path):
            top = name.split(".")[0]
            if inside and top not in LATE.get(module, ()):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {name} inside a function")
            if not inside and top in LAZY:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {name} at the top of the module")
    assert not wrong, "\n".join(wrong)


def test_list_of_late_imports_is_not_stale() -> None:
    """Each entry of LATE is used by the module that it names."""
    known = modules()
    for module, allowed in LATE.items():
        assert module in known, f"{module} is gone: remove it from LATE"
        used = {name.split(".")[0] for name, _, inside in imports(known[module]) if inside}
        assert used == allowed, f"{module} imports {sorted(used)} late, listed {sorted(allowed)}"


def test_package_import_is_light() -> None:
    """`import tinygrad_cuda` loads no driver, no graph library, no plotting, no SciPy, no torch."""
    program = "import json, sys, tinygrad_cuda; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in json.loads(result.stdout)}
    assert not loaded & LAZY


def test_package_import_time_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The module list is the proof; the time over NumPy's is printed for the reader."""
    program = "import numpy, tinygrad_cuda"
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    line = re.search(r"\|\s+(\d+) \| tinygrad_cuda$", result.stderr, re.MULTILINE)
    assert line is not None
    milliseconds = int(line[1]) / 1000
    with capsys.disabled():
        print(f"\nimport tinygrad_cuda: {milliseconds:.0f} ms over NumPy")


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports them by their names alone; two of one name cannot be collected together."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)
