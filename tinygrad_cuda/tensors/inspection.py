"""Values on demand; looking inside: the graph as networkx and its kernels as text."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda.kernel_info import KernelInfo
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.engine.capture import capturing
from tinygrad_cuda.engine.realize import explain as explain_nodes
from tinygrad_cuda.engine.realize import realize as realize_pending
from tinygrad_cuda.engine.realize import realize_all
from tinygrad_cuda.graph import draw as drawing
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.program import Program
from tinygrad_cuda.lowering.lower import lower
from tinygrad_cuda.lowering.target import Target
from tinygrad_cuda.tensors.base import TensorBase

__all__ = [
    "explain", "realize", "to_networkx",
]  # fmt: skip


def _nodes(tensors: Any) -> list[Node]:
    values = [tensors] if isinstance(tensors, TensorBase) else list(tensors)
    return [tensor.node for tensor in values]


def realize(*tensors: TensorBase) -> None:
    """Computes what is pending, without copying a value to the host.

    Everything that this thread has recorded on the devices of these Tensors is one plan; without
    an argument, on every device. A GPU is not waited for: see ``tc.cuda.synchronize``.

    Args:
        tensors: Tensors that shall have a value afterwards.

    Raises:
        ArgumentError: an argument is no Tensor.
        CompileError: in a compiled function, whose graph would be cut.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.ones(3, device="cpu").exp()
        >>> tc.realize(x)
        >>> tc.to_networkx(x).number_of_edges()
        0
    """
    for position, tensor in enumerate(tensors):
        if not isinstance(tensor, TensorBase):
            raise ArgumentError(
                "realize", "an argument is no Tensor", expect="Tensors, each one argument",
                actual=f"{type(tensor).__name__} in position {position}",
            )  # fmt: skip
    if (capture := capturing()) is not None:
        for tensor in tensors:
            capture.refuse(tensor.node)
        return
    for tensor in tensors:
        if tensor.node.storage is None:
            realize_pending(tensor.device, (tensor.node,))
    if not tensors:
        realize_all()


def to_networkx(tensors: Any) -> Any:
    """The recorded graph behind one or several Tensors as a networkx ``DiGraph``.

    Edges lead from a source to its consumer; what was realized and needs no gradient is a leaf.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.ones(3, device="cpu")
        >>> tc.to_networkx(x + x).number_of_nodes()
        2
    """
    return drawing.to_networkx(_nodes(tensors))


def explain(tensors: Any) -> Explanation:
    """The kernels that computing these Tensors would run, one line each, and their memory.

    The last lines say how many bytes inputs and new results take, how many the values between
    kernels take at most, and which are the largest then: op, shape, dtype, the kernels that write
    and last read each, and the line that made it. Nothing is computed. What is realized already
    needs no kernel. ``TGC_DEBUG=3`` prints why each kernel exists.

    Returns:
        The text, whose ``kernels`` have source, registers, spills, occupancy and machine code.

    Example:
        >>> import tinygrad_cuda as tc
        >>> text = tc.rand(4, 8, device="emu").sum(1).explain()
        >>> print(text.splitlines()[-1])
        memory: inputs 0 bytes, new outputs 16 bytes, between kernels 0 bytes
        >>> len(text.kernels)
        1
    """
    nodes = _nodes(tensors)
    text, program = explain_nodes(nodes)
    explanation = Explanation(text)
    explanation.program = program
    return explanation


class Explanation(str):
    """What `explain` says: a text, and the kernels behind it.

    Attributes:
        kernels: in their order; on ``cpu`` those that an H200 would run.
    """

    program: Program | None = None

    @cached_property
    def kernels(self) -> list[KernelInfo]:
        if self.program is None:
            return []
        target = registry.get(self.program.device).target or Target.h200()
        return [KernelInfo(launch, target) for launch in lower(self.program, target).launches]
