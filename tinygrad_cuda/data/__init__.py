"""Data sets, samplers and the loader that makes batches of Tensors from them."""

from tinygrad_cuda.data.dataloader import DataLoader, default_collate
from tinygrad_cuda.data.dataset import (
    ConcatDataset,
    Dataset,
    ImageDataset,
    Subset,
    TensorDataset,
    random_split,
)
from tinygrad_cuda.data.digits import generated_digits
from tinygrad_cuda.data.idx import read_idx, write_idx
from tinygrad_cuda.data.mnist import MNIST, load_mnist
from tinygrad_cuda.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
)
from tinygrad_cuda.data.transforms import Compose, Normalize

__all__ = [
    "MNIST",
    "BatchSampler",
    "Compose",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "ImageDataset",
    "Normalize",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "Subset",
    "TensorDataset",
    "default_collate",
    "generated_digits",
    "load_mnist",
    "random_split",
    "read_idx",
    "write_idx",
]
