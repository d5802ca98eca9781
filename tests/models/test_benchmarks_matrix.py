"""Operations that matrix units bound: equal to torch's on tiny shapes, and their page."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pretended_gpu import pretended_gpu

import benchmarks.__main__ as command
import tinygrad_cuda as tc
from benchmarks import matrix_report, report
from benchmarks.harness import LEFT_OUT, SMOKE, UNAVAILABLE, Suite
from benchmarks.peers.ours import VARIANTS, Plain
from benchmarks.peers.program import Memory, Unavailable
from benchmarks.worker import Job, side_by_side
from benchmarks.workload import ALL, COLD_BYTES, Operation
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.matrix_units import attention, conv, matmul


@pytest.fixture(autouse=True)
def switches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What workloads permit is not permitted to the tests that follow."""
    if "torch" in sys.modules:  # its own samples, which other tests import, freeze its switches
        flags = sys.modules["torch"].backends.flags_frozen.__globals__
        monkeypatch.setitem(flags, "__allow_nonbracketed_mutation_flag", True)
    for holder in (tc.backends.cuda.matmul, tc.backends.cudnn):
        monkeypatch.setattr(holder, "allow_tf32", holder.allow_tf32)


@pytest.mark.parametrize(
    "name",
    [
        *(f"matmul_4096_{order}_{kind}" for order, kind in
          (("nn", "fp32"), ("nt", "bf16"), ("tn", "fp16"), ("tt", "tf32"))),
        "matmul_96x1024x1024x64_bf16",
        *(f"{name}{suffix}_{kind}" for name, kind in
          (("conv_3x3_c64", "tf32"), ("conv_stride2", "bf16"), ("conv_1x1", "tf32"))
          for suffix in ("", "_dx", "_dw")),
        "attention_4096_bf16", "attention_1024_backward_bf16",
    ],
)  # fmt: skip
def test_operations_are_those_of_torch(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytorch = importlib.import_module("benchmarks.peers.pytorch")
    workload = WORKLOADS[name](True)
    theirs = {key: v for key, v in pytorch.VARIANTS.items() if "cpu" in v.devices}
    rows = list(Suite("cpu", SMOKE, tmp_path).rows(name, workload, theirs | VARIANTS))
    assert not [row.failure for row in rows if row.failure]
    images = name.startswith("conv")
    expected = ["torch_last", "ours", "ours_last"] if images else ["torch", "ours"]
    assert [row.variant for row in rows] == expected
    assert all(row.agrees and row.wall is not None for row in rows)


def matrix(shape: tuple[int, ...], seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(np.float64)


def test_transposed_operands_and_gradients() -> None:
    """By their definition: what is transposed lies so, and one gradient is computed alone."""
    for order in ("nn", "nt", "tn", "tt"):
        program = Plain(matmul((8, 8, 8), order, "fp32", True), "cpu")
        program.call(0)
        a, b = (x.numpy().astype(np.float64) for x in program.work.data[0])
        left, right = a.T if order[0] == "t" else a, b.T if order[1] == "t" else b
        assert left.shape == (6, 4) and right.shape == (4, 5)
        np.testing.assert_allclose(program.results()[0], (left @ right).reshape(-1), atol=1e-5)
    for gradient, shape in ((0, (2, 3, 6, 6)), (1, (4, 3, 1, 1))):
        operation = conv((2, 3, 6, 4, 1, 1), "tf32", gradient, True)
        program = Plain(operation, "cpu")
        program.call(1)
        x, w = operation.inputs()
        g = operation.cotangent()
        patterns = ("nohw,oc->nchw", (g, w[:, :, 0, 0])), ("nohw,nchw->oc", (g, x))
        pattern, operands = patterns[gradient]
        (actual,) = program.results()
        np.testing.assert_allclose(
            actual.reshape(shape), np.einsum(pattern, *operands).reshape(shape), atol=1e-4
        )


def test_calls_take_operands_that_no_cache_holds() -> None:
    """Sets are taken in turn, each with memory of its own, as many as fill the cache thrice."""
    large, small = matmul((8192, 8192, 8192), "nt", "bf16", False), WORKLOADS["conv_1x1_bf16"](True)
    assert large.sets == 1 and isinstance(small, Operation) and small.sets == 12
    middle = matmul((64, 4096, 4096), "nt", "bf16", False)
    nbytes = 2 * (64 * 4096 + 4096 * 4096)
    assert (middle.sets - 1) * nbytes < COLD_BYTES <= middle.sets * nbytes
    program = Plain(matmul((4, 4, 4), "nt", "fp32", True), "cpu")
    seen = []
    for number in range(13):
        program.call(number)
        seen.append(program.given[0])
    assert len({id(x) for x in seen}) == 12 and seen[12] is seen[0]
    assert len({x.data_ptr() for x in seen}) == 12


def test_flops_and_goals() -> None:
    product = matmul((16384, 50304, 768), "nt", "bf16", False)
    assert product.flops == 2 * 16384 * 50304 * 768 and product.goal == 0.85
    assert matmul((96, 1024, 1024, 64), "nt", "bf16", False).flops == 2 * 96 * 1024 * 1024 * 64
    assert matmul((4096, 4096, 4096), "nn", "fp32", False).goal == 1.8
    assert matmul((4096, 4096, 4096), "nt", "fp16", False).goal == 0.95
    convolution = conv((256, 64, 32, 128, 3, 2), "bf16", 0, False)
    assert convolution.result == (256, 128, 16, 16)
    assert convolution.flops == 2 * 256 * 128 * 16 * 16 * 64 * 9
    forward, both = (attention((8, 16, 4096, 128), backward, False) for backward in (False, True))
    assert forward.flops == 4 * 8 * 16 * 4096**2 * 128 / 2 and both.gradient == ALL
    assert both.flops == 3.5 * forward.flops


def test_a_kernel_that_a_library_lacks_is_no_failure(tmp_path: Path) -> None:
    def lacking(workload: Any, device: str) -> Any:
        raise Unavailable("No available kernel. Aborting execution.")

    variant = VARIANTS["ours"]._replace(build=lacking)
    suite = Suite("cpu", SMOKE, tmp_path)
    (row,) = suite.rows(
        "attention_4096_bf16", WORKLOADS["attention_4096_bf16"](True), {"x": variant}
    )
    assert row.wall is None and row.failure.startswith(UNAVAILABLE)
    assert not command.failed(row.failure) and command.failed("RuntimeError: no")


def test_processes_compile_side_by_side_and_are_timed_in_turn(tmp_path: Path) -> None:
    """Each waits for its turn; one that ends early costs its own rows only."""
    jobs = [
        Job("ours", [name], "cpu", True, str(tmp_path), without="*compiled*")
        for name in ("lstm", "no such workload", "mlp_4096_bf16")
    ]
    first, left, broken, *last = side_by_side(jobs)
    assert first.workload == "lstm" and first.wall is not None and first.first is None
    assert left.failure == LEFT_OUT and len(first.losses) == 2
    assert broken.workload == "no such workload" and broken.failure == "the process ended: 1"
    assert [row.workload for row in last] == ["mlp_4096_bf16"] * 2 and last[0].wall is not None


class Counted:
    """Stands for `torch.cuda`: bytes in use, and the most of them."""

    def __init__(self) -> None:
        self.used = self.most = 0

    def change(self, nbytes: int) -> None:
        self.used += nbytes
        self.most = max(self.most, self.used)

    def memory_allocated(self) -> int:
        return self.used

    def max_memory_allocated(self) -> int:
        return self.most

    def reset_peak_memory_stats(self) -> None:
        self.most = self.used


def test_the_memory_of_a_program_is_its_own() -> None:
    """What others of the process hold is not counted, and neither is an earlier peak."""
    cuda = Counted()
    cuda.change(100)
    memory = Memory(cuda)
    for nbytes in (40, 1000, -1000):  # weights; what compiling needs for a while
        cuda.change(nbytes)
    memory.settle()
    cuda.change(7000)  # another program
    memory.reset_peak()
    for nbytes in (30, -30):
        cuda.change(nbytes)
    assert memory.peak() == 70


def test_what_compiles_side_by_side() -> None:
    """A program a process, a precision at a time; not PyTorch's convolutions, which cuDNN times."""
    names = ["gpt2_bf16", "gpt2", "resnet18_bf16", "mlp_64", "matmul_4096_nt_bf16", "conv_1x1_bf16"]
    described: dict[str, Any] = {
        "programs": {"gpt2_bf16": 1, "gpt2": 1, "resnet18_bf16": 1},
        "sweeps": {"matmul_4096_nt_bf16": {}, "conv_1x1_bf16": {}},
        "images": ["resnet18_bf16", "conv_1x1_bf16"],
    }
    assert command.grouped([name for name in names if name != "mlp_64"], described) == [
        ["gpt2_bf16"], ["resnet18_bf16"], ["gpt2"], ["matmul_4096_nt_bf16"], ["conv_1x1_bf16"]
    ]  # fmt: skip
    jobs = command.planned(names, ["ours", "torch"], 2, described, partial(
        Job, device="cpu", smoke=True, folder="nowhere"
    ))  # fmt: skip
    chosen = [(job.peer, job.names, job.compiles) for job in jobs.side_by_side]
    assert chosen == [
        ("torch", ["gpt2_bf16"], False), ("torch", ["resnet18_bf16"], True),
        ("torch", ["gpt2"], False),
        ("ours", ["gpt2_bf16"], False), ("ours", ["resnet18_bf16"], False),
        ("ours", ["gpt2"], False), ("ours", ["conv_1x1_bf16"], False),
        ("torch", ["matmul_4096_nt_bf16"], False), ("ours", ["matmul_4096_nt_bf16"], False),
    ]  # fmt: skip
    assert [(job.peer, job.names) for job in jobs.alone] == [
        ("torch", ["mlp_64", "resnet18_bf16", "conv_1x1_bf16"]), ("ours", ["mlp_64"])
    ]  # fmt: skip


@pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")
def test_a_step_on_a_gpu_holds_weights_gradients_and_state(tmp_path: Path) -> None:
    """AdamW: four arrays of the parameters' size at once, if a gradient is not used at once."""
    workload = WORKLOADS["mlp_4096"](True)
    parameters = 3 * 4 * (16 * 16 + 16)
    with pretended_gpu():
        suite = Suite("cuda", replace(SMOKE, device_repeats=0), tmp_path)
        rows = [suite.timed(ready) for ready in suite.prepared("mlp_4096", workload, VARIANTS)]
    assert not [row.failure for row in rows if row.failure]
    for row in rows:
        assert row.peak is not None and 3 * parameters < row.peak < 12 * parameters


def timed(name: str, variant: str, title: str, microseconds: float, **other: Any) -> Any:
    """A row of results as the command writes them."""
    times = {"median": microseconds, "lower": microseconds, "upper": microseconds, "repeats": 5}
    return {
        "workload": name, "variant": variant, "title": title, "first": 1.0, "wall": times,
        "device": times, "together": 1, "difference": 1e-3, "agrees": True, "losses": [],
        "tolerance": 2e-2, "peak": None, "failure": "",
    } | other  # fmt: skip


def results() -> dict[str, Any]:
    """One program and two operations: attention, whose peer is PyTorch's deterministic kernel."""
    return {
        "about": {"commit": "abc", "date": "2026-01-01", "repeats": 5, "gpu": "NVIDIA H200",
                  "copy_bytes_per_second": 4e12, "peak_flops": 6e13, "versions": {"torch": "2"}},
        "floors": {"gpt2_bf16": None, "matmul_4096_nt_bf16": None, "attention_4096_bf16": None},
        "copied": [], "programs": {"gpt2_bf16": 1.0},
        "sweeps": {
            "matmul_4096_nt_bf16": {"family": "matmul", "flops": 1e11, "goal": 0.95},
            "attention_4096_bf16": {"family": "attention", "flops": 1e11, "goal": 0.8},
        },
        "rows": [
            timed("gpt2_bf16", "torch", "torch eager", 2e4, peak=8_000_000_000, losses=[4.0]),
            timed("gpt2_bf16", "torch_graph", "torch graph", 1e4, peak=9_000_000_000, losses=[4.0]),
            timed("gpt2_bf16", "ours", "ours, plain", 9.5e3, peak=10_000_000_000, losses=[4.01]),
            timed("gpt2_bf16", "ours_compiled", "ours, tc.compile", 9e3, peak=2_000_000_000,
                  losses=[4.01]),
            timed("matmul_4096_nt_bf16", "torch", "torch eager", 200.0),
            timed("matmul_4096_nt_bf16", "ours", "ours, plain", 250.0),
            timed("attention_4096_bf16", "torch_cudnn", "torch cuDNN", 100.0),
            timed("attention_4096_bf16", "torch_flash_deterministic",
                  "torch flash, deterministic", 200.0),
            timed("attention_4096_bf16", "ours", "ours, plain", 160.0),
        ],
    }  # fmt: skip


def cells(text: str, name: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {name} "))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_tables_of_time_memory_and_rates() -> None:
    text = matrix_report.tables(results())
    assert cells(text, "gpt2_bf16") == [
        "gpt2_bf16", "9 (tc.compile)", "10 (torch graph)", "0.90", "1", "10.00", "9.00", "8.00",
        "1.25", "1e-03",
    ]  # fmt: skip
    assert cells(text, "matmul_4096_nt_bf16")[1:6] == [
        "400 (plain)", "500 (torch)", "0.80", "0.95", "-"
    ]  # fmt: skip
    assert cells(text, "attention_4096_bf16")[1:6] == [
        "625 (plain)", "500 (flash, deterministic)", "1.25", "0.8", "1000 cuDNN"
    ]  # fmt: skip
    assert "gpt2_bf16 (0.90 in time, 1.25 in memory), matmul_4096_nt_bf16 (0.80 of 0.95)." in text


def test_the_page_gets_its_section_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The section comes first, once; results of operations alone do not touch the suite."""
    docs = tmp_path / "docs"
    docs.mkdir()
    page, path = docs / "benchmarks.md", tmp_path / "results.json"
    page.write_text(f"# Benchmarks\n\n{report.SUITE}\n| lenet | 61 |\n")
    monkeypatch.setattr(command, "ROOT", tmp_path)
    path.write_text(json.dumps(results()))
    for _ in range(2):
        assert command.main(["--report", str(path)]) == 0
        text = page.read_text()
        assert text.endswith("| lenet | 61 |\n")
        places = [text.index(mark) for pair in matrix_report.MARKS.values() for mark in pair]
        assert sorted(places) == places and places[-1] < text.index(report.SUITE)
        assert all(text.count(mark) == 1 for pair in matrix_report.MARKS.values() for mark in pair)
    assert (docs / matrix_report.PLOT).stat().st_size > 1000
    programs = {**results(), "sweeps": {}, "floors": {}}
    programs["about"] = {**programs["about"], "commit": "later"}
    path.write_text(json.dumps(programs))
    assert command.main(["--report", str(path)]) == 0
    now = page.read_text()
    assert matrix_report.present(now, "operations") == matrix_report.present(text, "operations")
    assert "commit: later" in matrix_report.present(now, "programs")
    assert "commit: later" not in matrix_report.present(now, "operations")


def test_later_results_replace_rows_of_earlier_ones() -> None:
    later = results()
    later["about"] |= {"commit": "def"}
    later["rows"] = [timed("matmul_4096_nt_bf16", "ours", "ours, plain", 100.0)]
    joined = command.merged([results(), later])
    assert len(joined["rows"]) == len(results()["rows"]) and joined["about"]["commit"] == "abc; def"
    assert cells(matrix_report.tables(joined), "matmul_4096_nt_bf16")[3] == "2.00"
    ours = [row for row in joined["rows"] if row["variant"] == "ours_compiled"]
    assert ours[0]["difference"] == pytest.approx(0.005 / 4.005)
