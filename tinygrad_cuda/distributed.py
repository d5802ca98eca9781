"""tc.distributed: a group of one process, for programs that are also written for several.

Everything that several processes do together is done by one: sums are the value itself.
"""

from __future__ import annotations

from enum import Enum
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.names import also_named, missing_from
from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "ReduceOp", "all_gather", "all_gather_into_tensor", "all_reduce", "barrier", "broadcast",
    "broadcast_object_list", "destroy_process_group", "gather", "get_backend", "get_rank",
    "get_world_size", "init_process_group", "is_available", "is_gloo_available", "is_initialized",
    "is_mpi_available", "is_nccl_available", "is_torchelastic_launched", "new_group", "nn",
    "reduce",
]  # fmt: skip

_backend: list[str] = []


class ReduceOp(Enum):
    """How values of several processes become one."""

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4


def is_available() -> bool:
    """True: there is a group of one process."""
    return True


def is_initialized() -> bool:
    """Whether `init_process_group` has been called."""
    return bool(_backend)


def is_nccl_available() -> bool:
    """False: there is one process."""
    return False


is_gloo_available = is_mpi_available = is_torchelastic_launched = is_nccl_available


def init_process_group(
    backend: str | None = None, init_method: str | None = None, timeout: Any = None,
    world_size: int = -1, rank: int = -1, store: Any = None, group_name: str = "",
    **options: Any,
) -> None:  # fmt: skip
    """Makes the group of this one process.

    Args:
        backend: a word that `get_backend` gives back.
        world_size, rank: 1 and 0 if given.

    Raises:
        ArgumentError: there should be several processes, or there is a group already.
    """
    if _backend:
        raise ArgumentError(
            "init_process_group", "there is a group already", expect="one call", actual="a second",
            hint="destroy_process_group() ends it",
        )  # fmt: skip
    if world_size > 1 or rank > 0:
        raise ArgumentError(
            "init_process_group", "a process computes by itself", expect="world_size=1, rank=0",
            actual=f"world_size={world_size}, rank={rank}",
        )  # fmt: skip
    _backend.append(backend or "gloo")


def destroy_process_group(group: Any = None) -> None:
    """Ends the group."""
    _backend.clear()


def get_backend(group: Any = None) -> str:
    """The word that `init_process_group` was given."""
    return _backend[0] if _backend else "gloo"


def get_rank(group: Any = None) -> int:
    """0."""
    return 0


def get_world_size(group: Any = None) -> int:
    """1."""
    return 1


def new_group(*args: Any, **options: Any) -> None:
    """The group of this one process, which every function takes for None."""


def barrier(group: Any = None, **options: Any) -> None:
    """Waits for nobody."""


def all_reduce(tensor: Tensor, op: Any = ReduceOp.SUM, group: Any = None, **options: Any) -> None:
    """Leaves the Tensor as it is: sum, mean, product and extremes of one value are itself."""


def reduce(
    tensor: Tensor, dst: int = 0, op: Any = ReduceOp.SUM, group: Any = None, **options: Any
) -> None:
    """Leaves the Tensor as it is."""


def broadcast(tensor: Tensor, src: int = 0, group: Any = None, **options: Any) -> None:
    """Leaves the Tensor as it is."""


def broadcast_object_list(object_list: list[Any], src: int = 0, *args: Any, **options: Any) -> None:
    """Leaves the list as it is."""


def all_gather(
    tensor_list: list[Tensor], tensor: Tensor, group: Any = None, **options: Any
) -> None:
    """Writes the Tensor to the one in the list.

    Raises:
        ArgumentError: the list has not one Tensor.
    """
    if len(tensor_list) != 1:
        raise ArgumentError(
            "all_gather", "the list does not fit", expect="1 tensor, for 1 process",
            actual=f"{len(tensor_list)} tensors",
        )  # fmt: skip
    tensor_list[0].copy_(tensor)


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: Any = None, **options: Any
) -> None:
    """Writes the input to the output."""
    output_tensor.copy_(input_tensor.reshape(output_tensor.shape))


def gather(
    tensor: Tensor, gather_list: list[Tensor] | None = None, dst: int = 0, group: Any = None,
    **options: Any,
) -> None:  # fmt: skip
    """Writes the Tensor to the one in the list, if there is one."""
    if gather_list is not None:
        all_gather(gather_list, tensor)


def _sum_of_one(tensor: Tensor, op: Any = ReduceOp.SUM, group: Any = None) -> Tensor:
    """The Tensor: the sum over one process."""
    return tensor


def _list_of_one(tensor: Tensor, group: Any = None) -> tuple[Tensor, ...]:
    """The Tensors of all processes, of which there is one."""
    return (tensor,)


# What returns a result and passes gradients.
nn = ModuleType(f"{__name__}.nn", "Functions of all processes that return their result.")
nn.__dict__.update(all_reduce=_sum_of_one, all_gather=_list_of_one)
also_named(__name__, {"nn": nn})

if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
