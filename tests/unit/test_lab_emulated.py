"""The hand-written training step on the CPU, from the same text, in several orders; all rungs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulation import launch

import tinygrad_cuda as tc
from lab import mlp, rungs
from tinygrad_cuda.backend.emu.compiler import toolchain
from tinygrad_cuda.backend.emu.runtime import EmulatedModule
from tinygrad_cuda.core.errors import TgcError

STEPS = 2
NAMES = ("w1", "b1", "w2", "b2")


@pytest.fixture(scope="module")
def unit() -> EmulatedModule:
    """The step's kernels, compiled for the CPU."""
    try:
        toolchain()
    except TgcError as error:
        pytest.skip(str(error))
    return EmulatedModule(mlp.mlp_source(0))


def run(unit: EmulatedModule, kernels: tuple[str, ...], data: dict[str, Any], order: int) -> Any:
    """Parameters, velocities and losses after the data's steps, and the error word."""
    memory = {name: data[name].copy() for name in NAMES}
    memory |= {f"{name}_velocity": np.zeros_like(data[name]) for name in NAMES}
    widths = {"hidden": 128, "d_hidden": 128, "d_logits": 10, "row_loss": 1}
    memory |= {n: np.full((64, width), np.nan, np.float32) for n, width in widths.items()}
    memory["partials"] = np.full((mlp.Tile().split, 64, 128), np.nan, np.float32)
    memory["losses"] = np.zeros(len(data["x"]), np.float32)
    memory["error"] = np.zeros(8, np.uint64)
    state = [n for name in NAMES for n in (name, f"{name}_velocity")]
    gradients = ("hidden", "d_hidden", "d_logits", "row_loss")
    for step in range(len(data["x"])):
        now = {"x": data["x"][step], "labels": data["labels"][step]}
        now["loss"] = memory["losses"][step : step + 1]
        given: dict[str, tuple[str, ...]] = {
            "mlp_hidden": ("x", "w1", "partials"),
            "mlp_head": ("partials", "b1", "w2", "b2", "labels", *gradients, "error"),
            "mlp_bias_relu": ("partials", "b1", "hidden"),
            "mlp_loss": ("hidden", "w2", "b2", "labels", "d_logits", "row_loss", "error"),
            "mlp_back": ("d_logits", "w2", "hidden", "d_hidden"),
            "mlp_update": ("x", *gradients, *state, "loss", "error"),
        }
        for name in kernels:
            shape = mlp.Tile().shapes()[name]
            values: list[Any] = [{**memory, **now}[argument] for argument in given[name]]
            if name == "mlp_update":
                values += [mlp.RATE, mlp.MOMENTUM]
            launch(
                unit,
                name,
                *values,
                grid=shape.grid,
                block=shape.block,
                shared=shape.shared,
                order=order,
            )
    return memory


@pytest.mark.parametrize("kernels", [mlp.FUSED, mlp.CUT], ids=["three kernels", "five kernels"])
def test_step_agrees_with_numpy_in_any_thread_order(unit: EmulatedModule, kernels: Any) -> None:
    """No barrier is missing: all orders give the same bits, and NumPy's values."""
    data = mlp.problem(STEPS)
    wanted = mlp.reference(data, STEPS)
    first = run(unit, kernels, data, 0)
    assert mlp.worst({n: first[n] for n in wanted}, wanted) < 2e-6
    for order in (1, 2):
        again = run(unit, kernels, data, order)
        for name in wanted:
            assert (again[name] == first[name]).all(), (order, name)


def test_bad_label_changes_no_parameter(unit: EmulatedModule) -> None:
    """The error word names index and limit, and the update writes nothing."""
    data = mlp.problem(1)
    data["labels"][0, 5] = -3
    memory = run(unit, mlp.FUSED, data, 0)
    for name in NAMES:
        assert (memory[name] == data[name]).all(), name
    assert memory["error"].astype(np.int64).tolist() == [1, -3, 10, 0, 0, 0, 0, 0]


@pytest.mark.usefixtures("unit")
def test_each_rung_has_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of products and of convolutions, as `tc.kernels.use` names them; times are of the host."""
    assert rungs.main([str(tmp_path / "rows.json"), "--device", "emu", "--small"]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    for op, names in tc.kernels.TIERS.items():
        assert {r["rung"] for r in rows if r["op"] == op} == {*names} - rungs.FEW
    assert len(capsys.readouterr().out.splitlines()) == len(rows)
