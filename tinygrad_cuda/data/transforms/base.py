"""What transforms have in common, and those that only rescale or combine others.

An image is an array or Tensor of shape (..., channels, height, width), floating between 0 and 1 or
uint8. Random transforms draw from `tinygrad_cuda.data.randomness`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError
from tinygrad_cuda.data.randomness import randomness
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.creation import tensor

Array = NDArray[Any]


def works_on_batches(transform: Callable[[Any], Any]) -> bool:
    """Whether a transform takes a batch in one call: it says so by an attribute ``batched``."""
    return bool(getattr(transform, "batched", False))


class Transform:
    """A function of images; subclasses write ``apply`` for arrays.

    A Tensor gives a Tensor on the same device.
    """

    def __call__(self, image: Any) -> Any:
        if isinstance(image, TensorBase):
            return tensor(self(image.array()), device=image.device)
        if not isinstance(image, np.ndarray) or image.ndim < 3:
            raise ShapeError(
                type(self).__name__,
                "not an image",
                expect="an array or Tensor of shape (..., channels, height, width)",
                actual=f"shape {image.shape}" if hasattr(image, "shape") else type(image).__name__,
                hint="ToTensor() first makes one of a PIL image or of (height, width, channels)",
            )
        return np.ascontiguousarray(self.apply(image))

    def apply(self, image: Array) -> Array:
        """The transformed image; the one given is left alone."""
        raise NotImplementedError(f"{type(self).__name__} has no apply")

    def __repr__(self) -> str:
        fields = ", ".join(f"{k}={v!r}" for k, v in vars(self).items() if not k.startswith("_"))
        return f"{type(self).__name__}({fields})"


def refuse(op: str, message: str, expect: str, actual: Any) -> None:
    raise ArgumentError(op, message, expect=expect, actual=str(actual))


def check_probability(op: str, p: float) -> float:
    if not 0 <= p <= 1:
        refuse(op, "not a probability", "0 <= p <= 1", p)
    return p


def between(random: np.random.Generator, ends: Sequence[float]) -> float:
    """A number between two, all equally likely."""
    low, high = ends
    return float(random.uniform(low, high))


def largest(image: Array) -> float:
    """The value of a bright pixel."""
    return 255.0 if image.dtype == np.uint8 else 1.0


def as_computed(image: Array) -> Array:
    """The values of an image in a dtype that SciPy computes in."""
    return image if image.dtype in (np.float32, np.float64) else image.astype(np.float32)


def as_pixels(values: Array, like: Array) -> Array:
    """Computed values in the dtype of an image: rounded and clipped where that is uint8."""
    if like.dtype == np.uint8:
        return np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return values.astype(like.dtype)


class ToTensor:
    """Makes an image of channels first, float32 between 0 and 1.

    Takes a PIL image or an array of shape (height, width) or (height, width, channels). uint8 is
    divided by 255, other dtypes keep their values. A floating array whose first axis can count
    channels and whose last cannot, as `MNIST` and `CIFAR10` give it, is an image already.

    Raises:
        ShapeError: another number of dimensions.

    Example:
        >>> ToTensor()(np.full((2, 5, 3), 255, dtype=np.uint8)).shape
        (3, 2, 5)
    """

    def __call__(self, picture: Any) -> Array:
        pixels = np.asarray(picture)
        if pixels.ndim not in (2, 3):
            raise ShapeError(
                "ToTensor",
                "not a picture",
                expect="(height, width) or (height, width, channels)",
                actual=str(pixels.shape),
            )
        if pixels.dtype == bool:
            pixels = pixels * np.uint8(255)
        if pixels.ndim == 2:
            planes = pixels[None]
        elif pixels.dtype.kind == "f" and pixels.shape[0] <= 4 < pixels.shape[2]:
            planes = pixels
        else:
            planes = np.moveaxis(pixels, -1, 0)
        if planes.dtype == np.uint8:
            return np.asarray(np.divide(planes, 255.0, dtype=np.float32))
        return np.ascontiguousarray(planes, dtype=np.float32)

    def __repr__(self) -> str:
        return "ToTensor()"


class ConvertImageDtype(Transform):
    """Changes the dtype, and with it the range: 0 to 255 for uint8, 0 to 1 for floating dtypes.

    Args:
        dtype: ``uint8`` or a floating dtype, ours or NumPy's.

    Raises:
        DTypeError: another dtype, or an image of another one.

    Example:
        >>> ConvertImageDtype("uint8")(np.full((1, 1, 1), 0.5, dtype=np.float32)).item()
        127
    """

    batched = True

    def __init__(self, dtype: Any = np.float32) -> None:
        self.dtype = np.dtype(getattr(dtype, "numpy", dtype))
        self._check(self.dtype)

    def _check(self, dtype: np.dtype[Any]) -> None:
        if dtype != np.uint8 and dtype.kind != "f":
            raise DTypeError(
                "ConvertImageDtype", "not the dtype of an image", expect="uint8 or a floating one",
                actual=str(dtype),
            )  # fmt: skip

    def apply(self, image: Array) -> Array:
        self._check(image.dtype)
        if image.dtype.kind == self.dtype.kind:
            return image.astype(self.dtype)
        if self.dtype == np.uint8:
            # As in torchvision: each of the 256 values stands for an equal share of [0, 1].
            return (image * (256 - 1e-3)).astype(np.uint8)
        return np.asarray(image.astype(self.dtype) / self.dtype.type(255))


class Lambda:
    """A function as a transform.

    Args:
        lambd: a function of one argument.

    Example:
        >>> Lambda(lambda x: x + 1)(2)
        3
    """

    def __init__(self, lambd: Callable[[Any], Any]) -> None:
        if not callable(lambd):
            refuse("Lambda", "not a function", "a function of one argument", lambd)
        self.lambd = lambd

    def __call__(self, value: Any) -> Any:
        return self.lambd(value)

    def __repr__(self) -> str:
        return "Lambda()"


class Normalize(Transform):
    r"""Shifts and scales each channel.

    .. math:: y_c = (x_c - \text{mean}_c) / \text{std}_c

    Args:
        mean: a number for each channel.
        std: a number for each channel, not 0.

    Raises:
        ArgumentError: the lengths differ or a deviation is 0.
        DTypeError: the image is not floating.
        ShapeError: the input's third axis from the end is not one entry per channel.

    Example:
        >>> Normalize([0.5], [0.25])(np.full((1, 2, 2), 1.0, dtype=np.float32)).tolist()
        [[[2.0, 2.0], [2.0, 2.0]]]
    """

    batched = True

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        if len(mean) != len(std) or not all(std):
            raise ArgumentError(
                "Normalize",
                "mean and std do not fit",
                expect="one mean and one std, not 0, for each channel",
                actual=f"mean={list(mean)}, std={list(std)}",
            )
        self.mean = tuple(mean)
        self.std = tuple(std)

    def apply(self, image: Array) -> Array:
        """Normalizes an array of shape (..., channels, height, width), keeping its dtype."""
        channels = len(self.mean)
        if image.dtype.kind != "f":
            raise DTypeError(
                "Normalize", "the image is not floating", expect="a floating dtype",
                actual=str(image.dtype), hint="ConvertImageDtype(float32) before it",
            )  # fmt: skip
        if image.shape[-3] != channels:
            raise ShapeError(
                "Normalize",
                "channels differ",
                expect=f"shape (..., {channels}, height, width)",
                actual=f"{image.shape}",
            )
        mean = np.asarray(self.mean, dtype=image.dtype).reshape(channels, 1, 1)
        std = np.asarray(self.std, dtype=image.dtype).reshape(channels, 1, 1)
        return np.asarray((image - mean) / std)

    def __repr__(self) -> str:
        return f"Normalize(mean={self.mean}, std={self.std})"


class Compose:
    """Applies transforms one after another.

    Args:
        transforms: functions of one argument.

    Example:
        >>> Compose([abs, float])(-3)
        3.0
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = list(transforms)

    @property
    def batched(self) -> bool:
        """Whether it takes a whole batch in one call: if each part does."""
        return all(works_on_batches(transform) for transform in self.transforms)

    def __call__(self, value: Any) -> Any:
        for transform in self.transforms:
            value = transform(value)
        return value

    def __repr__(self) -> str:
        return f"Compose({self.transforms})"


