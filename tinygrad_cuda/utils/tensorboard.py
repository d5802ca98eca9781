"""tc.utils.tensorboard: SummaryWriter, of the package tensorboardX, with Tensors as values."""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.trees import leaves, rebuilt
from tinygrad_cuda.tensors.tensor import Tensor

__all__ = ["SummaryWriter"]


def _plain(value: Any) -> Any:
    """Tensors in a nested value as arrays."""
    values = [leaf.detach().numpy() if isinstance(leaf, Tensor) else leaf for leaf in leaves(value)]
    return rebuilt(value, iter(values))


class SummaryWriter:
    """Writes events for TensorBoard; its methods are those of tensorboardX's.

    Args:
        log_dir: a folder; a new one below ``runs`` if left out.
        comment, options: as of tensorboardX's.

    Raises:
        ArgumentError: the package tensorboardX is not installed.
    """

    def __init__(self, log_dir: str | None = None, comment: str = "", **options: Any) -> None:
        try:
            from tensorboardX import SummaryWriter as Writer
        except ImportError as error:
            raise ArgumentError(
                "SummaryWriter", "TensorBoard logs need a package that is not installed",
                expect="tensorboardX", actual=str(error),
                hint='pip install "tinygrad_cuda[tensorboard]"',
            ) from None  # fmt: skip
        self._writer: Any = Writer(log_dir, comment, **options)
        self.log_dir: str = self._writer.logdir

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._writer, name)

        def call(*arguments: Any, **options: Any) -> Any:
            return method(*_plain(arguments), **_plain(options))

        return call if callable(method) else method

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        self._writer.close()
