"""Weights computed from other parameters before each call: weight norm and spectral norm.

References: Salimans and Kingma (2016), Miyato et al. (2018).
"""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.nn.conv import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from tinygrad_cuda.nn.functional.normalizations import normalize
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.nn.parameter import Parameter
from tinygrad_cuda.tensors import reductions
from tinygrad_cuda.tensors.creation import empty
from tinygrad_cuda.tensors.tensor import Tensor

_ORIGINALS = "_reparametrized"


def _start(op: str, module: Any, name: str) -> Tensor:
    """Replaces the parameter by a computed attribute."""
    weight = module._parameters.get(name)
    if weight is None:
        raise ArgumentError(
            op, f"there is no parameter {name!r}",
            expect=", ".join(key for key, value in module._parameters.items() if value is not None),
            actual=repr(name),
        )  # fmt: skip
    delattr(module, name)
    start: Tensor = weight
    return start


def _install(module: Any, name: str, op: str, compute: Any, first: Tensor) -> None:
    setattr(module, name, first)

    def before(owner: Any, inputs: Any) -> None:
        setattr(owner, name, compute(owner))

    handle = module.register_forward_pre_hook(before)
    module.__dict__.setdefault(_ORIGINALS, {})[op, name] = (handle, compute)


def _remove(op: str, module: Any, name: str, parts: tuple[str, ...]) -> Any:
    originals = module.__dict__.get(_ORIGINALS, {})
    if (op, name) not in originals:
        raise ArgumentError(
            op, f"{name!r} is not reparametrized", expect=f"{op}(module, {name!r}) before",
            actual=type(module).__name__,
        )  # fmt: skip
    handle, compute = originals.pop((op, name))
    handle.remove()
    with gradient_mode(False):
        weight = compute(module)
    for part in parts:
        delattr(module, name + part)
    delattr(module, name)
    module.register_parameter(name, Parameter(weight.detach()))
    return module


# Weight norm --------------------------------------------------------------------------------


def lengths(weight: Tensor, dim: int | None) -> Tensor:
    """Norms over all axes but `dim`."""
    if dim is None or dim == -1:  # -1 means all, as in PyTorch
        return reductions.norm(weight)
    axes = tuple(axis for axis in range(weight.ndim) if axis != dim)
    return reductions.norm(weight, 2, axes, keepdim=True) if axes else weight.abs()


def weight_norm(module: Any, name: str = "weight", dim: int | None = 0) -> Any:
    """Makes a weight ``g v / |v|``, its length and its direction trained apart.

    Args:
        module: changed in place; its parameter becomes ``{name}_g`` and ``{name}_v``.
        name: the parameter.
        dim: the axis along which there is a length each; None or -1 for one in all.

    Returns:
        The module.

    Raises:
        ArgumentError: there is no such parameter.
    """
    weight = _start("weight_norm", module, name)
    with gradient_mode(False):
        length = lengths(weight.detach(), dim)
    module.register_parameter(f"{name}_g", Parameter(length))
    module.register_parameter(f"{name}_v", Parameter(weight.detach()))

    def compute(owner: Any) -> Tensor:
        direction: Tensor = getattr(owner, f"{name}_v")
        result: Tensor = direction * (getattr(owner, f"{name}_g") / lengths(direction, dim))
        return result

    _install(module, name, "weight_norm", compute, weight.detach())
    return module


def remove_weight_norm(module: Any, name: str = "weight") -> Any:
    """Makes the weight an ordinary parameter again, with its present value."""
    return _remove("weight_norm", module, name, ("_g", "_v"))


# Spectral norm ------------------------------------------------------------------------------


def spectral_norm(
    module: Any, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12,
    dim: int | None = None,
) -> Any:  # fmt: skip
    """Makes a weight ``W / sigma``, sigma an estimate of its largest singular value.

    Args:
        module: changed in place; its parameter becomes ``{name}_orig``, and the singular vectors,
            which power iteration refines in training, are the buffers ``{name}_u``, ``{name}_v``.
        name: the parameter.
        n_power_iterations: how often they are refined at each call.
        eps: added where a vector is divided by its length.
        dim: the axis of the outputs; 0, or 1 for transposed convolutions, when left out.

    Returns:
        The module.

    Raises:
        ArgumentError: there is no such parameter, or no iteration.
    """
    if n_power_iterations < 1:
        raise ArgumentError(
            "spectral_norm", "needs iterations", expect="n_power_iterations >= 1",
            actual=str(n_power_iterations),
        )  # fmt: skip
    transposed = isinstance(module, ConvTranspose1d | ConvTranspose2d | ConvTranspose3d)
    axis = (1 if transposed else 0) if dim is None else dim
    weight = _start("spectral_norm", module, name)

    def as_matrix(w: Tensor) -> Tensor:
        first = w.movedim(axis, 0)
        return first.reshape(first.shape[0], -1)

    rows, columns = as_matrix(weight.detach()).shape
    own: dict[str, Any] = {"device": weight.device, "dtype": weight.dtype}
    module.register_parameter(f"{name}_orig", Parameter(weight.detach()))
    for part, size in (("_u", rows), ("_v", columns)):
        start = normalize(empty(size, **own).normal_(), dim=0, eps=eps)
        module.register_buffer(name + part, start)

    def compute(owner: Module) -> Tensor:
        original: Tensor = getattr(owner, f"{name}_orig")
        u, v = getattr(owner, f"{name}_u"), getattr(owner, f"{name}_v")
        matrix = as_matrix(original)
        if owner.training:
            with gradient_mode(False):
                left, right, fixed = u.detach(), v.detach(), matrix.detach()
                for _ in range(n_power_iterations):
                    right = normalize(fixed.T @ left, dim=0, eps=eps)
                    left = normalize(fixed @ right, dim=0, eps=eps)
                u.copy_(left)
                v.copy_(right)
        # Values of now: the buffers are written again before the gradient is asked for.
        sigma = (u.clone() * (matrix @ v.clone())).sum()
        result: Tensor = original / sigma
        return result

    _install(module, name, "spectral_norm", compute, weight.detach())
    return module


def remove_spectral_norm(module: Any, name: str = "weight") -> Any:
    """Makes the weight an ordinary parameter again, with its present value."""
    return _remove("spectral_norm", module, name, ("_orig", "_u", "_v"))
