"""Every error names op, expectation, finding, the user's own line and a way out.

The texts stand in tests/golden/errors.txt, to be read in diffs; `--update-golden` writes it anew.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from error_cases import CASES

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.core import errors
from tinygrad_cuda.engine.plan import cache

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "golden" / "errors.txt"
NEEDS_COMPILER = re.compile(r'device="emu"|emulation\.module')


def caught(
    function: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tc.TgcError:
    """The error that a case ends with."""
    given = {"tmp_path": tmp_path, "monkeypatch": monkeypatch}
    arguments = {name: given[name] for name in inspect.signature(function).parameters}
    try:
        with pytest.raises(tc.TgcError) as raised:
            function(**arguments)
    finally:
        cache.clear()  # a plan made with a broken kernel must not be found again
    return raised.value


def normal(error: tc.TgcError, tmp_path: Path) -> str:
    """The text without what changes from run to run."""
    text = f"{type(error).__name__}: {error}"
    text = text.replace(str(tmp_path), "TMP").replace("  # here", "")
    text = re.sub(r"error_cases\.py:\d+", "error_cases.py", text)
    return re.sub(r"_[0-9a-f]{10}\b", "_DIGEST", text)


def golden() -> dict[str, str]:
    """The recorded texts by case."""
    parts = re.split(r"^=== (\w+)\n", GOLDEN.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], (part.rstrip("\n") for part in parts[2::2])))


def write_golden(texts: dict[str, str]) -> None:
    GOLDEN.parent.mkdir(exist_ok=True)
    parts = [f"=== {name}\n{texts[name]}\n" for name in CASES if name in texts]
    GOLDEN.write_text("\n".join(parts), encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_text(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The text is the recorded one, and `at` is the line marked in the case."""
    function = CASES[name]
    source, first = inspect.getsourcelines(function)
    emulated = NEEDS_COMPILER.search("".join(source)) and name != "no_compiler"
    if emulated and not shutil.which("c++"):
        pytest.skip("no C++ compiler")
    error = caught(function, tmp_path, monkeypatch)
    monkeypatch.undo()
    here = [first + k for k, line in enumerate(source) if line.rstrip().endswith("# here")]
    assert error.site is not None
    assert (Path(error.site.filename).name, error.site.line) == ("error_cases.py", here[0])
    text = normal(error, tmp_path)
    for label in ("expect:", "actual:", "at:"):
        assert f"\n  {label:<8}" in text, f"no {label} in\n{text}"
    assert re.match(r"\w+: \[\w+\] \S", text)
    if request.config.getoption("--update-golden"):
        write_golden({**(golden() if GOLDEN.exists() else {}), name: text})
    expected = golden().get(name, "")
    difference = difflib.unified_diff(expected.splitlines(), text.splitlines(), lineterm="")
    assert text == expected, "\n".join(difference)


@pytest.mark.smoke("core")
def test_recorded_texts_are_those_of_the_cases() -> None:
    """Nothing in the file is stale, and there are as many as promised."""
    assert list(golden()) == list(CASES)
    assert len(CASES) >= 60


def test_most_errors_show_a_way_out() -> None:
    """A hint is left out only where the expectation says it all."""
    texts = golden().values()
    assert sum("\n  hint:" in text for text in texts) >= 0.55 * len(texts)


def test_every_error_of_the_package_says_what_it_expected_and_found() -> None:
    """No error is raised anywhere without both."""
    names = {
        name for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, tc.TgcError)
    }  # fmt: skip
    lacking = []
    for path in sorted((ROOT / "tinygrad_cuda").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") in names):
                continue
            given = {keyword.arg for keyword in node.keywords}
            if None not in given and not {"expect", "actual"} <= given:
                lacking.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not lacking, "\n".join(lacking)


# Lines ------------------------------------------------------------------------------------------


def test_line_of_a_late_error_is_that_of_its_own_op() -> None:
    """A bad index is found two plans later; the error names where it was used, not the look."""
    x = tc.zeros(4, 3, device="cpu")
    rows = tc.tensor([0, 9], device="cpu")
    other = x[rows] * 2
    with pytest.raises(tc.IndexError) as caught:
        print(other)
    assert "other = x[rows] * 2" in str(caught.value)


def test_standard_library_is_nobodys_line() -> None:
    """Functions called through map, sorted and functools are the user's; those modules are not."""
    import functools

    product = functools.reduce
    with pytest.raises(tc.ShapeError) as caught:
        product(lambda a, b: a @ b, [tc.ones(2, 3, device="cpu")] * 2)
    assert caught.value.site is not None
    assert "lambda a, b: a @ b" in str(caught.value)
    assert errors.is_internal(functools.__file__)
    assert errors.is_internal(errors.__file__)
    assert not errors.is_internal(pytest.__file__)
    assert not errors.is_internal("<stdin>")


def test_errors_are_also_pythons_own() -> None:
    """Code written for NumPy or PyTorch catches them under the names it knows."""
    pairs = [
        (tc.IndexError, IndexError), (tc.ShapeError, ValueError), (tc.DTypeError, TypeError),
        (tc.ArgumentError, ValueError), (tc.NonFiniteError, FloatingPointError),
        (tc.GradientError, RuntimeError), (tc.DeviceError, RuntimeError),
    ]  # fmt: skip
    for ours, python in pairs:
        assert issubclass(ours, python)
        assert issubclass(ours, tc.TgcError)
        assert ours.__module__ == "tinygrad_cuda"


# Modules ----------------------------------------------------------------------------------------


def test_an_error_names_the_module_it_comes_from() -> None:
    """By the names of attributes, from the outermost module called."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 8, device="cpu"), nn.ReLU())
            self.head = nn.Linear(7, 2, device="cpu")

        def forward(self, x: Any) -> Any:
            return self.head(self.body(x))

    net = Net()
    cases = [
        (lambda: net(tc.ones(3, 5, device="cpu")), "Net.body.0 (Linear)"),
        (lambda: net(tc.ones(3, 4, device="cpu")), "Net.head (Linear)"),
        (lambda: net.head(tc.ones(3, 4, device="cpu")), "Linear"),
    ]
    for program, module in cases:
        with pytest.raises(tc.ShapeError) as caught:
            program()
        assert f"\n  module: {module}\n" in str(caught.value) + "\n"


def test_detect_nan_names_the_module() -> None:
    class Root(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.sqrt()

    model = nn.Sequential(nn.Identity(), Root())
    with pytest.raises(tc.NonFiniteError) as caught, tc.detect_nan():
        model(tc.tensor([-1.0], device="cpu"))
    assert "\n  module: Sequential.1 (Root)\n" in str(caught.value)
    assert "return x.sqrt()" in str(caught.value)


def test_errors_travel_between_processes() -> None:
    with pytest.raises(tc.ShapeError) as caught:
        tc.ones(2, device="cpu").reshape(3)
    error = pickle.loads(pickle.dumps(caught.value))
    assert type(error) is tc.ShapeError
    assert str(error) == str(caught.value)
    assert (error.op, error.site) == ("reshape", None)
    error.name_module("Net")
    assert str(error).endswith("module: Net")
