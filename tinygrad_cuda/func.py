"""tc.func: functions made of functions, as in `torch.func`."""

from typing import TYPE_CHECKING

from tinygrad_cuda.autograd.batched import vmap
from tinygrad_cuda.autograd.transforms import (
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    vjp,
)
from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.nn.stateless import functional_call, stack_module_state

__all__ = [
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "stack_module_state",
    "vjp",
    "vmap",
]


if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
