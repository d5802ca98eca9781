"""nn.grad: the gradients of convolutions as functions of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.graph.node import gradient_mode, mode
from tinygrad_cuda.nn.functional.convolutions import conv1d, conv2d, conv3d
from tinygrad_cuda.tensors.backward import grad
from tinygrad_cuda.tensors.creation import zeros
from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "conv1d_input", "conv1d_weight", "conv2d_input", "conv2d_weight", "conv3d_input",
    "conv3d_weight",
]  # fmt: skip

Sizes = int | Sequence[int]


def _of(conv: Callable[[Tensor], Tensor], shape: Sequence[int], grad_output: Tensor) -> Tensor:
    """The gradient by an operand, whose values are free: the convolution is linear in it."""
    further = mode.now.gradients
    with gradient_mode(True):
        operand = zeros(
            tuple(shape), dtype=grad_output.dtype, device=grad_output.device, requires_grad=True
        )
        gradients: Any = grad(conv(operand), (operand,), (grad_output,), create_graph=further)
    found: Tensor = gradients[0]
    return found if further else found.detach()


def conv1d_input(
    input_size: Sequence[int], weight: Tensor, grad_output: Tensor, stride: Sizes = 1,
    padding: Any = 0, dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """The gradient of `conv1d` by its input.

    Args:
        input_size: the input's shape, (n, c, l).
        weight: (k, c / groups, t).
        grad_output: the gradient by the result, (n, k, l').
        stride, padding, dilation, groups: as they were given to `conv1d`.

    Raises:
        ShapeError: grad_output has not the result's shape.

    Example:
        >>> import tinygrad_cuda as tc
        >>> weight, g = tc.ones(1, 1, 2, device="cpu"), tc.ones(1, 1, 2, device="cpu")
        >>> conv1d_input((1, 1, 3), weight, g).tolist()
        [[[1.0, 2.0, 1.0]]]
    """
    return _of(
        lambda x: conv1d(x, weight, None, stride, padding, dilation, groups),
        input_size, grad_output,
    )  # fmt: skip


def conv1d_weight(
    input: Tensor, weight_size: Sequence[int], grad_output: Tensor, stride: Sizes = 1,
    padding: Any = 0, dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """The gradient of `conv1d` by its weight, of the shape ``weight_size``; see `conv1d_input`.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x, g = tc.ones(1, 1, 3, device="cpu"), tc.ones(1, 1, 2, device="cpu")
        >>> conv1d_weight(x, (1, 1, 2), g).tolist()
        [[[2.0, 2.0]]]
    """
    return _of(
        lambda w: conv1d(input, w, None, stride, padding, dilation, groups),
        weight_size, grad_output,
    )  # fmt: skip


def conv2d_input(
    input_size: Sequence[int], weight: Tensor, grad_output: Tensor, stride: Sizes = 1,
    padding: Any = 0, dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """The gradient of `conv2d` by its input, of the shape ``input_size``; see `conv1d_input`.

    Example:
        >>> import tinygrad_cuda as tc
        >>> weight, g = tc.ones(1, 1, 2, 2, device="cpu"), tc.ones(1, 1, 1, 1, device="cpu")
        >>> conv2d_input((1, 1, 2, 2), weight, g).tolist()
        [[[[1.0, 1.0], [1.0, 1.0]]]]
    """
    return _of(
        lambda x: conv2d(x, weight, None, stride, padding, dilation, groups),
        input_size, grad_output,
    )  # fmt: skip


def conv2d_weight(
    input: Tensor, weight_size: Sequence[int], grad_output: Tensor, stride: Sizes = 1,
    padding: Any = 0, dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """The gradient of `conv2d` by its weight, of the shape ``weight_size``; see `conv1d_input`.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x, g = tc.ones(1, 1, 2, 2, device="cpu"), tc.ones(1, 1, 1, 1, device="cpu")
        >>> conv2d_weight(x, (1, 1, 2, 2), g).sum().item()
        4.0
    """
    return _of(
        lambda w: conv2d(input, w, None, stride, padding, dilation, groups),
        weight_size, grad_output,
    )  # fmt: skip


def conv3d_input(
    input_size: Sequence[int], weight: Tensor, grad_output: Tensor, stride: Sizes = 1,
    padding: Any = 0, dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """The gradient of `conv3d` by its input, of the shape ``input_size``; see `conv1d_input`.

    Example:
        >>> import tinygrad_cuda as tc
        >>> weight, g = tc.ones(1, 1, 1, 1, 1, device="cpu"), tc.ones(1, 1, 2, 2, 2, device="cpu")
        >>> conv3d_input((1, 1, 2, 2, 2), weight, g).sum().item()
        8.0
    """
    return _of(
        lambda x: conv3d(x, weight, None, stride, padding, dilation, groups),
        input_size, grad_output,
    )  # fmt: skip


def conv3d_weight(
    input: Tensor, weight_size: Sequence[int], grad_output: Tensor, stride: Sizes = 1,
    padding: Any = 0, dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """The gradient of `conv3d` by its weight, of the shape ``weight_size``; see `conv1d_input`.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x, g = tc.ones(1, 1, 2, 2, 2, device="cpu"), tc.ones(1, 1, 2, 2, 2, device="cpu")
        >>> conv3d_weight(x, (1, 1, 1, 1, 1), g).item()
        8.0
    """
    return _of(
        lambda w: conv3d(input, w, None, stride, padding, dilation, groups),
        weight_size, grad_output,
    )  # fmt: skip


if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
