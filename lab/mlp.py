"""Host side of mlp_step.cu: parameters, the step in NumPy float64, and graphs of one or many steps
in three or five kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lab.harness import PLAIN, Array, Gpu, Shape, node, source, words
from tinygrad_cuda.backend.cuda.graphs.graph import CudaGraph, KernelNode
from tinygrad_cuda.backend.cuda.pool import Allocation

BATCH, INPUTS, HIDDEN, CLASSES = 64, 784, 128, 10
RATE, MOMENTUM = 0.05, 0.9
FUSED = ("mlp_hidden", "mlp_head", "mlp_update")
CUT = ("mlp_hidden", "mlp_bias_relu", "mlp_loss", "mlp_back", "mlp_update")
KERNELS = [*FUSED, *CUT[1:4]]


@dataclass(frozen=True)
class Tile:
    """The tile of mlp_hidden: rows, columns, and how many blocks share K."""

    m: int = 16
    n: int = 16
    split: int = 4

    @property
    def defines(self) -> list[str]:
        return [
            f"TGC_HIDDEN_M {self.m}",
            f"TGC_HIDDEN_N {self.n}",
            f"TGC_HIDDEN_SPLIT {self.split}",
        ]

    def shapes(self) -> dict[str, Shape]:
        grid = BATCH // self.m * (HIDDEN // self.n) * self.split
        return {
            "mlp_hidden": Shape(grid, 256, rows_shared(self.m, self.n, INPUTS // self.split, 256)),
            "mlp_head": Shape(64, 128, 4 * 16 * 4),
            "mlp_bias_relu": Shape(64, 128),
            "mlp_loss": Shape(64, 32),
            "mlp_back": Shape(64, 128),
            "mlp_update": Shape(124, 256, columns_shared(16, 56, BATCH, 256)),
        }


def rows_shared(tm: int, tn: int, kc: int, threads: int) -> int:
    """contract_rows<...>::SHARED."""
    groups = threads // (tm // 4 * (tn // 4))
    return 4 * max((tm + tn) * (kc // 4 | 1) * 4, groups * tm * tn)


def columns_shared(tm: int, tn: int, k: int, threads: int) -> int:
    """contract_columns<...>::SHARED."""
    return 4 * max((tm + tn) * k, threads // (tm // 4 * (tn // 4)) * tm * tn)


def mlp_source(edge: int, tile: Tile | None = None) -> str:
    """The translation unit of the step."""
    tile = tile or Tile()
    return source("contract.cuh", "mlp_step.cu", edge=edge, defines=tile.defines)


def problem(steps: int, seed: int = 0) -> dict[str, Array]:
    """Random batches, labels and parameters."""
    random = np.random.default_rng(seed)

    def normal(*shape: int, scale: float = 1.0) -> Array:
        return (scale * random.standard_normal(shape)).astype(np.float32)

    return {
        "x": normal(steps, BATCH, INPUTS),
        "labels": random.integers(0, CLASSES, (steps, BATCH)).astype(np.int64),
        "w1": normal(HIDDEN, INPUTS, scale=INPUTS**-0.5),
        "b1": normal(HIDDEN, scale=0.1),
        "w2": normal(CLASSES, HIDDEN, scale=HIDDEN**-0.5),
        "b2": normal(CLASSES, scale=0.1),
    }


def reference(data: dict[str, Array], steps: int) -> dict[str, Array]:
    """The same steps in NumPy float64: parameters, velocities and losses."""
    names = ("w1", "b1", "w2", "b2")
    value: dict[str, Any] = {name: data[name].astype(np.float64) for name in names}
    velocity: dict[str, Any] = {name: np.zeros_like(value[name]) for name in names}
    losses = []
    for step in range(steps):
        x, labels = data["x"][step].astype(np.float64), data["labels"][step]
        before = x @ value["w1"].T + value["b1"]
        hidden = np.maximum(before, 0)
        logits = hidden @ value["w2"].T + value["b2"]
        logits -= logits.max(1, keepdims=True)
        log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        losses.append(-log_p[np.arange(BATCH), labels].mean())
        d_logits = np.exp(log_p)
        d_logits[np.arange(BATCH), labels] -= 1
        d_logits /= BATCH
        d_before = d_logits @ value["w2"] * (before > 0)
        gradient = {
            "w1": d_before.T @ x,
            "b1": d_before.sum(0),
            "w2": d_logits.T @ hidden,
            "b2": d_logits.sum(0),
        }
        for name in names:
            velocity[name] = MOMENTUM * velocity[name] + gradient[name]
            value[name] -= RATE * velocity[name]
    out = {**value, **{f"{n}_velocity": velocity[n] for n in names}}
    out["losses"] = np.array(losses)
    return out


@dataclass
class Step:
    """The step's buffers on a device and its kernels' parameters."""

    gpu: Gpu
    functions: dict[str, Any]
    data: dict[str, Array]
    tile: Tile = field(default_factory=Tile)

    def __post_init__(self) -> None:
        gpu, data = self.gpu, self.data
        self.memory: dict[str, Allocation] = {n: gpu.put(a) for n, a in data.items()}
        for name in ("w1", "b1", "w2", "b2"):
            self.memory[f"{name}_velocity"] = gpu.put(np.zeros_like(data[name]))
        rows = {"hidden": HIDDEN, "d_hidden": HIDDEN, "d_logits": CLASSES, "row_loss": 1}
        for name, width in rows.items():
            self.memory[name] = gpu.empty(BATCH * width * 4)
        self.memory["partials"] = gpu.empty(self.tile.split * BATCH * HIDDEN * 4)
        self.memory["losses"] = gpu.empty(4 * len(data["x"]))
        self.memory["error"] = gpu.put(np.zeros(8, np.uint64))

    def reset(self) -> None:
        """Parameters as at the start, velocities zero."""
        for name in ("w1", "b1", "w2", "b2"):
            self.gpu.device.copy_in(self.memory[name].address, self.data[name])
            self.gpu.device.fill(self.memory[f"{name}_velocity"].address, self.data[name].nbytes)
        self.gpu.device.fill(self.memory["error"].address, 32)

    def parameters(self, step: int) -> dict[str, bytes]:
        """Each kernel's struct in the given step."""
        m = self.memory
        x = m["x"].address + step * BATCH * INPUTS * 4
        labels = m["labels"].address + step * BATCH * 8
        loss = m["losses"].address + step * 4
        names = ("w1", "b1", "w2", "b2")
        state = [m[n] for name in names for n in (name, f"{name}_velocity")]
        return {
            "mlp_hidden": words(x, m["w1"], m["partials"]),
            "mlp_head": words(
                *(m[n] for n in ("partials", "b1", "w2", "b2")),
                labels,
                *(m[n] for n in ("hidden", "d_hidden", "d_logits", "row_loss", "error")),
            ),
            "mlp_bias_relu": words(m["partials"], m["b1"], m["hidden"]),
            "mlp_loss": words(
                *(m[n] for n in ("hidden", "w2", "b2")),
                labels,
                *(m[n] for n in ("d_logits", "row_loss", "error")),
            ),
            "mlp_back": words(*(m[n] for n in ("d_logits", "w2", "hidden", "d_hidden"))),
            "mlp_update": words(
                x,
                *(m[n] for n in ("hidden", "d_hidden", "d_logits", "row_loss")),
                *state,
                loss,
                m["error"],
                RATE,
                MOMENTUM,
            ),
        }

    def nodes(self, kernels: tuple[str, ...], steps: int) -> list[KernelNode]:
        """The kernels of `steps` steps in order."""
        shapes = self.tile.shapes()
        return [
            node(self.functions[name], shapes[name], self.parameters(step)[name])
            for step in range(steps)
            for name in kernels
        ]

    def graph(
        self, edge: int = PLAIN, kernels: tuple[str, ...] = FUSED, steps: int = 1
    ) -> CudaGraph:
        """A graph of whole steps."""
        return self.gpu.chain(self.nodes(kernels, steps), edge)

    def result(self) -> dict[str, Array]:
        """Parameters, velocities and losses as they are on the device."""
        shapes = {n: self.data[n].shape for n in ("w1", "b1", "w2", "b2")}
        shapes |= {f"{n}_velocity": shape for n, shape in shapes.items()}
        shapes["losses"] = (len(self.data["x"]),)
        return {n: self.gpu.get(self.memory[n], shape) for n, shape in shapes.items()}


def worst(got: dict[str, Array], wanted: dict[str, Array]) -> float:
    """The largest relative error (2-norms) among all named arrays."""
    return max(
        float(np.linalg.norm(got[n] - wanted[n]) / np.linalg.norm(wanted[n])) for n in wanted
    )
