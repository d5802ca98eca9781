"""`backward` and `grad` on Tensors: seeds, accumulation into leaves, hooks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any
from weakref import ref

from tinygrad_cuda.core.errors import ArgumentError, GradientError, ShapeError, user_site
from tinygrad_cuda.core.interrupts import uninterrupted
from tinygrad_cuda.engine.capture import capturing
from tinygrad_cuda.engine.cell import Leaf
from tinygrad_cuda.engine.realize import begin_backward, end_backward
from tinygrad_cuda.engine.vmap_trace import Recording
from tinygrad_cuda.graph import gradient
from tinygrad_cuda.graph.batching import Rewriting, example
from tinygrad_cuda.graph.node import Node, gradient_mode, made_by
from tinygrad_cuda.graph.ops import common, elementwise
from tinygrad_cuda.tensors.base import TensorBase, wrap

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor


def as_list(value: Any) -> list[Any]:
    """A list of one Tensor or of several."""
    return [value] if isinstance(value, TensorBase) or value is None else list(value)


def _seeds(op: str, outputs: list[Any], gradients: Any) -> list[Node]:
    given = as_list(gradients) if gradients is not None else [None] * len(outputs)
    if len(given) != len(outputs):
        raise ArgumentError(
            op, "one seed per output", expect=str(len(outputs)), actual=str(len(given))
        )
    seeds = []
    for output, g in zip(outputs, given):
        node = output.node
        if not node.requires_grad:
            raise GradientError(
                op,
                "the tensor does not require grad",
                expect="a result of tensors that require grad",
                actual=f"{made_by(node)}",
                hint="call requires_grad_() on an input before computing, outside no_grad()",
            )
        if g is None:
            seeds.append(_one_for(op, node))
            continue
        seed = g.node
        if seed.shape != node.shape:
            raise ShapeError(
                op,
                "the seed has another shape than the output",
                expect=f"shape {node.shape}, that of the output",
                actual=f"shape {seed.shape}",
            )
        if seed.dtype is not node.dtype:
            seed = elementwise.cast(seed, dtype=node.dtype)
        seeds.append(seed)
    return seeds


def _one_for(op: str, node: Node) -> Node:
    """The seed of an output of one element; of a complex one it would mean the real part alone."""
    if prod(node.shape) != 1:
        raise GradientError(
            op,
            "the gradient of a non-scalar needs a seed",
            expect=f"one element, or gradient= of shape {node.shape}",
            actual=f"shape {node.shape}, {made_by(node)}",
            hint="reduce it first, e.g. .sum().backward() or .mean().backward()",
        )
    if node.dtype.is_complex:
        raise GradientError(
            op, "the gradient of a complex output needs a seed",
            expect="a real output, or gradient= of its shape",
            actual=f"{node.dtype.name}, {made_by(node)}",
            hint="differentiate a real loss, e.g. z.abs().sum() or z.real.sum()",
        )  # fmt: skip
    return common.full_like(node, 1)


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Adds the gradients of `tensors` to the ``.grad`` of the leaves they depend on.

    ``leaf.grad += sum_k seed_k * d tensors_k / d leaf``

    Args:
        tensors: one or several outputs.
        grad_tensors: their seeds; may be left out for outputs of one element.
        retain_graph: keep the history for another pass; defaults to `create_graph`.
        create_graph: make the gradients differentiable themselves.
        inputs: accumulate into these only; results of operations get a ``.grad`` too.

    Raises:
        GradientError: an output needs a seed, has no history, or its history was spent.
        ArgumentError: `inputs` is empty.
    """
    site = user_site()
    begin_backward(site)
    outputs = as_list(tensors)
    seeds = _seeds("backward", outputs, grad_tensors)
    keep = create_graph if retain_graph is None else retain_graph
    wanted, results = (None, []) if inputs is None else _wanted(as_list(inputs))
    gradients = gradient.backward(
        [tensor.node for tensor in outputs],
        seeds,
        wanted,
        create_graph=create_graph,
        retain_graph=keep,
    )
    # The last layer first: its weights' gradient is taken as soon as the cotangent is there, and
    # with it both its operands are freed. In the other order all of them wait for the end.
    with uninterrupted:
        for node, g in reversed(gradients.items()):
            if node.op is common.variable:
                accumulate(node.attributes["leaf"], g, create_graph)
        for tensor in results:
            if tensor.node in gradients:
                tensor._retained = tensor._retained or Leaf()
                accumulate(tensor._retained, gradients[tensor.node], create_graph)
    end_backward()


