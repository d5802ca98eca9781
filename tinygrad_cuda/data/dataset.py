"""Data sets: things with a length that give a sample for an index, and their combinations.

`Dataset.batch` gives many samples at once; data sets made of arrays index them once per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tinygrad_cuda.core.errors import ArgumentError, IndexError, ShapeError
from tinygrad_cuda.data.randomness import sample
from tinygrad_cuda.data.sampler import Shuffler
from tinygrad_cuda.data.transforms import works_on_batches
from tinygrad_cuda.tensors.random import Generator
from tinygrad_cuda.tensors.shaping import stack
from tinygrad_cuda.tensors.tensor import Tensor

Array = NDArray[Any]


T = TypeVar("T")


class Dataset(Generic[T]):
    """A collection of samples: subclasses write ``__getitem__`` and ``__len__``.

    Example:
        >>> class Squares(Dataset):
        ...     def __len__(self):
        ...         return 4
        ...     def __getitem__(self, index):
        ...         return index, index**2
        >>> Squares().batch(np.array([1, 3]))
        [array([1, 3]), array([1, 9])]
    """

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__")

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} has no __len__")

    def batch(self, indices: Array) -> Any:
        """The samples of an int64 array of indices, gathered into arrays by `collate`."""
        return collate(_each(self, indices))

    def __add__(self, other: Dataset[Any]) -> Dataset[Any]:
        return ConcatDataset([self, other])


class TensorDataset(Dataset[Any]):
    """Tensors or arrays of equal length; a sample is a tuple with one row of each.

    Args:
        tensors: Tensors or NumPy arrays, of shapes (n, ...).

    Raises:
        ArgumentError: none is given.
        ShapeError: their lengths differ.

    Example:
        >>> data = TensorDataset(np.arange(6.0).reshape(3, 2), np.array([7, 8, 9]))
        >>> len(data), data[1]
        (3, (array([2., 3.]), np.int64(8)))
    """

    def __init__(self, *tensors: Tensor | Array) -> None:
        if not tensors:
            raise ArgumentError("TensorDataset", "no tensors", expect="at least one", actual="none")
        shapes = [tuple(tensor.shape) for tensor in tensors]
        if not all(shapes) or len({shape[0] for shape in shapes}) > 1:
            raise ShapeError(
                "TensorDataset",
                "lengths differ",
                expect="the same size of axis 0 in every tensor",
                actual=", ".join(map(str, shapes)),
            )
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])

    def batch(self, indices: Array) -> list[Any]:
        return [tensor[indices] for tensor in self.tensors]


class StackDataset(Dataset[Any]):
    """Data sets of equal length side by side; a sample has one of each.

    Args:
        args: data sets, for samples that are tuples.
        kwargs: or by names, for samples that are dicts.

    Raises:
        ArgumentError: none is given, or both kinds are.
        ShapeError: their lengths differ.

    Example:
        >>> data = StackDataset(image=[1, 2], label=["a", "b"])
        >>> len(data), data[1]
        (2, {'image': 2, 'label': 'b'})
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if bool(args) == bool(kwargs):
            raise ArgumentError(
                "StackDataset", "data sets are given by position or by name",
                expect="at least one, all in one way",
                actual=f"{len(args)} by position, {len(kwargs)} by name",
            )  # fmt: skip
        self.datasets: Any = args or kwargs
        lengths = [len(part) for part in (args or kwargs.values())]
        if len(set(lengths)) > 1:
            raise ShapeError(
                "StackDataset", "lengths differ", expect="data sets of one length",
                actual=", ".join(map(str, lengths)),
            )  # fmt: skip
        self._length = lengths[0]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(self.datasets, dict):
            return {name: part[index] for name, part in self.datasets.items()}
        return tuple(part[index] for part in self.datasets)

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        return [self[index] for index in indices]

    def __len__(self) -> int:
        return self._length


class Subset(Dataset[Any]):
    """The samples of another data set at given indices.

    Args:
        dataset: where the samples come from.
        indices: their positions there.

    Example:
        >>> Subset(TensorDataset(np.array([5, 6, 7])), [2, 0])[1]
        (np.int64(5),)
    """

    def __init__(self, dataset: Any, indices: Sequence[int] | Array) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            return self.dataset[[_plain(self.indices[one]) for one in index]]
        return self.dataset[_plain(self.indices[index])]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return each(self.dataset, [_plain(self.indices[one]) for one in indices])

    def __len__(self) -> int:
        return len(self.indices)

    def batch(self, indices: Array) -> Any:
        return gather(self.dataset, as_indices([_plain(self.indices[k]) for k in indices.tolist()]))


def _plain(index: Any) -> Any:
    """A NumPy number as Python's; other indices as they are."""
    return index.item() if isinstance(index, np.generic) else index


