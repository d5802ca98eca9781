"""Simplifies a plan's own graph: every rule that may change it stands in one table, `RULES`.

Autograd's identities are erased, equal nodes become one, constants fold, index rewrites merge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.graph.node import Node, Op, gradient_mode, mode, node_made, recorded_at
from tinygrad_cuda.graph.ops import TABLE, common, contraction, convolution, indexing, scan
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.graph.rewrite import arithmetic as ar
from tinygrad_cuda.graph.rewrite import convolutions as cv
from tinygrad_cuda.graph.rewrite import shaping as sh
from tinygrad_cuda.graph.rewrite.pattern import RewriteRule, When, literal

_COMPUTED = ("elementwise", "reduction", "movement", "contraction", "kernel")
_FOLDED = tuple(op for op in TABLE.values() if op.kind == "elementwise" and not op.arguments)
_SHAPE_KEEPING = (mv.reshape, mv.permute, mv.expand, mv.slice_, mv.pad, mv.flip, mv.window)
_LOGIC = (
    ew.logical_and, ew.logical_or, ew.logical_xor, ew.bitwise_and, ew.bitwise_or, ew.bitwise_xor,
)  # fmt: skip
_COMPARISONS = (ew.eq, ew.ne, ew.lt, ew.le, ew.gt, ew.ge)

# Tried in this order at each node, until none holds.
RULES: tuple[RewriteRule, ...] = (
    RewriteRule("variable", (common.variable,), ar.erase, When.BEFORE_SOURCES),
    RewriteRule("detach", (common.detach,), ar.erase, When.BEFORE_SOURCES),
    RewriteRule("custom", (common.custom,), ar.erase, When.BEFORE_SOURCES),
    RewriteRule("custom output", (common.output,), ar.erase_output, When.BEFORE_SOURCES),
    RewriteRule("running sums and orders", scan.ROWS, scan.as_nodes, When.BEFORE_SOURCES),
    RewriteRule(
        "empty",
        tuple(op for op in TABLE.values() if op.kind in _COMPUTED),
        sh.empty,
        When.WITHOUT_ELEMENTS,
    ),
    RewriteRule("fold constants", _FOLDED, ar.fold, When.OF_CONSTANTS),
    # Arithmetic
    RewriteRule("x + 0", (ew.add,), ar.add_zero),
    RewriteRule("x + -y", (ew.add,), ar.add_negated),
    RewriteRule("x - 0", (ew.sub,), ar.sub_zero),
    RewriteRule("0 - x", (ew.sub,), ar.zero_sub),
    RewriteRule("x - -y", (ew.sub,), ar.sub_negated),
    RewriteRule("x - x", (ew.sub,), ar.sub_itself),
    RewriteRule("x * 1", (ew.mul,), ar.mul_one),
    RewriteRule("x * -1", (ew.mul,), ar.mul_minus_one),
    RewriteRule("x * 0", (ew.mul,), ar.mul_zero),
    RewriteRule("-x * -y", (ew.mul, ew.div), ar.both_negated),
    RewriteRule("-x * c", (ew.mul,), ar.negated_times_constant),
    RewriteRule("(x + c) + d", (ew.add, ew.mul), ar.associate),
    RewriteRule("x / 1", (ew.div,), ar.div_one),
    RewriteRule("x / 2^k", (ew.div,), ar.div_power_of_two),
    RewriteRule("x ** c", (ew.pow,), ar.pow_literal),
    RewriteRule("--x", (ew.neg,), ar.neg_neg),
    RewriteRule("abs", (ew.abs,), ar.abs_sign),
    RewriteRule("round twice", ar.ROUNDINGS, ar.round_twice),
    RewriteRule("max(x, x)", (ew.maximum, ew.minimum), ar.first_if_same),
    # Logic
    RewriteRule("x and x", _LOGIC[:2] + _LOGIC[3:5], ar.first_if_same),
    RewriteRule("x xor x", (ew.logical_xor, ew.bitwise_xor), ar.exclusive_itself),
    RewriteRule("x and true", _LOGIC, ar.logic_literal),
    RewriteRule("not not x", (ew.logical_not, ew.bitwise_not), ar.not_not),
    RewriteRule("not x == y", (ew.logical_not,), ar.not_compared),
    RewriteRule("x < x", _COMPARISONS, ar.compare_itself),
    RewriteRule("where(true, x, y)", (ew.where,), ar.where_literal),
    RewriteRule("where(c, x, x)", (ew.where,), ar.where_same),
    RewriteRule("where(not c, x, y)", (ew.where,), ar.where_not),
    RewriteRule("where(c, where(c, x, y), z)", (ew.where,), ar.where_where),
    RewriteRule("where(c, true, false)", (ew.where,), ar.where_truth),
    # Casts
    RewriteRule("cast to its own dtype", (ew.cast,), ar.cast_same),
    RewriteRule("widen and cast", (ew.cast,), ar.cast_cast),
    # Index rewrites
    RewriteRule("identity", (*_SHAPE_KEEPING, mv.unwindow), sh.identity),
    RewriteRule("constant moved", (*_SHAPE_KEEPING, mv.unwindow), sh.of_constant),
    RewriteRule("reshape twice", (mv.reshape,), sh.reshape_reshape),
    RewriteRule("permute twice", (mv.permute,), sh.permute_permute),
    RewriteRule("expand twice", (mv.expand,), sh.expand_expand),
    RewriteRule("flip twice", (mv.flip,), sh.flip_flip),
    RewriteRule("slice of pad", (mv.slice_,), sh.slice_of_pad),
    RewriteRule("slice twice", (mv.slice_,), sh.slice_slice),
    RewriteRule("pad twice", (mv.pad,), sh.pad_pad),
    RewriteRule("window of unwindow", (mv.window,), sh.window_of_unwindow),
    # Reductions and contractions
    RewriteRule("reduce nothing", rd.ROWS, sh.reduce_nothing),
    RewriteRule("reduce one element", rd.ROWS, sh.reduce_single),
    RewriteRule("reduce constant", rd.ROWS, sh.reduce_constant),
    RewriteRule("reduce expanded", rd.ROWS, sh.reduce_expanded),
    RewriteRule("matmul over nothing", (contraction.matmul,), sh.matmul_nothing),
    # Convolutions
    RewriteRule("convolution over nothing", convolution.ROWS, cv.over_nothing),
    RewriteRule("input gradient", (convolution.convolution_input_gradient,), cv.input_gradient),
    RewriteRule(
        "convolution of padding",
        (convolution.convolution, convolution.convolution_weight_gradient),
        cv.joined_padding,
    ),
)

# Never merged with an equal: an input is itself, and each assign asks for a storage of its own.
_DISTINCT = (common.buffer, common.assign)
_COMMUTATIVE = (ew.add, ew.mul, ew.eq, ew.ne, *_LOGIC)


def _by_op(when: When) -> dict[Op, list[RewriteRule]]:
    table: dict[Op, list[RewriteRule]] = {}
    for rule in RULES:
        if rule.when is when:
            for op in rule.ops:
                table.setdefault(op, []).append(rule)
    return table


_BEFORE_SOURCES, _WITHOUT_ELEMENTS, _OF_CONSTANTS, _ALWAYS = map(_by_op, When)


def simplify(
    outputs: Sequence[Node],
    counts: dict[str, int] | None = None,
    checks: list[Node] | None = None,
) -> tuple[Node, ...]:
    """Nodes of the same values, shapes and dtypes as `outputs`, from as few nodes as possible.

    Rules are exact, signed zeros and NaN included, when each row rounds to the node's dtype. So
    ``x + 0.0`` stays (it turns -0.0 into 0.0) while ``x + -0.0``, ``x - 0.0`` and ``x * 1`` go,
    and ``x * 0`` stays for floating dtypes. Two kinds of rule give the better rounded value
    instead: ``x ** 2`` is ``x * x``, and a sum of equal numbers is one product. The sign of a
    sum that is zero is not defined. Constants fold to what the NumPy reference gives. A check is
    dropped with the last reader of its value; see `lowering.schedule.checks`.

    Args:
        outputs: the wanted values of one plan. Nodes without storages; ``buffer`` nodes stay
            as they are, ``assign`` nodes stay apart.
        counts: receives how often each rule fired, by name; ``common_subexpression`` among them.
        checks: receives every check of the graph, over its simplified sources.
    """
    simplifier = _Simplifier(counts)
    with gradient_mode(False), recorded_at(None):
        simplified = simplifier.run(outputs)
    if checks is not None:
        checks += dict.fromkeys(simplifier.checks)
    return simplified


class _Simplifier:
    """The state of one call: what became of each node, and the nodes that stand for all equals."""

    def __init__(self, counts: dict[str, int] | None) -> None:
        self.counts = counts
        self.mode = mode.now
        self.done: dict[Node, Node] = {}
        self.interned: dict[Any, Node] = {}
        self.numbers: dict[Node, int] = {}
        self.checks: list[Node] = []

    def run(self, outputs: Sequence[Node]) -> tuple[Node, ...]:
        done = self.done
        # A node waits for its replacement, which may need work of its own.
        waiting: dict[Node, Node] = {}
        stack = list(reversed(outputs))
        while stack:
            node = stack[-1]
            if node in done:
                stack.pop()
                continue
            replacement = waiting.pop(node, None)
            if replacement is not None:
                done[node] = done[replacement]
                stack.pop()
                continue
            rewritten = self.rewritten(node, _BEFORE_SOURCES)
            if rewritten is None:
                missing = [source for source in node.sources if source not in done]
                if missing:
                    stack.extend(reversed(missing))
                    continue
                rebuilt = self.rebuilt(node)
                rewritten = self.simplified(rebuilt)
                if rewritten is None:
                    rewritten = self.intern(rebuilt)
                    done[rewritten] = rewritten
                    if rewritten.op in indexing.CHECKS:
                        self.checks.append(rewritten)
            if rewritten in done:
                done[node] = done[rewritten]
                stack.pop()
            else:
                waiting[node] = rewritten
                stack.append(rewritten)
        return tuple(done[node] for node in outputs)

    def simplified(self, node: Node) -> Node | None:
        """What a node with simplified sources becomes, or None."""
        replacement = None
        if 0 in node.shape:
            replacement = self.rewritten(node, _WITHOUT_ELEMENTS)
        if replacement is None and all(source.op is common.constant for source in node.sources):
            replacement = self.rewritten(node, _OF_CONSTANTS)
        return self.rewritten(node, _ALWAYS) if replacement is None else replacement

    def rewritten(self, node: Node, rules: dict[Op, list[RewriteRule]]) -> Node | None:
        for rule in rules.get(node.op, ()):
            self.mode.site = node.site
            replacement = rule.apply(node)
            if replacement is not None:
                self.count(rule.name)
                return replacement
        return None

    def rebuilt(self, node: Node) -> Node:
        """The node over its simplified sources."""
        sources = tuple(self.done[source] for source in node.sources)
        if sources == node.sources and not node.requires_grad:
            return node
        return node_made(
            node.op, sources, node.attributes, node.outputs, node.device, False, node.site
        )

    def intern(self, node: Node) -> Node:
        if node.op in _DISTINCT:
            self.numbers[node] = len(self.numbers)
            return node
        sources = node.sources
        if node.op in _COMMUTATIVE:
            sources = tuple(sorted(sources, key=self.numbers.__getitem__))
        key = (node.op, sources, node.outputs, node.device, _attributes_key(node))
        shared = self.interned.setdefault(key, node)
        if shared is not node:
            self.count("common_subexpression")
        self.numbers.setdefault(shared, len(self.numbers))
        return shared

    def count(self, name: str) -> None:
        if self.counts is not None:
            self.counts[name] = self.counts.get(name, 0) + 1


def _attributes_key(node: Node) -> Any:
    if node.op is common.constant:
        value = literal(node)
        if value is not None:
            return _key(value)
    return tuple(sorted((name, _key(value)) for name, value in node.attributes.items()))


def _key(value: Any) -> Any:
    """Tells 1 from 1.0 and True, and 0.0 from -0.0; NaN equals itself."""
    if isinstance(value, tuple):
        return (type(value).__name__, tuple(map(_key, value)))
    if isinstance(value, float):
        return ("float", float(value).hex())
    if isinstance(value, bool | int | str):
        return (type(value).__name__, repr(value))
    if isinstance(value, DType):
        return ("DType", value.name)
    return ("object", id(value))
