"""cuDNN in Python for the pretended GPU: what the package calls of `cudnn`, NVIDIA's frontend.

Names, argument orders and results are those of nvidia-cudnn-frontend 1.32. A convolution is summed
in float64, tap by tap, and attention with the whole matrix of scores, of what lies at the addresses
when the stream comes to it, as the tensors of the graph describe that; the workspace is filled with
NaN.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from pretended_gpu import Driver, pretended_gpu

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda.libraries import cudnn
from tinygrad_cuda.core.device import as_device

Array = np.ndarray[Any, Any]


class GraphNotSupportedError(Exception):
    """What the frontend raises where no engine is left."""


class DataType(enum.Enum):
    FLOAT = np.float32
    HALF = np.float16
    BFLOAT16 = ml_dtypes.bfloat16


HeurMode = enum.Enum("HeurMode", "A B FALLBACK")
NumericalNote = enum.Enum(
    "NumericalNote",
    "TENSOR_CORE DOWN_CONVERT_INPUTS REDUCED_PRECISION_REDUCTION FFT NONDETERMINISTIC WINOGRAD",
)
NOTES = NumericalNote.__members__
# The engines of each graph, the quickest first: their notes and bytes of workspace.
ENGINES: dict[str, tuple[frozenset[str], int]] = {
    "huge": (frozenset(), 1 << 40),
    "atomic": (frozenset({"NONDETERMINISTIC", "TENSOR_CORE"}), 64),
    "rounding": (frozenset({"REDUCED_PRECISION_REDUCTION"}), 64),
    "units": (frozenset({"TENSOR_CORE"}), 1024),
    "winograd": (frozenset({"WINOGRAD"}), 2048),
    "plain": (frozenset(), 0),
}


@dataclass
class Tensor:
    """A tensor of a graph."""

    dim: list[int] = field(default_factory=list)
    stride: list[int] = field(default_factory=list)
    kind: Any = None
    uid: int = -1
    output: bool = False

    def set_output(self, output: bool) -> Tensor:
        self.output = output
        return self

    def set_uid(self, uid: int) -> Tensor:
        self.uid = uid
        return self

    def set_data_type(self, kind: Any) -> Tensor:
        self.kind = kind
        return self

    def set_dim(self, dim: list[int]) -> Tensor:
        self.dim = dim
        return self

    def set_stride(self, stride: list[int]) -> Tensor:
        self.stride = stride
        return self


class Convolution:
    """A convolution and its gradients in float64, one tap after another.

    Args:
        x, w: shapes of the images and of the weight.
        stride, padding, dilation: along each axis.
    """

    def __init__(
        self, x: Sequence[int], w: Sequence[int], stride: Any, padding: Any, dilation: Any
    ) -> None:
        self.x, self.w, self.padding = x, w, padding
        wide = [n + 2 * p for n, p in zip(x[2:], padding)]
        reach = [d * (k - 1) + 1 for d, k in zip(dilation, w[2:])]
        self.sizes = [(n - r) // s + 1 for n, r, s in zip(wide, reach, stride)]
        self.wide = (*x[:2], *wide)
        self.steps = list(zip(dilation, self.sizes, stride))

    def taps(self) -> Iterator[tuple[Any, Any, Any]]:
        """For each tap of each group: its elements of wide images, of the weight, of the result."""
        groups = self.x[1] // self.w[1]
        inputs, outputs = self.w[1], self.w[0] // groups
        for tap in np.ndindex(*self.w[2:]):
            at = [slice(t * d, t * d + (n - 1) * s + 1, s) for t, (d, n, s) in zip(tap, self.steps)]
            for group in range(groups):
                channels = slice(group * inputs, (group + 1) * inputs)
                results = slice(group * outputs, (group + 1) * outputs)
                every = slice(None)
                yield (every, channels, *at), (results, every, *tap), (every, results)

    def padded(self, x: Array) -> Array:
        return np.pad(x.astype(np.float64), [(0, 0), (0, 0), *((p, p) for p in self.padding)])

    def forward(self, x: Array, w: Array) -> Array:
        wide, total = self.padded(x), np.zeros((self.x[0], self.w[0], *self.sizes))
        for seen, tap, results in self.taps():
            total[results] += np.einsum("nc...,oc->no...", wide[seen], w[tap].astype(np.float64))
        return total

    def by_input(self, g: Array, w: Array) -> Array:
        wide = np.zeros(self.wide)
        for seen, tap, results in self.taps():
            part = g[results].astype(np.float64), w[tap].astype(np.float64)
            wide[seen] += np.einsum("no...,oc->nc...", *part)
        inside = [slice(p, p + n) for p, n in zip(self.padding, self.x[2:])]
        return wide[(slice(None), slice(None), *inside)]

    def by_weight(self, g: Array, x: Array) -> Array:
        wide, total = self.padded(x), np.zeros(self.w)
        for seen, tap, results in self.taps():
            seen_g, seen_x = (a.reshape(*a.shape[:2], -1) for a in (g[results], wide[seen]))
            total[tap] = np.einsum("noi,nci->oc", seen_g.astype(np.float64), seen_x)
        return total


class Attention:
    """Attention and its gradients in float64.

    Args:
        q, k, v: heads, (batch, heads, rows, columns).
        scale: of scores.
        causal: whether a query sees keys up to its own position.
    """

    def __init__(self, q: Array, k: Array, v: Array, scale: float, causal: bool) -> None:
        self.q, self.k, self.v, self.scale = *(x.astype(np.float64) for x in (q, k, v)), scale
        self.scores = self.q @ self.k.swapaxes(2, 3) * scale
        if causal:
            rows, columns = self.scores.shape[2:]
            seen = np.arange(columns) <= np.arange(rows)[:, None]
            self.scores = np.where(seen, self.scores, -np.inf)

    def forward(self) -> tuple[Array, Array]:
        largest = self.scores.max(-1, keepdims=True)
        sums = largest + np.log(np.exp(self.scores - largest).sum(-1, keepdims=True))
        return np.exp(self.scores - sums) @ self.v, sums

    def backward(self, o: Array, g: Array, sums: Array) -> tuple[Array, Array, Array]:
        o, g = o.astype(np.float64), g.astype(np.float64)
        shares = np.exp(self.scores - sums.astype(np.float64))
        moved = g @ self.v.swapaxes(2, 3) - (o * g).sum(-1, keepdims=True)
        by_scores = shares * moved * self.scale
        turned = by_scores.swapaxes(2, 3)
        return by_scores @ self.k, turned @ self.q, shares.swapaxes(2, 3) @ g


class Graph:
    """A graph of one convolution, or of attention.

    Args:
        library: the module.
        given: as the frontend's class takes it.
    """

    def __init__(self, library: CudnnModule, **given: Any) -> None:
        assert given["handle"] == library.handle
        assert given["compute_data_type"] is DataType.FLOAT
        self.library, self.given = library, given
        self.operands: dict[str, Tensor] = {}
        self.results: tuple[Tensor, ...] = ()
        self.form, self.how = "", dict[str, Any]()
        self.plans: list[str] = []
        self.built = ""

    def tensor(self, name: str, dim: Any, stride: Any, data_type: Any, uid: int) -> Tensor:
        assert name and min(dim) > 0 and min(stride) > 0 and len(dim) == len(stride) > 3
        return Tensor(dim, stride, data_type, uid)

    def _convolution(self, form: str, operands: dict[str, Tensor], how: dict[str, Any]) -> Tensor:
        assert how["pre_padding"] == how["post_padding"]
        assert how.pop("compute_data_type") is DataType.FLOAT
        self.form, self.operands, self.how, self.results = form, operands, how, (Tensor(),)
        return self.result

    def conv_fprop(self, image: Tensor, weight: Tensor, **how: Any) -> Tensor:
        return self._convolution("fprop", {"x": image, "w": weight}, how)

    def conv_dgrad(self, loss: Tensor, filter: Tensor, **how: Any) -> Tensor:
        return self._convolution("dgrad", {"y": loss, "w": filter}, how)

    def conv_wgrad(self, image: Tensor, loss: Tensor, **how: Any) -> Tensor:
        return self._convolution("wgrad", {"x": image, "y": loss}, how)

    @property
    def result(self) -> Tensor:
        """Of a convolution."""
        return self.results[0]

    def sdpa(
        self, name: str, q: Tensor, k: Tensor, v: Tensor, generate_stats: bool, attn_scale: float,
        use_causal_mask: bool,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        self.form, self.operands = "forward", {"q": q, "k": k, "v": v}
        self.how = {"scale": attn_scale, "causal": use_causal_mask}
        self.results = (Tensor(), Tensor())[: 1 + generate_stats]
        return self.results[0], self.results[1] if generate_stats else None

    def sdpa_backward(
        self, name: str, q: Tensor, k: Tensor, v: Tensor, o: Tensor, dO: Tensor,
        stats: Tensor, attn_scale: float, use_causal_mask: bool, use_deterministic_algorithm: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        assert use_deterministic_algorithm
        self.form, self.operands = "backward", {"q": q, "k": k, "v": v, "o": o, "g": dO, "s": stats}
        self.how = {"scale": attn_scale, "causal": use_causal_mask}
        self.results = (Tensor(), Tensor(), Tensor())
        return self.results

    def validate(self) -> None:
        """That all is there, and that the shapes belong together."""
        tensors = [*self.operands.values(), *self.results]
        assert all(result.output for result in self.results)
        assert sorted(t.uid for t in tensors) == [*range(1, len(tensors) + 1)]
        if self.form in ("forward", "backward"):
            self._validate_attention(tensors)
        else:
            self._validate_convolution(tensors)

    def _validate_attention(self, tensors: Sequence[Tensor]) -> None:
        """Rows of columns, of one type but for the logarithms."""
        q, k, v = (self.operands[name].dim for name in "qkv")
        batch, heads, rows, _ = q
        assert k[:3] == v[:3] == [batch, heads, k[2]] and q[3] == k[3]
        values = [batch, heads, rows, v[3]]
        of_rows = [batch, heads, rows, 1]
        shapes = [q, k, v, *((values, of_rows) if self.form == "forward" else ())]
        shapes += [] if self.form == "forward" else [values, values, of_rows, q, k, v]
        for tensor, shape in zip(tensors, shapes):
            single = shape == of_rows and tensor is not tensors[0]
            assert tensor.dim == shape and tensor.stride[3] == 1
            assert tensor.kind is (DataType.FLOAT if single else self.given["io_data_type"])
            assert single or all(n == 1 or s % 8 == 0 for n, s in zip(shape[:3], tensor.stride))

    def _validate_convolution(self, tensors: Sequence[Tensor]) -> None:
        assert {t.kind for t in tensors} == {self.given["io_data_type"]} and len(tensors) == 3
        for tensor in tensors:  # packed, in one order or the other
            axes = [axis for axis, size in enumerate(tensor.dim) if size > 1]
            order = sorted(axes, key=lambda a: -tensor.stride[a])
            packed = [prod(tensor.dim[a] for a in order[n + 1 :]) for n in range(len(order))]
            assert [tensor.stride[a] for a in order] == packed
        x, w, y = (self._of(name).dim for name in "xwy")
        sizes = zip(
            x[2:], w[2:], self.how["pre_padding"], self.how["stride"], self.how["dilation"],
            strict=True,
        )  # fmt: skip
        assert [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, p, s, d in sizes] == y[2:]
        assert (x[0], w[0]) == (y[0], y[1]) and x[1] % w[1] == 0

    def _of(self, name: str) -> Tensor:
        return self.operands.get(name, self.result)

    def build_operation_graph(self) -> None:
        pass

    def create_execution_plans(self, modes: Sequence[Any]) -> None:
        assert list(modes) == [HeurMode.A, HeurMode.FALLBACK]
        self.plans = [] if self.library.refuses else list(ENGINES)

    def deselect_numeric_notes(self, notes: Sequence[Any]) -> None:
        names = {note.name for note in notes}
        self.plans = [plan for plan in self.plans if not names & ENGINES[plan][0]]

    def deselect_workspace_greater_than(self, nbytes: int) -> None:
        self.plans = [plan for plan in self.plans if ENGINES[plan][1] <= nbytes]

    def check_support(self) -> None:
        if not self.plans:
            raise GraphNotSupportedError("no engine configuration is left\nin 6 candidates")

    def build_plans(self) -> None:
        self.built = self.plans[0]
        self.library.graphs.append(self)

    def get_workspace_size(self) -> int:
        return ENGINES[self.built][1]

    def _view(self, tensor: Tensor, address: int) -> Array:
        dtype = np.dtype(tensor.kind.value)
        assert address % 16 == 0 or tensor.kind is DataType.FLOAT
        extent = sum((n - 1) * s for n, s in zip(tensor.dim, tensor.stride)) + 1
        self.library.driver.inside(address, extent * dtype.itemsize)
        memory = (ctypes.c_byte * (extent * dtype.itemsize)).from_address(address)
        strides = [step * dtype.itemsize for step in tensor.stride]
        return np.lib.stride_tricks.as_strided(np.frombuffer(memory, dtype), tensor.dim, strides)

    def execute(self, pack: Mapping[int, int], workspace: int, handle: Any) -> None:
        assert self.built and handle == self.library.handle
        assert len(pack) == len(self.operands) + len(self.results)
        nbytes, pack = ENGINES[self.built][1], dict(pack)

        def run() -> None:
            self.library.driver.inside(workspace, max(nbytes, 1))
            self._store(pack)
            ctypes.memset(workspace, 0xFF, nbytes)
            self.library.convolutions.append(
                (self.form, self.given["io_data_type"].name, self.built)
            )

        streams = self.library.driver.streams
        next(s for s in streams if int(s) == self.library.stream).give(run)

    def _store(self, pack: Mapping[int, int]) -> None:
        arrays = {n: self._view(t, pack[t.uid]) for n, t in self.operands.items()}
        if self.form in ("forward", "backward"):
            attention = Attention(*(arrays[name] for name in "qkv"), **self.how)
            made = attention.forward() if self.form == "forward" else attention.backward(
                arrays["o"], arrays["g"], arrays["s"]
            )  # fmt: skip
            for value, result in zip(made, self.results):
                out = self._view(result, pack[result.uid])
                out[:] = value.astype(out.dtype)
            return
        how = (self.how["stride"], self.how["pre_padding"], self.how["dilation"])
        convolution = Convolution(self._of("x").dim, self._of("w").dim, *how)
        if self.form == "fprop":
            value = convolution.forward(arrays["x"], arrays["w"])
        elif self.form == "dgrad":
            value = convolution.by_input(arrays["y"], arrays["w"])
        else:
            value = convolution.by_weight(arrays["y"], arrays["x"])
        out = self._view(self.result, pack[self.result.uid])
        out[:] = value.astype(out.dtype)


class CudnnModule:
    """The module.

    Attributes:
        convolutions: what was computed: form, data type and engine.
        graphs: those that were built.
        refuses: whether it has no engine.
    """

    data_type, heur_mode, numerical_note = DataType, HeurMode, SimpleNamespace(**NOTES)

    def __init__(self, driver: Driver) -> None:
        self.driver, self.handle, self.stream = driver, "handle", 0
        self.convolutions: list[tuple[str, str, str]] = []
        self.graphs: list[Graph] = []
        self.refuses = False

    def backend_version(self) -> int:
        return 92801

    def create_handle(self) -> str:
        return self.handle

    def set_stream(self, handle: str, stream: int) -> None:
        assert handle == self.handle
        self.stream = stream

    def pygraph(self, **given: Any) -> Graph:
        return Graph(self, **given)


@contextlib.contextmanager
def pretended_cudnn() -> Iterator[CudnnModule]:
    """Device ``cuda`` is the pretended GPU inside, on which this library is installed."""
    with pretended_gpu() as driver, pytest.MonkeyPatch.context() as patch:
        library = CudnnModule(driver)
        patch.setattr(cudnn.Cudnn, "bindings", staticmethod(lambda op="": library))
        machine: Any = registry.get(as_device("cuda"))
        machine.target = replace(machine.target, libraries=("cudnn",))
        yield library


__all__ = ["CudnnModule", "pretended_cudnn"]
