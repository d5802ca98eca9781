"""What TGC_DEBUG prints: times of operations on the CPU, sources with one prelude."""

from __future__ import annotations

import re

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.lowering.codegen import pack


def test_level_2_times_each_operation_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    """A line an operation, with shape, time and rates, in aligned columns; none at level 0."""
    x, w = tc.ones(64, 32, device="cpu"), tc.ones(32, 16, device="cpu")
    with settings.override(debug=2):
        (x @ w).exp().sum().item()
    lines = capsys.readouterr().out.splitlines()
    found = [
        re.fullmatch(r"(\w+) +(\w+)\[[\d, ]*\] +([\d.]+) us +[\d.]+ GFLOP/s +[\d.]+ GB/s", line)
        for line in lines
    ]
    assert all(found)
    times = {match[1]: float(match[3]) for match in found if match}
    assert {"matmul", "exp", "sum"} <= times.keys()
    assert all(time > 0 for name, time in times.items() if name in ("matmul", "exp", "sum"))
    assert len({line.index(" us ") for line in lines}) == 1
    (x @ w).exp().sum().item()
    assert capsys.readouterr().out == ""


def test_level_4_prints_the_prelude_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second unit names it in a line; all that the compiler gets stands in both."""
    monkeypatch.setattr(pack, "_printed", set())
    line = pack.prelude().splitlines()[0]
    try:
        with settings.override(debug=4):
            (tc.ones(5, device="emu") * 2 + tc.rand(5, device="emu")).tolist()
            first = capsys.readouterr().out
            (tc.ones(7, device="emu") / 3 + tc.rand(7, device="emu")).tolist()
    except tc.CompileError as error:
        pytest.skip(str(error))
    second = capsys.readouterr().out
    assert first.count(line) == 1
    assert second.count(line) == 0
    assert "// prelude: as printed before\n" in second
    assert "// random_prelude: as printed before\n" in second
    assert "TGC_STAGE(map_add_" in first
    assert "TGC_STAGE(map_add_" in second
    assert len(second.splitlines()) < 120
