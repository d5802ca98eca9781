"""cuBLAS: its products, and three kernels for what is between them; on a GPU alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tinygrad_cuda as tc
from examples.levels.task import CLASSES, HIDDEN, INPUTS, Task, Trained, Unavailable

SOURCE = Path(__file__).with_suffix(".cu").read_text(encoding="utf-8")
KERNELS = {name: tc.RawKernel(SOURCE, name) for name in ("bias_relu", "cross_entropy", "mask")}
FLOAT = 4  # bytes


class Matrix(NamedTuple):
    """Rows behind one another: the address, the columns of a row, and whether it is transposed."""

    address: int
    columns: int
    transposed: bool = False

    def t(self) -> Matrix:
        """The same numbers, transposed."""
        return self._replace(transposed=not self.transposed)


class Cublas:
    """The library, on the stream that the kernels are launched on."""

    def __init__(self) -> None:
        if not tc.cuda.is_available():
            raise Unavailable("cuBLAS needs a GPU")
        try:
            from nvmath.bindings import cublas
        except ImportError:
            raise Unavailable("no cuBLAS: pip install 'tinygrad_cuda[cublas]'") from None
        self.library, self.handle = cublas, cublas.create()
        cublas.set_stream(self.handle, tc.cuda.current_stream().cuda_stream)

    def address(self, tensor: Any) -> int:
        """Where a Tensor's numbers are on the GPU; waits until they are there."""
        return int(tensor.__cuda_array_interface__["data"][0])

    def product(
        self, a: Matrix, b: Matrix, c: Matrix, sizes: tuple[int, int, int], alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:  # fmt: skip
        """c = alpha a b + beta c, of m rows, n columns, and k terms of a sum.

        cuBLAS has columns behind one another, so that it sees each matrix transposed: it is asked
        for c^T = b^T a^T.
        """
        m, n, k = sizes
        scales = np.array([alpha, beta], np.float32)
        self.library.sgemm(
            self.handle, int(b.transposed), int(a.transposed), n, m, k, scales.ctypes.data,
            b.address, b.columns, a.address, a.columns, scales.ctypes.data + FLOAT,
            c.address, c.columns,
        )  # fmt: skip


def launch(name: str, threads: int, *arguments: Any) -> None:
    """A thread for each element, 128 of them in a block."""
    KERNELS[name](-(-threads // 128), 128, arguments)


def train(task: Task) -> Trained:
    """One pass over the batches."""
    return on_device(task, Cublas(), "cuda")


def on_device(task: Task, cublas: Cublas, device: str) -> Trained:
    """All batches are copied at once; a batch is an address inside them."""
    steps, n = task.labels.shape
    weights = [tc.tensor(value, device=device) for value in task[:4]]
    x, labels = (tc.tensor(value, device=device) for value in (task.x, task.labels))
    hidden, slopes, logits = (
        tc.zeros(n, columns, device=device) for columns in (HIDDEN, HIDDEN, CLASSES)
    )
    ones, losses = tc.ones(n, device=device), tc.empty(steps, n, device=device)

    def between(layer: int, step: int) -> None:
        if layer == 1:
            launch("bias_relu", n * HIDDEN, hidden, weights[1], n, HIDDEN)
        elif layer == 2:
            launch("cross_entropy", n, logits, weights[3], labels, losses, step, n, CLASSES)
        else:
            launch("mask", n * HIDDEN, slopes, hidden, n * HIDDEN)

    tensors = [*weights, hidden, slopes, logits, ones, x]
    widths = INPUTS, HIDDEN, HIDDEN, CLASSES, HIDDEN, HIDDEN, CLASSES, n, INPUTS
    w1, b1, w2, b2, h, da, z, one, images = (
        Matrix(address, width) for address, width in zip(fixed(cublas, tensors, between), widths)
    )
    for step in range(steps):
        cublas.product(images, w1.t(), h, (n, HIDDEN, INPUTS))
        between(1, step)
        cublas.product(h, w2.t(), z, (n, CLASSES, HIDDEN))
        between(2, step)
        cublas.product(z, w2, da, (n, HIDDEN, CLASSES))
        between(3, step)
        cublas.product(z.t(), h, w2, (CLASSES, HIDDEN, n), -task.rate, 1.0)
        cublas.product(one, z, b2, (1, CLASSES, n), -task.rate, 1.0)
        cublas.product(da.t(), images, w1, (HIDDEN, INPUTS, n), -task.rate, 1.0)
        cublas.product(one, da, b1, (1, HIDDEN, n), -task.rate, 1.0)
        images = images._replace(address=images.address + n * INPUTS * FLOAT)
    means = losses.cpu().numpy().mean(axis=1)
    return Trained(means, *(value.cpu().numpy() for value in weights))


def fixed(cublas: Cublas, tensors: list[Any], between: Callable[[int, int], None]) -> list[int]:
    """The addresses, once it is sure that the kernels write where the Tensors are.

    A kernel that writes a Tensor whose memory another one shows moves it to memory of its own.
    """
    addresses = [cublas.address(tensor) for tensor in tensors]
    for layer in (1, 2, 3):
        between(layer, 0)
    if addresses != [cublas.address(tensor) for tensor in tensors]:
        raise RuntimeError("a kernel has moved a Tensor whose address cuBLAS has")
    return addresses
