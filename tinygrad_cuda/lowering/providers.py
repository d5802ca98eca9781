"""Whether a device has the library that `tc.kernels.provider` has chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.graph.node import Node, Op, topological
from tinygrad_cuda.graph.ops import attention, convolution, fft
from tinygrad_cuda.graph.ops.contraction import matmul


class Provided(NamedTuple):
    """What a library makes in place of generated kernels.

    Attributes:
        ops: the rows.
        name: of one of them, for a reader.
    """

    ops: tuple[Op, ...]
    name: str


PROVIDED: dict[str, tuple[Provided, ...]] = {
    "cublas": (Provided((matmul,), "product"),),
    "cudnn": (
        Provided(convolution.ROWS, "convolution"), Provided(attention.ROWS, "fused attention"),
    ),
    "cufft": (Provided(fft.ROWS, "transform"),),
}  # fmt: skip


def require_provider(outputs: Sequence[Node], device: str, libraries: Sequence[str]) -> None:
    """Checks that a device has the library that is to make some of a plan's nodes.

    Args:
        outputs: of a plan.
        device: its name.
        libraries: those whose calls the device launches.

    Raises:
        ArgumentError: it has not, and there is one.
    """
    if not settings.provider or settings.provider in libraries:
        return
    names = {op: made.name for made in PROVIDED[settings.provider] for op in made.ops}
    node = next((n for n in topological(outputs) if n.op in names), None)
    if node is not None:
        name = names[node.op]
        raise ArgumentError(
            "kernels.provider", f"{settings.provider!r} does not run on device {device!r}",
            expect=f"{name}s on a CUDA device", actual=f"a {name} on {device}", site=node.site,
            hint=f"tc.kernels.provider(None) has the device's own kernels make {name}s",
        )  # fmt: skip


__all__ = ["PROVIDED", "require_provider"]
