"""Transforms of images, with torchvision's names, on arrays and Tensors."""

from typing import TYPE_CHECKING

from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.data.transforms.base import (
    Compose,
    ConvertImageDtype,
    Lambda,
    Normalize,
    RandomApply,
    RandomChoice,
    RandomOrder,
    ToTensor,
    works_on_batches,
)
from tinygrad_cuda.data.transforms.colour import (
    ColorJitter,
    GaussianBlur,
    Grayscale,
    RandomErasing,
    RandomGrayscale,
)
from tinygrad_cuda.data.transforms.geometry import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
)
from tinygrad_cuda.data.transforms.resizing import RandomResizedCrop, Resize
from tinygrad_cuda.data.transforms.sizes import InterpolationMode
from tinygrad_cuda.data.transforms.warping import RandomAffine, RandomRotation

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "ConvertImageDtype",
    "GaussianBlur",
    "Grayscale",
    "InterpolationMode",
    "Lambda",
    "Normalize",
    "Pad",
    "RandomAffine",
    "RandomApply",
    "RandomChoice",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomOrder",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomVerticalFlip",
    "Resize",
    "ToTensor",
    "works_on_batches",
]

if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
