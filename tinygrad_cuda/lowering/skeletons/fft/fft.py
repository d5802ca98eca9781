"""FFT: text of the transforms of rows, and which of them a kernel takes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

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
from tinygrad_cuda.lowering.skeletons.contract.library import in_memory, strides_of
from tinygrad_cuda.lowering.target import Target

CUH = "fft.cuh"
LISTED_BYTES = 32 << 10  # of a stage's table of roots, that the L1 cache may keep it
LONG_PRODUCTS = 1 << 27  # of a row and a frequency, 8 times which is a 32-bit number
BANKS = 16  # of 8 bytes in shared memory; after so many points one is free


class FftCut(NamedTuple):
    """How a block transforms rows.

    Attributes:
        radices: of its stages, from the first to the last.
        points: of a block at most, where a row has not more.
        roots: ``listed`` in a table, of which large ones have a row whose powers are the others,
            or ``computed``.
        blocks: on a multiprocessor, for which registers are left.
        threads: of a block.
    """

    radices: tuple[int, ...]
    points: int
    roots: str = "listed"
    blocks: int = 1
    threads: int = THREADS


# THE table of measured choices, by points of a row and bytes of a real number; `cut_of` has the
# rest. `python -m lab.fft --variants` on a GPU measures others.
CUTS: dict[tuple[int, int], FftCut] = {
    (1000, 4): FftCut((8, 5, 5, 5), 4096, blocks=4),
    (8192, 4): FftCut((8, 16, 16, 4), 8192, blocks=2, threads=512),
    (16384, 4): FftCut((16, 16, 16, 4), 16384, blocks=1, threads=1024),
}
# Rows of the op table whose real rows of an even length are complex ones of half of it, "rfft" or
# "irfft": a third fewer instructions, for errors that are 2 to 10 % and 20 % larger. Real rows of
# 4096 take 42 us for 47 on an H200; spectra of 129, which then leave more lanes idle, 49 for 39.
HALVED = {"rfft"}


def cut_of(n: int, itemsize: int, columns: bool = False) -> FftCut:
    """How rows are transformed.

    Args:
        n: points of a row.
        itemsize: of a real number, in bytes.
        columns: whether the same points of neighbouring rows are neighbours in memory.
    """
    cut = CUTS.get((n, itemsize))
    if cut is None:
        radices = radices_of(n, 16 if itemsize == 4 else 8)
        wide = columns or max(radices) > 8 or n & (n - 1)
        # A thread has 16 points in flight, or 8; 64 registers hold 16 of float32.
        cut = FftCut(radices, 4096 if wide else 2048, blocks=4 if itemsize == 4 else 1)
    return cut


def refusal(node: Node, target: Target) -> str:
    """Why no kernel transforms rows of this length; empty if one does."""
    n, itemsize = fft.row_length(node), node.dtype.to_real().itemsize
    limit = fft.longest(node.dtype)
    if n == 1:
        return "a row of one point is its own transform"
    if (n, itemsize) in CUTS and 2 * n * itemsize * (BANKS + 1) // BANKS <= target.block_shared:
        return ""
    if not fft.is_smooth(n):
        return f"{n} has a prime factor above {max(fft.PRIMES)}"
    return f"{n} points, a block takes {limit}" if n > limit else ""


def radices_of(n: int, widest: int = 16) -> tuple[int, ...]:
    """The radices whose product is n: odd ones, then powers of two, large ones first.

    Args:
        n: points of a row.
        widest: the largest power of two that a thread transforms.
    """
    exponents = fft.factors(n)
    twos, most = exponents.pop(2, 0), widest.bit_length() - 1
    odd = tuple(prime for prime, count in exponents.items() for _ in range(count))
    stages = -(-twos // most)
    few, more = divmod(twos, stages) if stages else (0, 0)
    return odd + (2 ** (few + 1),) * more + (2**few,) * (stages - more)


def fft_stages(kernel: Kernel) -> list[Stage]:
    """One stage."""
    return [_Transform(kernel).stage()]


class _Transform:
    """The text of one kernel.

    Attributes:
        n: points of a row.
        halved: whether a real row of an even length is a complex one of half its length.
        m: complex points that a row has in shared memory.
        parted: whether the spectrum of such a row is parted into those of its even and odd points.
        gathered, scattered: whether neighbouring threads load, or store, neighbouring rows.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        (self.node,) = kernel.anchors
        self.n, (self.source,) = fft.row_length(self.node), self.node.sources
        self.halved = self.node.op.name in HALVED and self.n % 2 == 0 and self.n > 2
        self.m = self.n // 2 if self.halved else self.n
        self.parted = self.halved and self.node.op is fft.rfft
        self.batch = prod(self.source.shape[:-1])
        self.real = self.node.dtype.to_real()
        self.scattered = self.node.op is fft.fft_columns
        columns = _reads_columns(self.source)
        self.cut = cut_of(self.m, self.real.itemsize, columns or self.scattered)
        self.gathered = columns and len(self.cut.radices) > 1
        several = min(self.cut.points // self.m, -(-self.batch // kernel.target.multiprocessors))
        self.rows = max(1, several)
        self.padded = self.m & (self.m - 1) == 0 and self.m > BANKS
        self.pitch = self._pitch()
        self.inverse = self.node.op is fft.irfft or bool(self.node.attributes.get("inverse"))
        self.params = KernelParams()
        self.wide = is_wide(kernel)
        self.reader = Evaluator(self.params, set(kernel.reads), self.wide, kernel.narrowed)
        self.outer = Scope()

    def stage(self) -> Stage:
        """The stage, from its parts."""
        radices, done, parts = self.cut.radices, 1, list[str]()
        for number, radix in enumerate(radices):
            parts += self._stage(radix, done, number == len(radices) - 1).splitlines()
            done *= radix
        if self.parted:
            parts += self._parting().splitlines()
        body = folded(fill(CUH, "body", real=self.real.c, stages=[*self.outer.lines, *parts]))
        blocks = -(-self.batch // self.rows)
        label = comment(
            self.kernel,
            f"{self.node.op.name} of {self.batch} rows of {self.n} points, radices "
            f"{'2 ' * self.halved}{' '.join(map(str, radices))}, {self.rows} rows a block, "
            f"{flops(self.node)} FLOPs",
            blocks,
        ).replace(f"x {THREADS} threads", f"x {self.cut.threads} threads")
        used = len(radices) > 1 or self.parted
        shared = self.rows * self.pitch * 2 * self.real.itemsize if used else 0
        made = wrapped(
            self.kernel, stem(self.kernel), body, self.params.list, blocks, shared, label
        )
        made.min_blocks_per_sm, made.threads = self.cut.blocks, self.cut.threads
        return made

    def _stage(self, radix: int, done: int, last: bool) -> str:
        strides, threads = self.m // radix, self.cut.threads
        items = self.rows * strides
        sizes = {
            "real": self.real.c, "radix": radix, "done": done, "strides": strides,
            "threads": threads, "passes": -(-items // threads),
            "index": "long long" if self.wide else "int",
        }  # fmt: skip
        across = (done == 1 and self.gathered) or (last and self.scattered)
        position, barrier = self._position(strides, across), ["__syncthreads();"]
        shared = not last or self.parted
        write = self._to_shared(sizes, done * radix) if shared else self._write(sizes)
        read = self._from_shared(sizes) if done > 1 else self._read(sizes)
        made = [*position, *read.splitlines(), *self._turn(radix, done)]
        made.append(f"tgc_fft_butterfly<{radix}>(v[pass]);")
        inside = f"item < {items}" if items % threads else ""
        return fill(
            CUH, "stage", made=_guarded(inside, made),
            left=_guarded(inside, [*position, *write.splitlines()]),
            wait=barrier if done > 1 and shared else [], ready=barrier if shared else [], **sizes,
        )  # fmt: skip

    def _position(self, strides: int, across: bool) -> list[str]:
        """Which row of the block, and which point of it, a thread takes.

        Args:
            strides: from one point of a thread to its next.
            across: whether neighbours take neighbouring rows.
        """
        if self.rows == 1:
            return ["const int j = item;"]
        if across:
            return [f"const int own = item % {self.rows}, j = item / {self.rows};"]
        return [f"const int own = item / {strides}, j = item % {strides};"]

    def _turn(self, radix: int, done: int) -> list[str]:
        """The roots of unity between two stages."""
        if done == 1:
            return []
        large = (radix - 1) * done * 2 * self.real.itemsize > LISTED_BYTES
        suffix = "_computed" if self.cut.roots == "computed" else "_powers" if large else ""
        k = f"j % {done}" if done < self.m // radix else "j"
        return [f"tgc_fft_turn{suffix}<{done}, {radix}>(v[pass], {k});"]

    # Shared memory

    def _pitch(self) -> int:
        """Points from one row to the next in shared memory.

        Of the fewest in which threads that take neighbouring rows meet in few banks.
        """
        least = self.m + self.m // BANKS if self.padded else self.m
        taken = list[int]()
        if self.rows > 1 and self.gathered:
            taken.append(self.cut.radices[0])
        if self.rows > 1 and self.scattered:
            taken.append(1)

        def meeting(pitch: int) -> int:
            return sum(_conflicts(self.rows, pitch, step, self.padded) for step in taken)

        return min(range(least, least + BANKS), key=meeting) if taken else least

    def _line(self) -> str:
        """The row of a thread."""
        return "line" if self.rows == 1 else f"line + own * {self.pitch}"

    def _shared_index(self, point: str, step: int) -> dict[str, str]:
        """Where points lie that are so far apart: the first one, and the others behind it."""
        if not self.padded:
            return {"place": point, "offset": f"r * {step}"}
        even = step % BANKS == 0
        offset = f"r * {step + step // BANKS}" if even else f"tgc_fft_padded(r * {step})"
        return {"place": f"tgc_fft_padded({point})", "offset": offset}

    def _from_shared(self, sizes: dict[str, object]) -> str:
        place = self._shared_index("j", self.m // int(str(sizes["radix"])))
        return fill(CUH, "read_shared", line=self._line(), **place, **sizes)

    def _to_shared(self, sizes: dict[str, object], together: int) -> str:
        done = int(str(sizes["done"]))
        point = f"j * {together}" if done == 1 else f"j / {done} * {together} + j % {done}"
        if together == self.m:
            point = "j"
        place = self._shared_index(point, done)
        return fill(CUH, "write_shared", line=self._line(), **place, **sizes)

    # Memory

    def _row(self) -> str:
        """The number of a thread's row."""
        block = "(long long)virtual_block" if self.wide else "virtual_block"
        return block if self.rows == 1 else f"{block} * {self.rows} + own"

    @property
    def _inside(self) -> str:
        """Whether a row is one of the operand's; empty if each is."""
        return f"row < {self.batch}" if self.batch % self.rows else ""

    def _read(self, sizes: dict[str, object]) -> str:
        load = self._half() if self.node.op is fft.irfft else self._whole()
        value = "tgc_fft_exchanged(value)" if self.inverse else "value"
        ctype = f"tgc_complex<{self.real.c}>"
        if self._inside:
            load = [f"{ctype} value(0);", *_guarded(self._inside, load)]
        else:
            load = [f"{ctype} {line}" if line.startswith("value =") else line for line in load]
        return fill(CUH, "read_memory", load=load, value=value, row=self._row(), **sizes)

    def _elements(self, positions: Sequence[ix.Index]) -> tuple[list[str], list[str]]:
        """Statements that load elements of a row, and their values."""
        scope = Scope("row", "point", "at")
        self.reader.scopes, self.reader.lane = [self.outer, scope], None
        row = ix.unflatten(ix.variable("row", self.batch), self.source.shape[:-1])
        values = [self.reader.value(self.source, (*row, position)) for position in positions]
        return scope.lines, values

    def _whole(self) -> list[str]:
        point = ix.variable("point", self.m)
        if self.halved:
            lines, values = self._elements([point * 2, point * 2 + 1])
            return [*lines, f"value = tgc_complex_of({', '.join(values)});"]
        lines, values = self._elements([point])
        return [*lines, f"value = {values[0]};"]

    def _half(self) -> list[str]:
        """Of half a spectrum: the other half is its conjugate, and the ends are real."""
        half = self.source.shape[-1]
        at, point = ix.variable("at", half), ix.variable("point", self.m)
        if self.halved:
            lines, values = self._elements([point, at])
            root = f"tgc_fft_listed<{self.real.c}, {self.m}, 2, 1>(1, point)"
            return [
                f"const int at = {self.m} - point;", *lines,
                f"value = tgc_fft_joined(point, {', '.join(values)}, {root});",
            ]  # fmt: skip
        edges = "at == 0" if self.n % 2 else f"at == 0 || at == {half - 1}"
        lines, (value,) = self._elements([at])
        return [
            f"const bool mirrored = point >= {half};",
            f"const int at = mirrored ? {self.n} - point : point;", *lines, f"value = {value};",
            f"value.im = {edges} ? 0 : mirrored ? -value.im : value.im;",
        ]  # fmt: skip

    def _write(self, sizes: dict[str, object]) -> str:
        conditions = [self._inside] if self._inside else []
        size = self.n if self.scattered else self.node.shape[-1]
        if size < self.m:
            conditions.append(f"point < {size}")
        scope = self._storing()
        row, point = ix.variable("row", self.batch), ix.variable("point", size)
        if self.node.op is fft.irfft and self.halved:
            self._store(row * size + ix.variable("point", self.m) * 2, "value.re")
            self._store(row * size + ix.variable("point", self.m) * 2 + 1, "value.im")
        elif self.node.op is fft.irfft:
            self._store(row * size + point, "value.re")
        else:
            self._store(self._index(size), "value")
        lines = [f"const tgc_complex<{self.real.c}> value = {self._result()};", *scope.lines]
        store = _guarded(" && ".join(conditions), lines)
        return fill(CUH, "write_memory", store=store, row=self._row(), **sizes)

    def _parting(self) -> str:
        """The spectrum of a real row from that of its even and odd points as complex numbers."""
        count, size, threads = self.m // 2 + 1, self.node.shape[-1], self.cut.threads
        items = self.rows * count
        scope = self._storing("row", "k", "other")
        row, k = ix.variable("row", self.batch), ix.variable("k", count)
        self._store(row * size + k, "low")
        self._store(row * size + (ix.variable("k", count) * -1 + self.m), "high")
        position = self._position(count, False)
        sizes = {
            "real": self.real.c, "m": self.m, "line": self._line(), "threads": threads,
            "items": items, "index": "long long" if self.wide else "int", "row": self._row(),
            "position": [line.replace(" j ", " k ") for line in position],
            "place": "tgc_fft_padded(k)" if self.padded else "k",
            "opposite": "tgc_fft_padded(other)" if self.padded else "other",
        }  # fmt: skip
        return fill(CUH, "parting", store=_guarded(self._inside, scope.lines), **sizes)

    def _storing(self, *names: str) -> Scope:
        """Where the statements go that store."""
        scope = Scope(*(names or ("row", "point")))
        self.reader.scopes, self.reader.lane = [self.outer, scope], None
        return scope

    def _store(self, index: ix.Index, value: str) -> None:
        """Stores a number times the scale."""
        scale = float(self.node.attributes["scale"])
        if scale != 1:
            number = literal(scale, self.real)
            if self.node.op is fft.irfft:
                value = f"{number} * {value}"
            else:
                value = f"tgc_complex_of({number} * {value}.re, {number} * {value}.im)"
        Stores(self.reader, self.kernel).put(self.kernel.stores[0], index, value)

    def _result(self) -> str:
        """A frequency as the transform leaves it, or turned for the next transform."""
        value = "v[pass][r]"
        if self.node.attributes.get("turn"):
            rows = self.source.shape[-2]
            total, own = rows * self.m, "row" if rows == self.batch else f"row % {rows}"
            if self.wide or total > LONG_PRODUCTS:
                root = f"(long long)({own}) * point, {total}LL"
            else:
                root = f"{own} * point, {total}"
            root = f"tgc_fft_root<{self.real.c}>({root})"
            value = f"tgc_fft_times({value}, {root})"
        return f"tgc_fft_exchanged({value})" if self.inverse else value

    def _index(self, size: int) -> ix.Index:
        """Where a frequency is stored."""
        row, point = ix.variable("row", self.batch), ix.variable("point", size)
        if not self.scattered:
            return row * size + point
        rows = self.source.shape[-2]
        head, own = ix.unflatten(row, (self.batch // rows, rows))
        return (head * size + point) * rows + own


def _conflicts(rows: int, pitch: int, step: int, padded: bool) -> int:
    """How many of 16 threads meet in one bank, which take neighbouring rows before next points.

    Args:
        rows: of a block.
        pitch: points from row to row.
        step: from point to point.
        padded: whether one of 17 points is free.
    """
    points = [(item % rows, item // rows * step) for item in range(BANKS)]
    free = BANKS if padded else 1 << 30
    banks = [(row * pitch + point + point // free) % BANKS for row, point in points]
    return max(map(banks.count, banks))


def _reads_columns(source: Node) -> bool:
    """Whether the same points of neighbouring rows are nearer in memory than those of a row."""
    base, names = in_memory(source), [f"axis{axis}" for axis in range(len(source.shape))]
    if base is None:
        return False
    at = [ix.variable(name, size) for name, size in zip(names, source.shape)]
    strided = strides_of(source, at, base, names)
    if strided is None:
        return False
    steps = [strided[0][name] for name, size in zip(names, source.shape) if size > 1]
    return len(steps) > 1 and 0 < steps[-2] < steps[-1]


def _guarded(condition: str, lines: list[str]) -> list[str]:
    """Statements that run where a condition holds; always if there is none."""
    if not condition:
        return lines
    return [
        f"if ({condition}) {{",
        *(f"  {line}" if line[:1] != "#" else line for line in lines),
        "}",
    ]


__all__ = ["CUTS", "HALVED", "FftCut", "cut_of", "fft_stages", "radices_of", "refusal"]