class ConcatDataset(Dataset[Any]):
    """Several data sets, one after another.

    Args:
        datasets: at least one.

    Example:
        >>> both = TensorDataset(np.array([1, 2])) + TensorDataset(np.array([3]))
        >>> len(both), both[2]
        (3, (np.int64(3),))
    """

    def __init__(self, datasets: Sequence[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ArgumentError(
                "ConcatDataset", "no data sets", expect="at least one", actual="none"
            )
        self.ends = np.cumsum([len(dataset) for dataset in self.datasets])

    @property
    def cumulative_sizes(self) -> list[int]:
        """Where each data set ends."""
        return [int(end) for end in self.ends]

    def __getitem__(self, index: int) -> Any:
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(
                "ConcatDataset",
                "index out of range",
                expect=f"an index below {len(self)}",
                actual=str(index),
            )
        which = int(np.searchsorted(self.ends, position, side="right"))
        return self.datasets[which][position - (self.ends[which - 1] if which else 0)]

    def __len__(self) -> int:
        return int(self.ends[-1])


class ImageDataset(Dataset[Any]):
    """Images with labels, held as two arrays: the base of MNIST.

    A sample is (image, label): float32 of shape (channels, height, width) between 0 and 1, and an
    int64 number. A transform with the attribute ``batched`` is called once for a whole batch.

    Args:
        data: uint8 of shape (n, height, width) or (n, channels, height, width).
        targets: int64 of shape (n,).
        transform: applied to the image.
        target_transform: applied to the label.
    """

    def __init__(
        self,
        data: Array,
        targets: Array,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        if len(data) != len(targets):
            raise ShapeError(
                "ImageDataset",
                "there is not one label for each image",
                expect=f"{len(data)} labels",
                actual=f"{len(targets)} labels",
            )
        self.data = data
        self.targets = targets
        self.transform = transform
        self.target_transform = target_transform

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image = self._images(self.data[index : index + 1 or None])[0]
        label = self.targets[index]
        with sample(index % len(self)):
            if self.transform is not None:
                image = self.transform(image)
            if self.target_transform is not None:
                label = self.target_transform(label)
        return image, label

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, indices: Array) -> list[Any]:
        images, labels = self._images(self.data[indices]), self.targets[indices]
        transforms = (self.transform, self.target_transform)
        if any(one is not None and not works_on_batches(one) for one in transforms):
            batch: list[Any] = collate(_each(self, indices))
            return batch
        for transform in (self.transform,) if self.transform is not None else ():
            images = transform(images)
        for transform in (self.target_transform,) if self.target_transform is not None else ():
            labels = transform(labels)
        return [images, labels]

    def _images(self, pixels: Array) -> Array:
        images = np.divide(pixels, 255.0, dtype=np.float32)
        return images[:, None] if images.ndim == 3 else images

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.data.shape[1:]))
        return f"{type(self).__name__}({len(self)} images of {shape})"


class IterableDataset(Dataset[T]):
    """A stream of samples: subclasses write ``__iter__``, and ``__len__`` if they know it.

    With workers each of them iterates over the whole stream, unless ``__iter__`` asks
    `get_worker_info` which part is its own.

    Example:
        >>> class Count(IterableDataset):
        ...     def __iter__(self):
        ...         return iter(range(3))
        >>> list(Count())
        [0, 1, 2]
    """

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")

    def __getitem__(self, index: Any) -> Any:
        raise TypeError(f"{type(self).__name__} is a stream: it has no index")

    def __add__(self, other: Dataset[Any]) -> Dataset[Any]:
        return ChainDataset([self, other])


class ChainDataset(IterableDataset[Any]):
    """Several streams, one after another.

    Args:
        datasets: of `IterableDataset`.
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)

    def __iter__(self) -> Iterator[Any]:
        return (one for dataset in self.datasets for one in dataset)

    def __len__(self) -> int:
        return sum(len(dataset) for dataset in self.datasets)


def fetch(dataset: Any, index: Any) -> Any:
    """One sample, with random numbers of its own; an error names it."""
    with sample(index):
        try:
            return dataset[index]
        except Exception as error:
            error.add_note(f"in sample {index} of a {type(dataset).__name__}")
            raise


def each(dataset: Any, indices: Sequence[Any]) -> list[Any]:
    """The samples one by one, or all by the data set's own ``__getitems__``."""
    if getattr(dataset, "__getitems__", None):
        return list(dataset.__getitems__(indices))
    return [fetch(dataset, index) for index in indices]


def _each(dataset: Any, indices: Array) -> list[Any]:
    return each(dataset, indices.tolist())


