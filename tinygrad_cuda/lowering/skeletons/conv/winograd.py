"""Which 3 x 3 convolutions are made as products of planes (Winograd), and the nodes of those."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tinygrad_cuda.core.dtypes import float32
from tinygrad_cuda.graph.node import Node, gradient_mode, node_made, recorded_at
from tinygrad_cuda.graph.ops import contraction, movement
from tinygrad_cuda.graph.ops.winograd import PARTS, TAPS, tiles_of, unwinograd, winograd
from tinygrad_cuda.graph.order import topological
from tinygrad_cuda.lowering.codegen.skeleton import THREADS
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import clocks, plan
from tinygrad_cuda.lowering.skeletons.conv.direct import MOST_OUTPUTS, Windows, windows_of

LAUNCH = 5000  # clocks of a multiprocessor that a further kernel takes at least
TRAFFIC = 2000  # bytes between memory and all multiprocessors in a clock
GAIN = 0.9  # of the time of the usual product that this may take at most


# The choice ---------------------------------------------------------------------------------


def with_winograd(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """The same values up to rounding; each convolution in the form that takes the least time.

    Args:
        outputs: of a plan whose products have the order of their readers.
    """
    order = topological(outputs)
    new: dict[Node, Node] = {}
    with gradient_mode(False):
        for node in order:
            sources = tuple(new[source] for source in node.sources)
            same = sources == node.sources
            node_now = node if same else node_made(
                node.op, sources, node.attributes, node.outputs, node.device, False, node.site
            )  # fmt: skip
            new[node] = node_now
            if node.op is contraction.matmul:
                with recorded_at(node.site):
                    new[node] = _filtered(node_now) or node_now
    return tuple(new[node] for node in outputs)


def _filtered(node: Node) -> Node | None:
    """A convolution's product, or that of its kernel's gradient, by tiles; None if it stays."""
    a, b = node.sources
    if node.dtype is not float32 or prod(node.shape) == 0 or prod(a.shape[:-2]) != 1:
        return None
    channels = a.shape[-2]
    windows = windows_of(b)
    if windows is not None:
        if not _suits(windows, channels) or not _known_order(node, windows, channels):
            return None
        form = form_of(windows, channels, False)
        return _result(node, windows, channels, form) if form else None
    windows = None if node.attributes else windows_of(b, turned=True)
    if windows is None or not _suits(windows, channels):
        return None
    form = form_of(windows, channels, True)
    return _taps(node, windows, channels, form) if form else None


def _suits(windows: Windows, channels: int) -> bool:
    """Whether a problem is one that tiles are made for."""
    ones = windows.stride == windows.dilation == (1, 1)
    few = min(channels, windows.channels) <= MOST_OUTPUTS
    return ones and windows.taps == (TAPS, TAPS) and not few


def _known_order(node: Node, windows: Windows, channels: int) -> bool:
    """Whether the product is stored as it is, or as images, their channels, their rows."""
    if not node.attributes:
        return True
    split = (channels, windows.images, prod(windows.places))
    return (node.attributes["split"], node.attributes["axes"]) == (split, (1, 0, 2))


def form_of(windows: Windows, channels: int, turned: bool) -> int:
    """Results of a tile along an axis where tiles take less time than a product of windows;
    else 0. It depends on shapes only."""
    m, n, k = channels, windows.images * prod(windows.places), TAPS * TAPS * windows.channels
    n, k = (k, n) if turned else (n, k)
    least, best = GAIN * clocks(plan(1, m, n, k, 4), 1, m, n, 4), 0
    for form in PARTS:
        if tiles_of(PARTS[form]["results"], *windows.places)[1] > THREADS:
            continue  # a block has whole rows of tiles
        time = _clocks(windows, channels, form, turned)
        if time < least:
            least, best = time, form
    return best


def _clocks(windows: Windows, channels: int, form: int, turned: bool) -> float:
    """An estimate of the time of all kernels, in clocks of a multiprocessor."""
    rows, columns = tiles_of(PARTS[form]["results"], *windows.places)
    places, planes = windows.images * rows * columns, (form + TAPS - 1) ** 2
    m, n, k = channels, places, windows.channels
    m, n, k = (k, m, n) if turned else (m, n, k)
    product = clocks(plan(planes, m, n, k, 4), planes, m, n, 4)
    operands = 4 * planes * (m * k + k * n + m * n)
    images = 4 * windows.images * prod(windows.places) * (channels + windows.channels)
    moved = operands + images + 4 * TAPS * TAPS * channels * windows.channels
    return max(product, operands / TRAFFIC) + moved / TRAFFIC + 3 * LAUNCH


# Nodes --------------------------------------------------------------------------------------


def _tiles(windows: Windows, form: int) -> Node:
    """The planes of a convolution's input."""
    rows, columns = tiles_of(PARTS[form]["results"], *windows.places)
    x, beyond = windows.inner, TAPS - 1
    shape = (*x.shape[:2], rows * form + beyond, columns * form + beyond)
    return winograd(_inside(x, shape, windows.top, windows.left), form=form, part="images")


def _inside(x: Node, shape: tuple[int, ...], top: int, left: int) -> Node:
    """x among zeros."""
    if shape == x.shape:
        return x
    return movement.pad(x, starts=(0, 0, top, left), shape=shape, steps=(1,) * 4, value=0)


def _result(node: Node, windows: Windows, channels: int, form: int) -> Node:
    """The convolution itself."""
    kernel = movement.reshape(
        node.sources[0], shape=(channels, windows.channels, TAPS, TAPS)
    )  # fmt: skip
    kernel = movement.permute(kernel, axes=(1, 0, 2, 3))
    kernels = winograd(kernel, form=form, part="kernels")
    planes = contraction.matmul(kernels, _tiles(windows, form))
    shape = (windows.images, channels, *windows.places)
    images = unwinograd(planes, form=form, part="results", shape=shape)
    if not node.attributes and windows.images > 1:  # wanted as it is: channels first
        images = movement.permute(images, axes=(1, 0, 2, 3))
    return movement.reshape(images, shape=node.shape)


def _taps(node: Node, windows: Windows, channels: int, form: int) -> Node:
    """The gradient of its kernel."""
    g = movement.reshape(
        node.sources[0], shape=(channels, windows.images, *windows.places)
    )  # fmt: skip
    g = movement.permute(g, axes=(1, 0, 2, 3))
    rows, columns = tiles_of(PARTS[form]["results"], *windows.places)
    whole = (windows.images, channels, rows * form, columns * form)
    cotangents = winograd(_inside(g, whole, 0, 0), form=form, part="cotangents")
    planes = contraction.matmul(_tiles(windows, form), contraction.transpose(cotangents))
    shape = (channels, windows.channels, TAPS, TAPS)
    taps = unwinograd(planes, form=form, part="taps", shape=shape)
    return movement.reshape(taps, shape=node.shape)
