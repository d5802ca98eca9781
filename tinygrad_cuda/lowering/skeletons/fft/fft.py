"""FFT: text of the transforms of rows, and which of them a kernel takes."""

from __future__ import annotations

from math import prod

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import fft
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.constant_folding import folded
from tinygrad_cuda.lowering.codegen.expression import Evaluator, Scope, Stores, is_wide, literal
from tinygrad_cuda.lowering.codegen.skeleton import (
    THREADS,
    KernelParams,
    Stage,
    comment,
    fill,
    stem,
    wrapped,
)
from tinygrad_cuda.lowering.schedule.cost import flops
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.target import Target

CUH = "fft.cuh"
POINTS = 2048  # of a block with several rows: 8 for each thread


def refusal(node: Node, target: Target) -> str:
    """Why no kernel transforms rows of this length; empty if one does."""
    n = fft.row_length(node)
    limit = fft.longest(node.dtype)
    if n == 1:
        return "a row of one point is its own transform"
    if not fft.is_smooth(n):
        return f"{n} has a prime factor above {max(fft.PRIMES)}"
    return f"{n} points, a block takes {limit}" if n > limit else ""


def radices_of(n: int) -> list[int]:
    """The radices whose product is n, large ones first."""
    found = fft.factors(n)
    twos = found.pop(2, 0)
    radices = [8] * (twos // 3) + [2 ** (twos % 3)] * (twos % 3 > 0)
    if twos % 3 == 1 and twos > 3:  # 4 * 4 has as many passes as 8 * 2, of less work
        radices[-2:] = [4, 4]
    return radices + [prime for prime, count in found.items() for _ in range(count)]


def fft_stages(kernel: Kernel) -> list[Stage]:
    """One stage."""
    return [_Transform(kernel).stage()]


class _Transform:
    """The text of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        (self.node,) = kernel.anchors
        self.n, (self.source,) = fft.row_length(self.node), self.node.sources
        self.batch = prod(self.node.shape[:-1])
        several = min(POINTS // self.n, -(-self.batch // kernel.target.multiprocessors))
        self.rows = max(1, several)
        self.real = self.node.dtype.to_real()
        self.inverse = self.node.op is fft.irfft or bool(self.node.attributes.get("inverse"))
        self.params = KernelParams()
        self.wide = is_wide(kernel)
        self.reader = Evaluator(self.params, set(kernel.reads), self.wide, kernel.narrowed)
        self.outer = Scope()

    def stage(self) -> Stage:
        """The stage, from its parts."""
        radices, done, parts = radices_of(self.n), 1, []
        for number, radix in enumerate(radices):
            parts += self._stage(radix, done, number == len(radices) - 1).splitlines()
            done *= radix
        body = folded(fill(CUH, "body", real=self.real.c, stages=[*self.outer.lines, *parts]))
        blocks = -(-self.batch // self.rows)
        label = comment(
            self.kernel,
            f"{self.node.op.name} of {self.batch} rows of {self.n} points, radices "
            f"{' '.join(map(str, radices))}, {self.rows} rows a block, {flops(self.node)} FLOPs",
            blocks,
        )
        shared = self.rows * self.n * 2 * self.real.itemsize if len(radices) > 1 else 0
        return wrapped(
            self.kernel, stem(self.kernel), body, self.params.list, blocks, shared, label
        )

    def _stage(self, radix: int, done: int, last: bool) -> str:
        strides = self.n // radix
        items = self.rows * strides
        sizes = {
            "real": self.real.c, "radix": radix, "done": done, "together": done * radix,
            "strides": strides, "items": items, "threads": THREADS, "rows": self.rows,
            "passes": -(-items // THREADS), "batch": self.batch, "n": self.n,
            "index": "long long" if self.wide else "int",
        }  # fmt: skip
        write = self._write(sizes) if last else fill(CUH, "write_shared", **sizes)
        read = fill(CUH, "read_shared", **sizes) if done > 1 else self._read(sizes)
        barrier = ["__syncthreads();"]
        return fill(
            CUH, "stage", read=read.splitlines(),
            turn=fill(CUH, "turn", **sizes).splitlines() if done > 1 else [],
            wait=barrier if done > 1 and not last else [],
            write=write.splitlines(), ready=[] if last else barrier, **sizes,
        )  # fmt: skip

    def _read(self, sizes: dict[str, object]) -> str:
        load = self._half() if self.node.op is fft.irfft else self._whole()
        value = "tgc_complex_of(value.im, value.re)" if self.inverse else "value"
        return fill(CUH, "read_memory", load=load, value=value, **sizes)

    def _element(self, position: ix.Index) -> tuple[list[str], str]:
        """Statements that load an element of a row, and its value."""
        scope = Scope("row", "point", "at")
        self.reader.scopes, self.reader.lane = [self.outer, scope], None
        row = ix.unflatten(ix.variable("row", self.batch), self.source.shape[:-1])
        value = self.reader.value(self.source, (*row, position))
        return scope.lines, value

    def _whole(self) -> list[str]:
        lines, value = self._element(ix.variable("point", self.n))
        return [*lines, f"value = {value};"]

    def _half(self) -> list[str]:
        """Of half a spectrum: the other half is its conjugate, and the ends are real."""
        half = self.source.shape[-1]
        lines, value = self._element(ix.variable("at", half))
        edges = "at == 0" if self.n % 2 else f"at == 0 || at == {half - 1}"
        return [
            f"const bool mirrored = point >= {half};",
            f"const int at = mirrored ? {self.n} - point : point;", *lines, f"value = {value};",
            f"value.im = {edges} ? 0 : mirrored ? -value.im : value.im;",
        ]  # fmt: skip

    def _write(self, sizes: dict[str, object]) -> str:
        size = self.node.shape[-1]
        kept = f"row < {self.batch}"
        if size < self.n:
            kept += f" && point < {size}"
        result = "v[pass][r]"
        if self.inverse:
            result = "tgc_complex_of(v[pass][r].im, v[pass][r].re)"
        scope = Scope("row", "point")
        self.reader.scopes, self.reader.lane = [self.outer, scope], None
        value = "value.re" if self.node.op is fft.irfft else "value"
        scale = float(self.node.attributes["scale"])
        if scale != 1:
            number = literal(scale, self.real)
            value = f"{number} * value.re"
            if self.node.op is not fft.irfft:
                value = f"tgc_complex_of({value}, {number} * value.im)"
        stores = Stores(self.reader, self.kernel)
        index = ix.variable("row", self.batch) * size + ix.variable("point", size)
        stores.put(self.kernel.stores[0], index, value)
        return fill(CUH, "write_memory", kept=kept, result=result, store=scope.lines, **sizes)


__all__ = ["fft_stages", "radices_of", "refusal"]