def _wanted(inputs: list[Any]) -> tuple[list[Node], list[Any]]:
    """The nodes whose gradients `backward` wants, and the Tensors that are no leaves.

    One that keeps its gradient already gets it during the pass.
    """
    if not inputs:
        raise ArgumentError(
            "backward", "inputs is empty", expect="one leaf or several, or None for all",
            actual="no Tensor",
        )  # fmt: skip
    nodes = [node for tensor in inputs for node in _nodes_of(tensor)]
    results = [t for t in inputs if t.leaf is None and not gradient.ends_watched(t.node)]
    return nodes, results


def _nodes_of(tensor: Tensor) -> list[Node]:
    """Where gradients of a Tensor arrive: a leaf that was written since has several nodes."""
    node, leaf = tensor.node, tensor.leaf
    return [node] if leaf is None else [node, *leaf.earlier()]


def accumulate(leaf: Leaf, g: Node, create_graph: bool = False) -> None:
    """``leaf.grad = g`` or, if there is one already, ``leaf.grad += g``."""
    if (capture := capturing()) is not None:
        capture.saw_leaf(leaf)
    if leaf.grad is None and not leaf.hooks:
        leaf.grad = wrap(g)
    else:
        _accumulate(leaf, g, create_graph)


def _accumulate(leaf: Leaf, g: Node, create_graph: bool) -> None:
    """`accumulate` for a leaf with hooks or a gradient."""
    with gradient_mode(create_graph):
        tensor = hooked(leaf, g)
        if leaf.grad is None:
            leaf.grad = tensor
        elif create_graph:
            leaf.grad = wrap(elementwise.add(leaf.grad.node, tensor.node))
        else:
            leaf.grad.write(elementwise.add(leaf.grad.node, tensor.node), "backward")
        for after in [hook for hook in leaf.hooks.values() if isinstance(hook, AfterHook)]:
            after()


class AfterHook:
    """Among the hooks of a leaf one that is called when its ``.grad`` is there.

    Args:
        hook: takes the leaf Tensor.
        tensor: that Tensor.
    """

    def __init__(self, hook: Callable[[Tensor], None], tensor: Tensor) -> None:
        # Weak: the hooks belong to what the Tensor holds.
        self._hook, self._tensor = hook, ref(tensor)

    def __call__(self, *unused: Any) -> None:
        tensor = self._tensor()
        if tensor is None:
            return
        result: object = self._hook(tensor)
        if result is not None:
            raise GradientError(
                "register_post_accumulate_grad_hook", "the hook returned something",
                expect="None; the hook may write to .grad in place", actual=type(result).__name__,
            )  # fmt: skip


def hooked(leaf: Leaf, g: Node) -> Tensor:
    """The gradient of a leaf as the hooks on it leave it."""
    tensor = wrap(g)
    for hook in list(leaf.hooks.values()):
        if isinstance(hook, AfterHook):
            continue
        tensor = of_hook(hook(tensor), tensor)
    return tensor


def of_hook(replaced: Any, gradient: Tensor) -> Tensor:
    """What a hook on a Tensor makes of a gradient: its result, or the gradient where it is None.

    Raises:
        ArgumentError: the result cannot take the gradient's place.
    """
    if replaced is None:
        return gradient
    wanted = (gradient.shape, gradient.dtype)
    if not isinstance(replaced, TensorBase) or (replaced.shape, replaced.dtype) != wanted:
        raise ArgumentError(
            "register_hook", "the hook's result cannot replace the gradient",
            expect=f"None, or a {gradient.dtype.name} Tensor of shape {gradient.shape}",
            actual=f"{replaced.dtype.name}, shape {replaced.shape}"
            if isinstance(replaced, TensorBase) else type(replaced).__name__,
        )  # fmt: skip
    result: Tensor = replaced  # type: ignore[assignment]
    return result