def as_indices(order: Sequence[Any]) -> Any:
    """Numbers as an array; other indices, such as the keys of a dict, as they are."""
    try:
        found = np.asarray(order)
    except ValueError:  # of unequal lengths
        return order
    return found.astype(np.int64) if found.dtype.kind in "iub" or not len(order) else order


def gather(dataset: Any, indices: Any) -> Any:
    """A batch of any data set, of ours by `Dataset.batch` or of anything that can be indexed."""
    if not isinstance(indices, np.ndarray):
        return collate(each(dataset, indices))
    if isinstance(dataset, Dataset):
        return dataset.batch(indices)
    return collate(_each(dataset, indices))


def collate(samples: Sequence[Any]) -> Any:
    """Gathers samples of equal structure into arrays with a new first axis.

    Numbers and arrays become arrays (Tensors become Tensors), tuples and lists become lists,
    mappings stay mappings, named tuples keep their type, texts are listed.

    Raises:
        ShapeError: arrays of one position differ in shape.
        ArgumentError: a sample is of a kind that cannot be gathered, or there is none.

    Example:
        >>> collate([(1, 2.0), (3, 4.0)])
        [array([1, 3]), array([2., 4.])]
    """
    if not samples:
        raise ArgumentError("collate", "no samples", expect="at least one", actual="none")
    first = samples[0]
    if isinstance(first, Tensor):
        _same_shape(samples)
        return stack(list(samples))
    if isinstance(first, np.ndarray | np.generic):
        _same_shape(samples)
        return np.stack(samples)
    if isinstance(first, bool | int | float | complex):
        return np.asarray(samples)
    if isinstance(first, str | bytes):
        return list(samples)
    if isinstance(first, Mapping):
        return {key: collate([sample[key] for sample in samples]) for key in first}
    if isinstance(first, Sequence):
        return _collate_sequences(first, samples)
    raise ArgumentError(
        "collate",
        "samples of this kind cannot be gathered",
        expect="arrays, Tensors, numbers, texts, tuples, lists or mappings",
        actual=type(first).__name__,
        hint="give the DataLoader a collate_fn",
    )


def _collate_sequences(first: Sequence[Any], samples: Sequence[Any]) -> Any:
    lengths = sorted({len(sample) for sample in samples})
    if len(lengths) > 1:
        raise ShapeError(
            "collate",
            "samples have different numbers of entries",
            expect=f"{len(first)} entries, as in the first sample",
            actual=" and ".join(map(str, lengths)),
            hint="give the DataLoader a collate_fn",
        )
    columns = [collate(column) for column in zip(*samples)]
    return type(first)(*columns) if hasattr(first, "_fields") else columns


def _same_shape(samples: Sequence[Any]) -> None:
    shape = tuple(samples[0].shape)
    for number, other in enumerate(samples):
        if tuple(other.shape) != shape:
            raise ShapeError(
                "collate",
                "samples differ in shape",
                expect=f"{shape}, as in the first sample of the batch",
                actual=f"{tuple(other.shape)} in sample {number}",
                hint="pad or crop them in a transform, or give the DataLoader a collate_fn",
            )


def random_split(
    dataset: Any,
    lengths: Sequence[int | float],
    generator: Generator | None = None,
    *,
    seed: int | None = None,
) -> list[Subset]:
    """Splits a data set at random into parts that do not overlap.

    Args:
        dataset: anything with a length.
        lengths: a number of samples for each part, or fractions that add up to 1; what rounding
            leaves over goes to the first parts, one each.
        generator: gives the seed; the default stream, which ``tc.manual_seed`` sets, when left out.
        seed: the seed itself, instead of a generator; the same seed gives the same parts.

    Raises:
        ArgumentError: the lengths do not add up to the length of the data set, or generator and
            seed are both given.

    Example:
        >>> [len(part) for part in random_split(range(10), [0.75, 0.25])]
        [8, 2]
    """
    n = len(dataset)
    sizes = _sizes(lengths, n)
    order = Shuffler(generator, seed).random(epoch=0).permutation(n)
    return [Subset(dataset, part.tolist()) for part in np.split(order, np.cumsum(sizes)[:-1])]


def _sizes(lengths: Sequence[int | float], n: int) -> list[int]:
    if np.isclose(sum(lengths), 1.0) and all(0 <= length <= 1 for length in lengths) and n != 1:
        sizes = [int(n * length) for length in lengths]
        for position in range(n - sum(sizes)):
            sizes[position % len(sizes)] += 1
        return sizes
    sizes = [int(length) for length in lengths]
    if sum(sizes) != n or sizes != list(lengths) or min(sizes) < 0:
        raise ArgumentError(
            "random_split",
            "lengths do not fit the data set",
            expect=f"whole numbers that add up to {n}, or fractions that add up to 1",
            actual=str(list(lengths)),
        )
    return sizes
