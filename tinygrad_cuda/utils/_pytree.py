"""tc.utils._pytree: nested tuples, lists and dicts, by PyTorch's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tinygrad_cuda.core import trees


class TreeSpec(NamedTuple):
    """The structure of a nested value.

    Attributes:
        like: a value of this structure.
        num_leaves: how many leaves it has.
    """

    like: Any
    num_leaves: int


def tree_leaves(tree: Any) -> list[Any]:
    """What a nested structure holds, in order."""
    return trees.leaves(tree)


def tree_flatten(tree: Any) -> tuple[list[Any], TreeSpec]:
    """The leaves and the structure.

    Example:
        >>> leaves, spec = tree_flatten({"a": 1, "b": (2, 3)})
        >>> leaves, tree_unflatten([4, 5, 6], spec)
        ([1, 2, 3], {'a': 4, 'b': (5, 6)})
    """
    leaves = trees.leaves(tree)
    return leaves, TreeSpec(tree, len(leaves))


def tree_unflatten(leaves: Any, treespec: TreeSpec) -> Any:
    """A nested value of leaves and a structure.

    Raises:
        ValueError: the number of leaves is another.
    """
    given = list(leaves)
    if len(given) != treespec.num_leaves:
        raise ValueError(f"{len(given)} leaves for a structure of {treespec.num_leaves}")
    return trees.rebuilt(treespec.like, iter(given))


def tree_map(func: Callable[..., Any], tree: Any, *rests: Any) -> Any:
    """`func` of every leaf, and of those at its position in `rests`, in the same structure."""
    columns = [trees.leaves(tree), *[trees.leaves(rest) for rest in rests]]
    return trees.rebuilt(tree, iter([func(*values) for values in zip(*columns)]))


def tree_map_only(kind: Any, func: Callable[[Any], Any], tree: Any) -> Any:
    """`func` of every leaf of a type; the others stay."""
    return tree_map(lambda leaf: func(leaf) if isinstance(leaf, kind) else leaf, tree)


def tree_all(pred: Callable[[Any], bool], tree: Any) -> bool:
    """Whether `pred` holds for every leaf."""
    return all(map(pred, trees.leaves(tree)))


def tree_any(pred: Callable[[Any], bool], tree: Any) -> bool:
    """Whether `pred` holds for some leaf."""
    return any(map(pred, trees.leaves(tree)))
