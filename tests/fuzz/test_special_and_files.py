"""A few seeds of the instruments `special` and `files`, and that they notice what is wrong."""

from __future__ import annotations

import driver
import files
import pytest

from tinygrad_cuda.data import cifar
from tinygrad_cuda.graph.ops import elementwise
from tinygrad_cuda.utils import checkpoints

pytest.importorskip("torch.testing._internal.common_methods_invocations")
special = pytest.importorskip("special")


# Not what is altered below: an expression that was compiled once stays.
SEEDS = [seed for seed in range(0, 580, 29) if special.pairs()[seed][0] != "maximum"]


@pytest.mark.parametrize("seed", SEEDS)
def test_special_values(seed: int) -> None:
    difference = driver.judge(special, special.generate(seed), "cpu")
    assert difference is None or driver.accepted(difference)


@pytest.mark.parametrize("seed", range(36))
def test_damaged_files(seed: int) -> None:
    assert driver.judge(files, files.generate(seed), "cpu") is None


def test_contiguous_seeds_cover_functions_and_formats() -> None:
    count = sum(dtype == "float32" for _, dtype in special.pairs())
    assert count > 400
    assert {special.generate(seed)[0][0] for seed in range(count)} == {
        name for name, dtype in special.pairs() if dtype == "float32"
    }
    assert {files.generate(seed)[0][0] for seed in range(12)} == set(files.FORMATS)


@pytest.mark.parametrize("name", driver.INSTRUMENTS)
def test_the_long_mode_runs_each_instrument(name: str) -> None:
    assert driver.load(name).LONG["cpu"] > 0


@pytest.mark.parametrize("name", special.SLOPES_AT_NAN)
def test_torchs_slopes_at_nan_depend_on_the_place(name: str) -> None:
    """The rule `slope_at_nan` holds for no function whose slope is one number in torch."""
    torch = special.torch
    function = special.catalogue()[name].op
    more = (0.1,) if name == "logit" else ()  # clamped to [eps, 1 - eps]
    found = set()
    for dtype in (torch.float32, torch.float64):
        for count in (1, 64):
            x = torch.full((count,), float("nan"), dtype=dtype, requires_grad=True)
            slope = torch.autograd.grad(function(x, *more).sum(), x)[0]
            found |= {f"{number:.2f}" for number in slope.tolist()}
    assert len(found) > 1


def test_a_hidden_nan_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = special.pairs().index(("maximum", "float32"))
    monkeypatch.setattr(elementwise.maximum, "numpy", lambda a, b: elementwise.np.fmax(a, b))
    program = [("maximum", "float32", -1, "grid", 1)]
    assert special.generate(seed)[0][:3] == program[0][:3]
    assert str(driver.judge(special, program, "cpu")).startswith("value maximum")


def test_an_error_of_one_call_is_no_error_of_the_others() -> None:
    """Though all of a program are computed together."""
    name = "nn.functional.binary_cross_entropy"
    program = [(name, "float32", 0, pattern, 0) for pattern in ("plain", "extreme", "plain")]
    called = [(step, *call) for step in program for call in special.calls(step)]
    errors = [run.error and run.error[0] for run in special.run_together(called, "cpu")]
    assert errors == [None, special.tc.ArgumentError, None]


def test_a_file_without_a_checksum_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    files.original.cache_clear()
    monkeypatch.setattr(checkpoints, "_crc", lambda structure, arrays: 0)
    monkeypatch.setattr(cifar, "_check_stream", lambda archive: None)
    save = [[("save", 2, "bit", 0.97 - k / 1000, 1)] for k in range(60)]
    tar = [files.generate(307)]
    found = [driver.judge(files, program, "cpu") for program in (*save, *tar)]
    files.original.cache_clear()
    assert any(str(difference).startswith("unnoticed save") for difference in found)
    assert str(found[-1]).startswith("unnoticed tar.gz")