class RandomApply(Compose):
    """Applies all of some transforms with a probability, else none.

    Args:
        transforms: functions of one argument.
        p: the probability.

    Raises:
        ArgumentError: `p` is no probability.
    """

    @property
    def batched(self) -> bool:
        """Each sample draws for itself."""
        return False

    def __init__(self, transforms: Sequence[Callable[[Any], Any]], p: float = 0.5) -> None:
        super().__init__(transforms)
        self.p = check_probability("RandomApply", p)

    def __call__(self, value: Any) -> Any:
        return super().__call__(value) if randomness().random() < self.p else value

    def __repr__(self) -> str:
        return f"RandomApply({self.transforms}, p={self.p})"


class RandomOrder(Compose):
    """Applies transforms in a random order.

    Args:
        transforms: functions of one argument.
    """

    @property
    def batched(self) -> bool:
        """Each sample draws for itself."""
        return False

    def __call__(self, value: Any) -> Any:
        for index in randomness().permutation(len(self.transforms)):
            value = self.transforms[index](value)
        return value

    def __repr__(self) -> str:
        return f"RandomOrder({self.transforms})"


class RandomChoice(Compose):
    """Applies one of some transforms.

    Args:
        transforms: functions of one argument.
        p: their probabilities, up to a factor; equal ones if left out.
    """

    @property
    def batched(self) -> bool:
        """Each sample draws for itself."""
        return False

    def __init__(
        self, transforms: Sequence[Callable[[Any], Any]], p: Sequence[float] | None = None
    ) -> None:
        super().__init__(transforms)
        weights = np.ones(len(self.transforms)) if p is None else np.asarray(p, np.float64)
        fit = weights.shape == (len(self.transforms),) and weights.size and (weights >= 0).all()
        if not fit or not weights.sum() > 0:
            expect = f"{len(self.transforms)} numbers, none negative and not all 0"
            refuse("RandomChoice", "bad probabilities", expect, p)
        self.p = weights / weights.sum()

    def __call__(self, value: Any) -> Any:
        which = int(randomness().choice(len(self.transforms), p=self.p))
        return self.transforms[which](value)

    def __repr__(self) -> str:
        return f"RandomChoice({self.transforms}, p={self.p.tolist()})"
