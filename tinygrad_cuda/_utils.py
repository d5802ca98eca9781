"""tc._utils: many Tensors as one vector, where programs import it from in PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tinygrad_cuda.core.errors import ShapeError
from tinygrad_cuda.tensors.shaping import cat
from tinygrad_cuda.tensors.tensor import Tensor

__all__: list[str] = []


def _flatten_dense_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """The elements of all Tensors in one vector.

    Args:
        tensors: at least one, of one dtype and device, of any shapes.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.ones(2, 1, device="cpu")
        >>> _flatten_dense_tensors([x, 2 * x[0]]).tolist()
        [1.0, 1.0, 2.0]
    """
    return cat([tensor.reshape(-1) for tensor in tensors])


def _unflatten_dense_tensors(flat: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Parts of a vector in the shapes of other Tensors, as views.

    Args:
        flat: (n,), as `_flatten_dense_tensors` makes it.
        tensors: whose shapes they get; n elements in all.

    Raises:
        ShapeError: the vector has fewer elements.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.arange(3, device="cpu")
        >>> [part.tolist() for part in _unflatten_dense_tensors(x, [x[:2, None], x[:1]])]
        [[[0], [1]], [2]]
    """
    parts: list[Tensor] = []
    begin = 0
    if flat.numel() < (count := sum(tensor.numel() for tensor in tensors)):
        raise ShapeError(
            "_unflatten_dense_tensors", "the vector has too few elements", expect=str(count),
            actual=str(flat.numel()),
        )  # fmt: skip
    for tensor in tensors:
        parts.append(flat.narrow(0, begin, tensor.numel()).view(tensor.shape))
        begin += tensor.numel()
    return tuple(parts)


def _take_tensors(tensors: Iterable[Tensor], size_limit: int) -> Iterator[list[Tensor]]:
    """Groups of Tensors of one dtype and device, in order.

    Args:
        tensors: any.
        size_limit: the most bytes of a group that has more than one Tensor.
    """
    groups: dict[str, list[Tensor]] = {}
    sizes: dict[str, int] = {}
    for tensor in tensors:
        kind, size = tensor.type(), tensor.numel() * tensor.element_size()
        if sizes.get(kind, 0) > 0 and sizes[kind] + size > size_limit:
            yield groups[kind]
            groups[kind], sizes[kind] = [], 0
        groups.setdefault(kind, []).append(tensor)
        sizes[kind] = sizes.get(kind, 0) + size
    yield from groups.values()
