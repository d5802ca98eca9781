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


class LibraryTensor(NamedTuple):
    """Images, a weight, or heads of attention, in memory.

    Attributes:
        shape: as cuDNN counts axes: images, channels, rows, columns; or outputs, inputs, taps.
        strides: elements from one to the next along each axis.
        offset: elements before the first.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


class LibraryConvolution(NamedTuple):
    """A convolution, or one of its gradients; sums are float32.

    Attributes:
        provider: the library.
        form: ``fprop``, ``dgrad`` (by the input) or ``wgrad`` (by the weight), as cuDNN says.
        dtype: of operands and result.
        units: whether matrix units may multiply: float32 operands are rounded to tf32 then.
        winograd: whether transforms of tiles may be multiplied.
        first, second, result: images or cotangent, weight or images, and what the call stores.
        stride, padding, dilation: along each axis of the windows; padding at either end.
        words: which of a launch's parameters are first, second and result.
    """

    provider: str
    form: str
    dtype: str
    units: bool
    winograd: bool
    first: LibraryTensor
    second: LibraryTensor
    result: LibraryTensor
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    words: tuple[int, ...]


class LibraryAttention(NamedTuple):
    """Attention of heads without the matrix of their scores, or its gradients.

    Attributes:
        provider: the library.
        form: ``forward`` or ``backward``.
        dtype: of all tensors but the logarithms of rows' sums, which are float32.
        causal: whether a query sees keys up to its own position.
        scale: of scores.
        tensors: of shape (batch, heads, rows, columns). Forward: queries, keys, values, the result
            and, if they are wanted, the logarithms; backward: queries, keys, values, the result,
            its cotangent, the logarithms, and the gradients by the first three.
        words: which of a launch's parameters the tensors are.
    """

    provider: str
    form: str
    dtype: str
    causal: bool
    scale: float
    tensors: tuple[LibraryTensor, ...]
    words: tuple[int, ...]


LibraryCall = LibraryProduct | LibraryTransform | LibraryConvolution | LibraryAttention

__all__ = [
    "LibraryAttention", "LibraryCall", "LibraryConvolution", "LibraryMatrix", "LibraryProduct",
    "LibraryTensor", "LibraryTransform",
]  # fmt: skip
