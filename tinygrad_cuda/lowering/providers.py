"""Whether a device has the library that `tc.kernels.provider` has chosen for products."""

from __future__ import annotations

from collections.abc import Sequence

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.graph.node import Node, topological
from tinygrad_cuda.graph.ops.contraction import matmul


def require_provider(outputs: Sequence[Node], device: str, libraries: Sequence[str]) -> None:
    """Checks that a device has the library that is to make products.

    Args:
        outputs: of a plan.
        device: its name.
        libraries: those whose calls the device launches.

    Raises:
        ArgumentError: it has not, and there is a product.
    """
    if not settings.provider or settings.provider in libraries:
        return
    product = next((n for n in topological(outputs) if n.op is matmul), None)
    if product is not None:
        raise ArgumentError(
            "kernels.provider", f"{settings.provider!r} does not run on device {device!r}",
            expect="products on a CUDA device", actual=f"a product on {device}", site=product.site,
            hint="tc.kernels.provider(None) has the device's own kernels make products",
        )  # fmt: skip


__all__ = ["require_provider"]
