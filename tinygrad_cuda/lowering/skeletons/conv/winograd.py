"""3 x 3 convolutions as products of planes (Winograd): the cost model, and the nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from tinygrad_cuda.core.dtypes import float32
from tinygrad_cuda.graph.node import Node, gradient_mode, recorded_at
from tinygrad_cuda.graph.ops import contraction, movement
from tinygrad_cuda.graph.ops.convolution import convolution
from tinygrad_cuda.graph.ops.winograd import PARTS, TAPS, tiles_of, unwinograd, winograd
from tinygrad_cuda.lowering.codegen.skeleton import THREADS
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import Product
from tinygrad_cuda.lowering.skeletons.conv.direct import MOST_OUTPUTS
from tinygrad_cuda.lowering.skeletons.conv.windows import Windows
from tinygrad_cuda.lowering.target import Target

LAUNCH = 5000  # clocks of a multiprocessor that each further launch takes at least


# The choice ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tiles:
    """A convolution, or its weight gradient, as products of planes of tiles.

    Attributes:
        windows: those of the convolution's input.
        form: outputs of a tile along an axis.
        clocks: an estimate of the time of all kernels, in clocks of a multiprocessor.
    """

    windows: Windows
    form: int
    clocks: float


def tiles_of_least_time(
    node: Node,
    windows: Windows,
    channels: int,
    target: Target,
    product_clocks: Callable[[Product, Target], float],
) -> Tiles | None:
    """The tiles of least time; None where Winograd does not apply.

    Args:
        node: the convolution, or its weight gradient.
        windows: those of its input.
        channels: of its result.
        target: the machine.
        product_clocks: an estimate of a product's time, in clocks of a multiprocessor.
    """
    if node.dtype is not float32 or prod(node.shape) == 0:
        return None
    ones = windows.stride == windows.dilation == (1, 1)
    few = min(channels, windows.channels) <= MOST_OUTPUTS
    if not ones or windows.taps != (TAPS, TAPS) or few:
        return None
    weight_gradient = node.op is not convolution
    products = {form: _product(windows, channels, form, weight_gradient) for form in PARTS}
    tilings = [
        Tiles(
            windows,
            form,
            _clocks(windows, channels, product, target, product_clocks(product, target)),
        )
        for form, product in products.items()
        # A block has whole rows of tiles.
        if tiles_of(PARTS[form]["results"], *windows.output_size)[1] <= THREADS
    ]
    return min(tilings, key=lambda tiles: tiles.clocks, default=None)


def _product(windows: Windows, channels: int, form: int, weight_gradient: bool) -> Product:
    """The product of the planes."""
    rows, columns = tiles_of(PARTS[form]["results"], *windows.output_size)
    image_tiles, planes = windows.images * rows * columns, (form + TAPS - 1) ** 2
    m, n, k = channels, image_tiles, windows.channels
    m, n, k = (k, m, n) if weight_gradient else (m, n, k)
    return Product(planes, m, n, k, 4)


def _clocks(
    windows: Windows, channels: int, product: Product, target: Target, time: float
) -> float:
    """An estimate of the time of all kernels, whose product takes `time`, in the same clocks."""
    planes, m, n, k = product[:4]
    operands = 4 * planes * (m * k + k * n + m * n)
    images = 4 * windows.images * prod(windows.output_size) * (channels + windows.channels)
    moved = operands + images + 4 * TAPS * TAPS * channels * windows.channels
    return max(time, operands / target.traffic) + moved / target.traffic + 3 * LAUNCH


# Nodes --------------------------------------------------------------------------------------


def _tiles(x: Node, windows: Windows, form: int) -> Node:
    """The planes of a convolution's input."""
    rows, columns = tiles_of(PARTS[form]["results"], *windows.output_size)
    beyond = TAPS - 1
    shape = (*x.shape[:2], rows * form + beyond, columns * form + beyond)
    return winograd(_padded(x, shape, windows.top, windows.left), form=form, part="images")


def _padded(x: Node, shape: tuple[int, ...], top: int, left: int) -> Node:
    """x, padded with zeros to `shape`."""
    if shape == x.shape:
        return x
    return movement.pad(x, starts=(0, 0, top, left), shape=shape, steps=(1,) * 4, value=0)


def by_tiles(node: Node, tiles: Tiles) -> Node:
    """The nodes of a convolution, or of its weight gradient, computed by tiles."""
    with gradient_mode(False), recorded_at(node.site):
        make = _result if node.op is convolution else _taps
        return make(node, tiles.windows, tiles.form)


def _result(node: Node, windows: Windows, form: int) -> Node:
    """The convolution itself."""
    kernel = movement.permute(node.sources[1], axes=(1, 0, 2, 3))
    kernels = winograd(kernel, form=form, part="kernels")
    planes = contraction.matmul(kernels, _tiles(node.sources[0], windows, form))
    return unwinograd(planes, form=form, part="results", shape=node.shape)


def _taps(node: Node, windows: Windows, form: int) -> Node:
    """The gradient of its kernel."""
    g, x = node.sources
    rows, columns = tiles_of(PARTS[form]["results"], *windows.output_size)
    whole = (*g.shape[:2], rows * form, columns * form)
    cotangents = winograd(_padded(g, whole, 0, 0), form=form, part="cotangents")
    planes = contraction.matmul(_tiles(x, windows, form), contraction.transpose(cotangents))
    return unwinograd(planes, form=form, part="taps", shape=node.shape)
