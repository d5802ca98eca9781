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


@pytest.mark.parametrize("seed", range(0, 400, 23))
def test_special_values(seed: int) -> None:
    difference = driver.judge(special, special.generate(seed), "cpu")
    assert difference is None or driver.accepted(difference)


@pytest.mark.parametrize("seed", range(33))
def test_damaged_files(seed: int) -> None:
    assert driver.judge(files, files.generate(seed), "cpu") is None


def test_contiguous_seeds_cover_functions_and_formats() -> None:
    count = sum(dtype == "float32" for _, dtype in special.pairs())
    assert count > 400
    assert {special.generate(seed)[0][0] for seed in range(count)} == {
        name for name, dtype in special.pairs() if dtype == "float32"
    }
    assert {files.generate(seed)[0][0] for seed in range(11)} == set(files.FORMATS)


def test_a_hidden_nan_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = special.pairs().index(("maximum", "float32"))
    monkeypatch.setattr(elementwise.maximum, "numpy", lambda a, b: elementwise.np.fmax(a, b))
    # Another seed than above: what is compiled once stays.
    program = [("maximum", "float32", -1, "grid", 1)]
    assert special.generate(seed)[0][:3] == program[0][:3]
    assert str(driver.judge(special, program, "cpu")).startswith("value maximum")


def test_a_file_without_a_checksum_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    files.original.cache_clear()
    monkeypatch.setattr(checkpoints, "_crc", lambda structure, arrays: 0)
    monkeypatch.setattr(cifar, "_check_stream", lambda archive: None)
    save = [[("save", 2, "bit", 0.97 - k / 1000, 1)] for k in range(60)]
    tar = [files.generate(293)]
    found = [driver.judge(files, program, "cpu") for program in (*save, *tar)]
    files.original.cache_clear()
    assert any(str(difference).startswith("unnoticed save") for difference in found)
    assert str(found[-1]).startswith("unnoticed tar.gz")
