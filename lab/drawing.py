"""What `tc.draw` takes for a graph of 5,000 nodes: noting and scheduling it, its layout, the page.

Run ``python lab/drawing.py``; it needs no GPU. Times are of the process, so that another one's
load does not count.
"""

from __future__ import annotations

import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.graph.draw import draw
from tinygrad_cuda.utils.drawing import DrawnPlan, joined

LAYERS = 22  # of a transformer: about 5,000 nodes with the gradient


def recorded() -> list[tc.Tensor]:
    """The loss of a transformer and its gradients, pending."""
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, LAYERS)
    for parameter in model.parameters():
        parameter.detach().numpy()
    with tc.record_modules():
        loss = model(tc.rand(2, 16, 64)).sum()
        loss.backward()
    return [loss, *(p.grad for p in model.parameters() if p.grad is not None)]


def timed(name: str, work: Callable[[], Any]) -> Any:
    start = time.process_time()
    result = work()
    print(f"{name:<24} {time.process_time() - start:6.2f} s")
    return result


def main() -> None:
    tc.set_default_device("cpu")
    values = recorded()
    count = tc.to_networkx(values).number_of_nodes()
    print(f"{count} nodes, Python {platform.python_version()}")
    plan = timed("noted and scheduled", lambda: DrawnPlan([value.node for value in values]))
    graph = timed("as a networkx graph", lambda: joined([plan]))
    with tempfile.TemporaryDirectory() as folder:
        for ending in ("html", "svg"):
            timed(f"laid out, .{ending}", lambda: draw(graph, f"{folder}/graph.{ending}"))  # noqa: B023


if __name__ == "__main__":
    main()
