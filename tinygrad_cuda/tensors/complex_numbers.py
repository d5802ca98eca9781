"""Complex numbers: made of parts, taken apart, conjugated; each part shares the tensor's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.errors import DTypeError, ShapeError
from tinygrad_cuda.core.shapes import contiguous_strides
from tinygrad_cuda.graph.ops import elementwise
from tinygrad_cuda.graph.ops.common import require_dtype
from tinygrad_cuda.tensors.arguments import no_tensor
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.layout import strides_like
from tinygrad_cuda.tensors.promotion import promote
from tinygrad_cuda.tensors.views import COMPLEX, IMAG, PAIRS, REAL

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "complex", "conj", "conj_physical", "imag", "is_complex", "polar", "real", "view_as_complex",
    "view_as_real",
]  # fmt: skip


def _tensor(op: str, input: Any) -> Any:
    if not isinstance(input, TensorBase):
        raise no_tensor(op, "input", input)
    return input


def _two_floats(op: str, names: tuple[str, str], a: Any, b: Any) -> Any:
    first, second = _tensor(op, a).dtype, _tensor(op, b).dtype
    if first is not second or first not in (dtypes.float32, dtypes.float64):
        raise DTypeError(
            op, "the parts are not of one floating dtype", expect="float32 or float64, twice",
            actual=f"{names[0]} {first.name}, {names[1]} {second.name}",
            hint="cast them: x.float()",
        )  # fmt: skip
    return promote(op, a, b)


def complex(real: Tensor, imag: Tensor) -> Tensor:
    """``real + i * imag``, with broadcasting.

    Args:
        real, imag: both float32, which gives complex64, or both float64, which gives complex128.

    Raises:
        DTypeError: they are not.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.complex(tc.tensor([1.0, 2.0], device="cpu"), tc.tensor([0.0, -1.0], device="cpu"))
        tensor([1.+0.j, 2.-1.j])
    """
    nodes = _two_floats("complex", ("real", "imag"), real, imag)
    return strides_like(wrap(elementwise.complex_(*nodes)), real, imag)


def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """``abs * (cos(angle) + i * sin(angle))``; dtypes as of `complex`.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.polar(tc.tensor([2.0], device="cpu"), tc.tensor([0.0], device="cpu"))
        tensor([2.+0.j])
    """
    size, turn = _two_floats("polar", ("abs", "angle"), abs, angle)
    parts = (elementwise.mul(size, part(turn)) for part in (elementwise.cos, elementwise.sin))
    return strides_like(wrap(elementwise.complex_(*parts)), abs, angle)


def _part(input: Any, view: Any) -> Tensor:
    strides = tuple(2 * stride for stride in input.strides)
    part: Tensor = input.complex_view(view, strides)
    return part


def real(input: Tensor) -> Tensor:
    """The real part, on the same memory: a write to it is seen in `input`; a real tensor itself."""
    return _part(input, REAL) if _tensor("real", input).dtype.is_complex else input


def imag(input: Tensor) -> Tensor:
    """The imaginary part, on the same memory: a write to it is seen in `input`.

    Raises:
        DTypeError: the tensor is real.
    """
    require_dtype("imag", _tensor("imag", input).node, "complex")
    return _part(input, IMAG)


def set_real(input: Tensor, value: Any) -> None:
    """``input.real = value``."""
    real(input).copy_(value)


def set_imag(input: Tensor, value: Any) -> None:
    """``input.imag = value``."""
    imag(input).copy_(value)


def conj(input: Tensor) -> Tensor:
    """``real - i * imag``, a new tensor (in PyTorch a view); a real tensor itself.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.tensor([1 + 2j], device="cpu").conj()
        tensor([1.-2.j])
    """
    if not _tensor("conj", input).dtype.is_complex:
        return input
    return strides_like(wrap(elementwise.conj(input.node)), input)


conj_physical = conj


def is_complex(input: Tensor) -> bool:
    """Whether the dtype is one of complex numbers."""
    return bool(_tensor("is_complex", input).dtype.is_complex)


def view_as_real(input: Tensor) -> Tensor:
    """Real and imaginary parts as the last dimension, of size 2, on the same memory.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.view_as_real(tc.tensor([1 + 2j], device="cpu")).tolist()
        [[1.0, 2.0]]
    """
    require_dtype("view_as_real", _tensor("view_as_real", input).node, "complex")
    strides = (*(2 * stride for stride in input.strides), 1)
    return _viewed(input, PAIRS, strides)


def view_as_complex(input: Tensor) -> Tensor:
    """Pairs of numbers in the last dimension, of size 2, as complex ones on the same memory.

    Raises:
        ShapeError: the last dimension has another size.
        DTypeError: the dtype is neither float32 nor float64.
    """
    node = _tensor("view_as_complex", input).node
    if node.dtype not in (dtypes.float32, dtypes.float64):
        raise DTypeError(
            "view_as_complex", "no complex number has such parts", expect="float32 or float64",
            actual=node.dtype.name,
        )  # fmt: skip
    *rest, last = input.strides or (1,)
    apart = not node.shape or node.shape[-1] != 2 or last != 1 or any(s % 2 for s in rest)
    if apart:
        raise ShapeError(
            "view_as_complex", "the numbers are no pairs beside each other",
            expect="a last dimension of size 2 and stride 1, and even strides before it",
            actual=f"shape {node.shape}, strides {tuple(input.strides)}",
            hint="tc.complex(x[..., 0], x[..., 1]) takes any",
        )  # fmt: skip
    return _viewed(input, COMPLEX, tuple(stride // 2 for stride in rest))


def _viewed(input: Any, view: Any, strides: tuple[int, ...]) -> Tensor:
    result: Tensor = input.complex_view(view, strides)
    if strides == contiguous_strides(result.node.shape):
        result._strides = None
    return result
