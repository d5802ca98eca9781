"""What nn.parallel's wrappers are made of in PyTorch: with one device there is one replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.trees import leaves, rebuilt
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.shaping import cat


def one_device(op: str, device_ids: Any) -> None:
    """A list of several devices is refused, since all but one would be idle.

    Raises:
        ArgumentError: it is one.
    """
    if device_ids is not None and len(device_ids) > 1:
        raise ArgumentError(
            op, "a module computes on one device", expect="one device", actual=str(device_ids),
            hint="leave device_ids out",
        )  # fmt: skip


def replicate(network: Any, devices: Sequence[Any], detach: bool = False) -> list[Any]:
    """The module itself, in a list.

    Args:
        network: the module.
        devices: one.
        detach: accepted as in PyTorch.

    Raises:
        ArgumentError: several devices are named.
    """
    one_device("replicate", devices)
    return [network]


def scatter(inputs: Any, target_gpus: Sequence[Any], dim: int = 0) -> list[Any]:
    """Nested values with their Tensors on the one device, in a list.

    Args:
        inputs: Tensors, and containers of them.
        target_gpus: one device.
        dim: accepted as in PyTorch: nothing is split.

    Raises:
        ArgumentError: several devices are named.

    Example:
        >>> import tinygrad_cuda as tc
        >>> [x] = scatter(tc.ones(2, device="cpu"), ["cpu"])
        >>> x.tolist()
        [1.0, 1.0]
    """
    one_device("scatter", target_gpus)
    device = target_gpus[0]
    moved = [x.to(device) if isinstance(x, TensorBase) else x for x in leaves(inputs)]  # type: ignore[attr-defined]
    return [rebuilt(inputs, iter(moved))]


def gather(outputs: Sequence[Any], target_device: Any, dim: int = 0) -> Any:
    """Tensors joined along an axis; of containers, what they hold at each place.

    Args:
        outputs: of each replica, alike in structure.
        target_device: where the result is.
        dim: the axis.

    Example:
        >>> import tinygrad_cuda as tc
        >>> gather([tc.ones(1, device="cpu"), tc.zeros(1, device="cpu")], "cpu").tolist()
        [1.0, 0.0]
    """
    columns = zip(*(leaves(output) for output in outputs))
    joined = [
        cat(
            [x.to(target_device) if x.ndim else x.to(target_device).reshape(1) for x in column], dim
        )
        if isinstance(column[0], TensorBase)
        else column[0]
        for column in columns
    ]
    return rebuilt(outputs[0], iter(joined))


def parallel_apply(
    modules: Sequence[Callable[..., Any]], inputs: Sequence[Any], kwargs_tup: Any = None,
    devices: Any = None,
) -> list[Any]:  # fmt: skip
    """What modules return, each of arguments of its own, one after the other.

    Args:
        modules: the replicas.
        inputs: of each its arguments, a tuple, or the only one.
        kwargs_tup: of each its keywords; None for none.
        devices: accepted as in PyTorch.

    Raises:
        ArgumentError: there are not as many arguments as modules.
    """
    options = kwargs_tup or [{} for _ in modules]
    if not len(modules) == len(inputs) == len(options):
        raise ArgumentError(
            "parallel_apply", "arguments are missing", expect=f"{len(modules)} of each",
            actual=f"{len(inputs)} inputs, {len(options)} keywords",
        )  # fmt: skip
    calls = zip(modules, inputs, options)
    return [m(*(x if isinstance(x, tuple) else (x,)), **named) for m, x, named in calls]


class Broadcast:
    """Tensors on each of the devices, of which there is one."""

    @staticmethod
    def apply(target_gpus: Sequence[Any], *inputs: Any) -> tuple[Any, ...]:
        """The Tensors on the one device; gradients pass.

        Raises:
            ArgumentError: several devices are named.
        """
        return tuple(x for [x] in (scatter(x, target_gpus) for x in inputs))


class ReduceAddCoalesced:
    """Sums over devices."""

    @staticmethod
    def apply(destination: Any, num_inputs: int, *grads: Any) -> tuple[Any, ...]:
        """Sums of every `num_inputs`-th Tensor, one for each; `destination` is the one device."""
        return tuple(sum(grads[n + num_inputs :: num_inputs], grads[n]) for n in range(num_inputs))


class Scatter:
    """A batch on several devices, of which there is one."""

    @staticmethod
    def apply(
        target_gpus: Sequence[Any], chunk_sizes: Any, dim: int, input: Any
    ) -> tuple[Any, ...]:
        """The whole batch on the one device.

        Raises:
            ArgumentError: several devices are named.
        """
        return tuple(scatter(input, target_gpus, dim))


class Gather:
    """Results of several devices joined."""

    @staticmethod
    def apply(target_device: Any, dim: int, *inputs: Any) -> Any:
        """As `gather`."""
        return gather(list(inputs), target_device, dim)
