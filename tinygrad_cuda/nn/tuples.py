"""nn.modules.utils: PyTorch's helpers that make a number a tuple, which layers of programs use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

from tinygrad_cuda.core.errors import ShapeError
from tinygrad_cuda.core.shapes import is_several


def _ntuple(n: int, name: str = "parse") -> Callable[[Any], tuple[Any, ...]]:
    def parse(x: Any) -> tuple[Any, ...]:
        return tuple(x) if is_several(x) else tuple(repeat(x, n))

    parse.__name__ = name
    return parse


_single = _ntuple(1, "_single")
_pair = _ntuple(2, "_pair")
_triple = _ntuple(3, "_triple")
_quadruple = _ntuple(4, "_quadruple")


def _reverse_repeat_tuple(t: Iterable[Any], n: int) -> tuple[Any, ...]:
    return tuple(x for x in reversed(tuple(t)) for _ in range(n))


def consume_prefix_in_state_dict_if_present(state_dict: dict[str, Any], prefix: str) -> None:
    """Takes a prefix off the names of a state, in place, such as ``module.`` of a wrapper's.

    Example:
        >>> state = {"module.weight": 1, "bias": 2}
        >>> consume_prefix_in_state_dict_if_present(state, "module.")
        >>> state
        {'weight': 1, 'bias': 2}
    """
    named = {name.removeprefix(prefix): value for name, value in state_dict.items()}
    state_dict.clear()
    state_dict.update(named)


def _list_with_default(out_size: Any, defaults: Sequence[int]) -> Any:
    """Sizes, of which those that are None are the last of some others."""
    if isinstance(out_size, int | float):
        return out_size
    if len(defaults) <= len(out_size):
        raise ShapeError(
            "output_size", "more sizes than axes", expect=f"fewer than {len(defaults)}",
            actual=str(len(out_size)),
        )  # fmt: skip
    rest = defaults[-len(out_size) :]
    return [given if given is not None else size for given, size in zip(out_size, rest)]
