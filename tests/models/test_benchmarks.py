"""The benchmark suite runs from its command line, on tiny shapes, and notices another program."""

from __future__ import annotations

import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import benchmarks.__main__ as command
import tinygrad_cuda as tc
from benchmarks import report
from benchmarks.floor import floor_of
from benchmarks.harness import LEFT_OUT, SMOKE, TOLERANCE, Suite, compare_losses, difference
from benchmarks.peers import torchlike
from benchmarks.peers.ours import VARIANTS, Plain
from benchmarks.worker import Job
from benchmarks.workload import ModelTraining, Training
from benchmarks.workloads import WORKLOADS


@pytest.fixture(autouse=True)
def switches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What workloads permit is not permitted to the tests that follow."""
    if "torch" in sys.modules:  # its own samples, which other tests import, freeze its switches
        flags = sys.modules["torch"].backends.flags_frozen.__globals__
        monkeypatch.setitem(flags, "__allow_nonbracketed_mutation_flag", True)
    for holder in (tc.backends.cuda.matmul, tc.backends.cudnn):
        monkeypatch.setattr(holder, "allow_tf32", holder.allow_tf32)


def results(arguments: list[str], path: Path) -> dict[str, Any]:
    """What the command writes, having said that all is well."""
    assert command.main([*arguments, "--device", "cpu", "--smoke", "--json", str(path)]) == 0
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_command_measures_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = results(["--only", "mlp_64,softmax_backward", "--peers", ""], tmp_path / "all.json")
    assert [row["workload"] for row in found["rows"]] == ["mlp_64"] * 3 + ["softmax_backward"] * 2
    assert all(row["wall"]["median"] > 0 and row["first"] > 0 for row in found["rows"])
    plain, compiled, together = (row["losses"] for row in found["rows"][:3])
    assert plain == compiled == together and len(plain) == 2 and plain[1] != plain[0]
    assert found["about"]["versions"].keys() == {"ours", "numpy"} and found["about"]["commit"]
    assert re.search(r"softmax_backward +\| ours, tc.compile +\|", capsys.readouterr().out)
    assert (tmp_path / "all.png").stat().st_size > 1000
    page = report.page(found)
    assert f"- commit: {found['about']['commit']}" in page and "| mlp_64" in page


def test_losses_are_those_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        given = ["--only", "mlp_64,denoiser_sample", "--peers", "torch"]
        found = results(given, tmp_path / "all.json")
    finally:
        torch.set_num_threads(threads)
    rows = found["rows"]
    assert {row["variant"] for row in rows} == {"torch", "ours", "ours_compiled", "ours_together"}
    assert all(row["agrees"] and row["difference"] < 1e-5 for row in rows)
    theirs, ours, *_ = (row["losses"] for row in rows if row["workload"] == "mlp_64")
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_another_program_is_noticed(tmp_path: Path) -> None:
    workload = WORKLOADS["mlp_64"](True)
    assert isinstance(workload, Training)
    suite = Suite("cpu", SMOKE, tmp_path, without="left*")
    others = {name: value + 0.01 for name, value in workload.parameters.items()}
    ours = VARIANTS["ours"]
    changed = ours._replace(
        build=lambda _, device: ours.build(replace(workload, parameters=others), device)
    )
    variants = {"ours": ours, "moved": changed, "left": ours}
    same, differs, left = suite.rows("mlp_64", workload, variants)
    assert same.agrees and same.difference == 0
    assert not differs.agrees and differs.difference is not None and differs.difference > 1e-4
    assert left.wall is None and left.failure == LEFT_OUT
    assert difference(np.array([np.nan]), np.array([1.0])) == float("inf")
    assert difference(np.zeros(2), np.zeros(3)) == float("inf")


def test_losses_are_compared_with_the_median_of_the_peers() -> None:
    """The one that rounds otherwise differs; variants of a peer count once."""
    losses = {"torch": 2.001, "torch_graph": 2.001, "jax": 2.0, "ours": 2.0, "ours_together": 2.0}
    rows: list[dict[str, Any]] = [
        {"workload": "lenet", "variant": name, "losses": [4.0, value], "tolerance": 1e-4}
        for name, value in losses.items()
    ]
    rows.append({"workload": "softmax", "variant": "ours", "losses": [], "agrees": True})
    compare_losses(rows)
    found = {row["variant"]: row["agrees"] for row in rows}
    assert found == {"torch": False, "torch_graph": False} | dict.fromkeys(
        ("jax", "ours", "ours_together"), True
    )
    assert rows[0]["difference"] == pytest.approx(0.001 / 4)


@pytest.mark.parametrize(
    "name",
    ["mlp_4096", "mlp_4096_bf16", "gpt2_tf32", "gpt2_bf16", "resnet18", "resnet18_bf16", "lstm",
     "lstm_bf16", "resnet_bf16", "unet_train_bf16"],
)  # fmt: skip
def test_programs_train_as_in_torch(name: str, tmp_path: Path) -> None:
    """Two steps from equal weights on equal batches, as near as the precision rounds."""
    torch = pytest.importorskip("torch")
    if name == "lstm_bf16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("torch's LSTM of bfloat16 needs AVX-512")
    pytorch = importlib.import_module("benchmarks.peers.pytorch")
    suite, workload = Suite("cpu", SMOKE, tmp_path), WORKLOADS[name](True)
    assert isinstance(workload, Training | ModelTraining)
    # Without AVX-512, torch 2.13's channels-last training corrupts the heap.
    theirs = {k: v for k, v in pytorch.VARIANTS.items() if "cpu" in v.devices and k != "torch_last"}
    rows = list(suite.rows(name, workload, theirs | VARIANTS))
    assert not [row.failure for row in rows if row.failure]
    assert [row.variant for row in rows] == ["torch", "ours", "ours_compiled"]
    first = rows[0].losses
    assert len(first) == 2 and first[1] != first[0]
    for row in rows:
        assert row.agrees and row.tolerance == TOLERANCE[workload.precision]
        np.testing.assert_allclose(row.losses, first, rtol=row.tolerance)


def test_tf32_is_permitted_to_those_who_ask() -> None:
    """A workload sets the switches for itself, and the next one sets them back."""
    torchlike.Work(tc, WORKLOADS["lstm_tf32"](True), "cpu")
    assert tc.backends.cuda.matmul.allow_tf32 and tc.backends.cudnn.allow_tf32
    torchlike.Work(tc, WORKLOADS["lstm"](True), "cpu")
    assert not tc.backends.cuda.matmul.allow_tf32 and not tc.backends.cudnn.allow_tf32


def test_programs_of_one_process_are_timed_with_their_own_switches(tmp_path: Path) -> None:
    """Both are built before the first is timed."""
    seen = []

    class Watched(Plain):
        def call(self, number: int) -> None:
            seen.append(tc.backends.cuda.matmul.allow_tf32)
            super().call(number)

    suite, variants = (
        Suite("cpu", SMOKE, tmp_path),
        {"ours": VARIANTS["ours"]._replace(build=Watched)},
    )
    names = ("matmul_4096_nt_tf32", "matmul_4096_nt_fp32")
    ready = [one for name in names for one in suite.prepared(name, WORKLOADS[name](True), variants)]
    assert set(seen) == {False, True}
    for one, permitted in zip(ready, (True, False)):
        seen.clear()
        assert suite.timed(one).failure == "" and set(seen) == {permitted}


def test_process_of_its_own_and_time_that_is_over(tmp_path: Path) -> None:
    job = Job("ours", ["sum", "mlp_64"], "cpu", False, str(tmp_path), end=0.0)
    rows = list(job.rows())
    assert [row.workload for row in rows] == ["sum"] * 2 + ["mlp_64"] * 3
    assert all("time given to the suite was over" in row.failure for row in rows)


def test_a_failure_is_a_row_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(workload: Any, device: str) -> Any:
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(VARIANTS, "ours", VARIANTS["ours"]._replace(build=broken))
    path = tmp_path / "all.json"
    given = ["--only", "sum", "--peers", "", "--device", "cpu", "--smoke", "--json", str(path)]
    assert command.main(given) == 1
    first = json.loads(path.read_text())["rows"][0]
    assert first["wall"] is None and first["failure"] == "RuntimeError: no such kernel"


VALUES = 8 * 8  # of an array of the smallest sizes
LABELS, SCALAR = 8 * 8, 4  # bytes of int64 labels, of a loss
CHANNELS, PIXELS = 3, 2 * 3 * 4 * 4


@pytest.mark.parametrize(
    ("name", "nbytes"),
    [
        ("softmax", 4 * 2 * VALUES),
        ("softmax_backward", 4 * 4 * VALUES),  # x, cotangent; result, gradient
        ("softmax_backward_bf16", 2 * 4 * VALUES),
        ("cross_entropy", 4 * VALUES + LABELS + SCALAR),
        ("cross_entropy_backward", 4 * 2 * VALUES + LABELS + 2 * SCALAR),
        ("layer_norm", 4 * (2 * VALUES + 2 * 8)),
        ("layer_norm_backward", 4 * (4 * VALUES + 4 * 8)),
        ("rms_norm_backward_bf16", 2 * (4 * VALUES + 2 * 8)),
        ("batch_norm", 4 * (2 * PIXELS + 2 * CHANNELS)),
        ("batch_norm_backward", 4 * (4 * PIXELS + 4 * CHANNELS)),
    ],
)
def test_floor_counts_each_input_and_each_result_once(name: str, nbytes: int) -> None:
    """A gradient's floor has the function's result too, which is returned beside it."""
    floor = floor_of(WORKLOADS[name](True))
    assert floor.nbytes == nbytes
    assert floor.moves(1e12, 1e15)


def test_floor_counts_products_and_bytes() -> None:
    floor = floor_of(WORKLOADS["matmul_1024"](True))
    assert (floor.flops, floor.nbytes) == (2 * 8**3, 3 * 4 * 8**2)
    assert floor.microseconds(1e6, 1e9) == 768.0
    with pytest.raises(SystemExit, match="no workload is called 'nothing'"):
        command.chosen("nothing")
