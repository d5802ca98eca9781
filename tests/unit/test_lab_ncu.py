"""The comparison of the profiler's times with those of Nsight Compute, on made-up ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from lab import profiler_times
from lab.profiler_times import Timed, cases, compared, longest, ncu_times
from tinygrad_cuda.engine import realize
from tinygrad_cuda.lowering.lower import lower
from tinygrad_cuda.lowering.target import Target

HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)


def row(number: int, kernel: str, value: str, unit: str, metric: str = "") -> str:
    metric = metric or "gpu__time_duration.sum"
    return (
        f'"{number}","7","python3","127.0.0.1","{kernel}","1","7","(256, 1, 1)","(132, 1, 1)","0",'
        f'"9.0","Command line profiler metrics","{metric}","{unit}","{value}"'
    )


CSV = "\n".join(
    [
        '==PROF== Connected to process 7 ("/usr/bin/python3")',
        "what the program prints, with a comma",
        HEADER,
        row(0, "map_copy_1", "99,000", "ns"),
        row(1, "map_copy_1", "20,000", "nsecond"),
        row(2, "contract_2(const params)", "0.2", "ms"),
        row(3, "map_copy_1", "22.5", "usecond"),
        row(4, "map_copy_1", "1,132", "", "launch__grid_size"),
        "==PROF== Disconnected from process 7",
    ]
)


def test_launches_of_a_kernel_are_read_in_their_order() -> None:
    assert ncu_times(CSV) == {"map_copy_1": [99.0, 20.0, 22.5], "contract_2": [200.0]}
    assert ncu_times("nothing was profiled") == {}


def test_the_table_leaves_out_the_warm_up() -> None:
    ours = {
        "transpose": Timed("map_copy_1", 21.0, 2),
        "matmul": Timed("contract_2", 150.0, 1),
        "softmax": Timed("row_3", 1.0, 2),
    }
    table = compared(ours, ncu_times(CSV)).splitlines()
    assert table[1].split() == ["transpose", "21.00", "21.25", "(20.00..22.50)", "0.988"]
    assert table[2].split() == ["matmul", "150.00", "200.00", "(200.00..200.00)", "0.750"]
    assert "not there: row_3" in table[3]
    assert table[-1] == "within 10%: 1 of 3"


def test_the_kernel_that_takes_longest_in_all() -> None:
    events = [
        SimpleNamespace(kind=kind, name=name, device_time_total=time)
        for kind, name, time in (
            ("kernel", "short", 3.0), ("kernel", "long", 2.0), ("run", "realize", 99.0),
            ("kernel", "long", 4.0),
        )
    ]  # fmt: skip
    assert longest(events) == Timed("long", 3.0, 2)


def test_ten_programs_of_different_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones, planned for an H200; each has a kernel that no other program launches."""

    def zeros(*shape: int, dtype: Any = tc.bfloat16, grad: bool = False) -> tc.Tensor:
        data = tc.tensor(np.zeros(shape, np.float32), dtype=dtype, device="cpu")
        return data.requires_grad_(grad)

    monkeypatch.setattr(profiler_times, "random", zeros)
    before = tc.get_default_device()
    tc.set_default_device("cpu")
    names: list[set[str]] = []
    try:
        for _, run in cases(16):
            found = run()
            wanted = [t.cell.node for t in (found if isinstance(found, tuple) else (found,))]
            program = realize.explain(wanted)[1]
            assert program is not None
            names.append({launch.name for launch in lower(program, Target.h200()).launches})
    finally:
        tc.set_default_device(before)
    assert len(names) == 10
    for number, own in enumerate(names):
        others = set().union(*names[:number], *names[number + 1 :])
        assert own - others
