"""tc.autograd.Variable: what Tensors that require grad were called before PyTorch 0.4."""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.tensor import Tensor


class _Every(type):
    """Every Tensor is a Variable, and calling it makes a Tensor."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, TensorBase)

    def __call__(
        cls, data: Any = None, requires_grad: bool = False, volatile: Any = None
    ) -> Tensor:
        if not isinstance(data, Tensor):
            raise ArgumentError(
                "Variable", "needs a Tensor", expect="a Tensor", actual=type(data).__name__,
                hint="tc.tensor(data)",
            )  # fmt: skip
        return data.detach().requires_grad_(requires_grad)


class Variable(metaclass=_Every):
    """A handle on a Tensor, with a `.grad` of its own if `requires_grad` is true.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = Variable(tc.ones(2, device="cpu"), requires_grad=True)
        >>> (x * x).sum().backward()
        >>> isinstance(x, Variable), x.grad.tolist()
        (True, [2.0, 2.0])
    """
