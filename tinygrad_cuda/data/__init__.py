"""Data sets, samplers and the loader that makes batches of Tensors from them."""

from typing import TYPE_CHECKING

from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.data.cifar import CIFAR10, CIFAR100, load_cifar10
from tinygrad_cuda.data.dataloader import DataLoader, default_collate
from tinygrad_cuda.data.dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    ImageDataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from tinygrad_cuda.data.digits import generated_digits
from tinygrad_cuda.data.idx import read_idx, write_idx
from tinygrad_cuda.data.mnist import MNIST, load_mnist
from tinygrad_cuda.data.sampler import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from tinygrad_cuda.data.transforms import Compose, Normalize
from tinygrad_cuda.data.workers import get_worker_info

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "MNIST",
    "BatchSampler",
    "ChainDataset",
    "Compose",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "ImageDataset",
    "IterableDataset",
    "Normalize",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "default_collate",
    "generated_digits",
    "get_worker_info",
    "load_cifar10",
    "load_mnist",
    "random_split",
    "read_idx",
    "write_idx",
]


if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
