"""What a library computes: plain data, which a backend turns into a call."""

from __future__ import annotations

from typing import NamedTuple


class LibraryMatrix(NamedTuple):
    """A matrix for each batch, by columns, as BLAS counts them.

    Attributes:
        rows, columns: of the matrix in memory.
        stride: elements from column to column.
        apart: elements from one batch's matrix to the next.
        offset: elements before the first.
    """

    rows: int
    columns: int
    stride: int
    apart: int
    offset: int


class LibraryProduct(NamedTuple):
    """``result = activation(op(first) @ op(second) + bias)``, by columns: the transpose of ours.

    Attributes:
        provider: the library.
        dtype: of operands, bias and result.
        compute: in which arithmetic, as the library names it.
        first, second, result: the matrices.
        transposed: whether op is the transpose, of first and second.
        batches: how many matrices.
        bias: elements before the bias's first; None: there is none.
        activation: ``relu``, ``gelu`` (by tanh) or empty.
        workspace: bytes that the call may use.
        words: which of a launch's parameters are first, second, result, workspace and bias.
    """

    provider: str
    dtype: str
    compute: str
    first: LibraryMatrix
    second: LibraryMatrix
    result: LibraryMatrix
    transposed: tuple[bool, bool]
    batches: int
    bias: int | None
    activation: str
    workspace: int
    words: tuple[int, ...]


class LibraryTransform(NamedTuple):
    """Fourier transforms of rows, without a factor; the results lie one behind the other.

    Attributes:
        provider: the library.
        kind: of its operands and results, as cuFFT names it: ``C2C``, ``D2Z``, ...
        n: points of a row, before a real result or behind a real operand loses half of them.
        batches: how many rows.
        stride: elements from one point of an operand's row to the next.
        apart: elements from row to row.
        offset: elements before the first.
        inverse: whether the exponent is positive.
        words: which of a launch's parameters are the operand and the result.
    """

    provider: str
    kind: str
    n: int
    batches: int
    stride: int
    apart: int
    offset: int
    inverse: bool
    words: tuple[int, ...]


LibraryCall = LibraryProduct | LibraryTransform

__all__ = ["LibraryCall", "LibraryMatrix", "LibraryProduct", "LibraryTransform"]