def clear(parameter: Tensor, set_to_none: bool = True) -> None:
    """Drops the gradient of a leaf, frozen or not, or writes zeros to it."""
    leaf = parameter.accumulator
    if leaf is not None and (capture := capturing()) is not None:
        capture.saw_leaf(leaf, dropped=set_to_none)
    if leaf is None or leaf.grad is None:
        return
    if set_to_none:
        leaf.grad = None
    else:
        with gradient_mode(False):
            leaf.grad.detach().zero_()


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of `outputs` with respect to `inputs`, without touching ``.grad``.

    Hooks on the inputs are called, as PyTorch does.

    Args:
        outputs, inputs: one or several Tensors.
        grad_outputs: seeds; may be left out for outputs of one element.
        retain_graph: keep the history for another pass; defaults to `create_graph`.
        create_graph: make the gradients differentiable themselves.
        only_inputs: accepted as in PyTorch, where it does nothing.
        allow_unused: give None for an input that the outputs do not depend on.
        is_grads_batched: the seeds have a leading dimension, and so have the gradients.
        materialize_grads: give zeros instead of None.

    Raises:
        GradientError: an input does not require grad or is unused, or a history was spent.
    """
    site = user_site()
    begin_backward(site)
    targets = as_list(inputs)
    for position, tensor in enumerate(targets):
        if not tensor.requires_grad:
            raise GradientError(
                "grad",
                f"inputs[{position}] does not require grad",
                expect="inputs that required grad when the outputs were computed",
                actual=made_by(tensor.node),
                hint="call requires_grad_() on it before computing the outputs",
            )
    sources = as_list(outputs)
    nodes = [_nodes_of(tensor) for tensor in targets]
    keep = create_graph if retain_graph is None else retain_graph

    def found_for(seeds: Any) -> dict[Node, Node]:
        gradients = gradient.backward(
            [tensor.node for tensor in sources],
            _seeds("grad", sources, seeds),
            [node for copies in nodes for node in copies],
            create_graph=create_graph,
            retain_graph=keep,
        )
        with gradient_mode(create_graph):
            for tensor, copies in zip(targets, nodes):
                _join(gradients, tensor.leaf, copies)
        return gradients

    if is_grads_batched:
        gradients = _for_each_seed(found_for, as_list(grad_outputs))
    else:
        gradients = found_for(grad_outputs)
    result: list[Tensor | None] = []
    for position, (node, *_) in enumerate(nodes):
        g = gradients.get(node)
        if g is None and materialize_grads:
            g = common.full_like(node, 0)
        if g is None and not (allow_unused or materialize_grads):
            raise GradientError(
                "grad",
                f"inputs[{position}] was not used by the outputs",
                expect="outputs that depend on every input",
                actual=f"no path from inputs[{position}], shape {node.shape}",
                hint="pass allow_unused=True to get None for it, or use it before",
            )
        result.append(None if g is None else wrap(g))
    end_backward()
    return tuple(result)


def _join(gradients: dict[Node, Node], leaf: Leaf | None, copies: list[Node]) -> None:
    """The whole gradient of one input, as its hooks leave it, at the first of its nodes."""
    parts = [gradients[node] for node in dict.fromkeys(copies) if node in gradients]
    if parts and len(copies) > 1:
        gradients[copies[0]] = functools.reduce(elementwise.add, parts)
    if parts and leaf is not None and leaf.hooks:
        gradients[copies[0]] = hooked(leaf, gradients[copies[0]]).node


def _for_each_seed(
    found_for: Callable[[Any], dict[Node, Node]], grad_outputs: list[Any]
) -> dict[Node, Node]:
    """The gradients for a batch of seeds: recorded for one of them, and rewritten for all."""
    replaced: dict[Node, Node] = {}
    with Recording("error") as recording:
        seeds = []
        for whole in [seed.node for seed in grad_outputs]:
            one = example.leaf(whole.shape[1:], whole.dtype, whole.device)
            one.requires_grad = whole.requires_grad
            replaced[one] = whole
            recording.examples.add(one)
            seeds.append(wrap(one))
        mapped = found_for(seeds)
    rewriting = Rewriting(replaced, grad_outputs[0].shape[0])
    rewriting(mapped.values())
    return {node: rewriting.batched(g) for node, g in mapped.items()}
