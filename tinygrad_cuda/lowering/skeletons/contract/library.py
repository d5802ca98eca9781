"""CONTRACT by cuBLASLt: which matrices in memory a product has, and which epilogue it takes along.

No text is generated: the stage names a library's call, and its parameters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import NamedTuple

from tinygrad_cuda.core.config import ROUNDED, settings
from tinygrad_cuda.graph.node import Node, gradient_mode, node_made, recorded_at, topological
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops.gelu import CUBIC, LINEAR
from tinygrad_cuda.graph.rewrite.products import readers_of
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.affine import AffineLeaf, Index
from tinygrad_cuda.lowering.codegen.expression import Evaluator, Scope
from tinygrad_cuda.lowering.codegen.library_call import (
    LibraryCall,
    LibraryMatrix,
    LibraryProduct,
)
from tinygrad_cuda.lowering.codegen.skeleton import THREADS, KernelParams, LibraryWorkspace, Stage
from tinygrad_cuda.lowering.layouts import Layouts
from tinygrad_cuda.lowering.schedule.fusion import LibraryEpilogue, keeps_order, trace
from tinygrad_cuda.lowering.schedule.kernel_dag import Choice, Kernel
from tinygrad_cuda.lowering.skeletons.contract.loads import Source, sources_of, zero_outside

CUBLAS = "cublas"
DTYPES = ("float16", "bfloat16", "float32", "float64")
WORKSPACE = 32 << 20  # bytes: what cuBLAS recommends for sm_90; sums of parts of k lie there
BIAS_ALIGNED = 16  # bytes: of a bias's vector loads
NEAR = 1e-2  # of a constant that may have been rounded to 16 bits


class LibraryCut(NamedTuple):
    """How a library makes a product.

    Attributes:
        compute: the arithmetic, as cuBLAS names it.
        epilogue: what it computes besides.
    """

    compute: str
    epilogue: LibraryEpilogue | None = None


def compute_of(node: Node) -> str:
    """The arithmetic that the settings permit for a product: sums are float32, or float64."""
    if node.dtype.name == "float64":
        return "COMPUTE_64F"
    if node.dtype.name == "float32" and settings.matmul_precision == "ieee":
        return "COMPUTE_32F_PEDANTIC"  # nor emulated on other units
    if node.dtype.name == "float32" and settings.matmul_precision in ROUNDED:
        return "COMPUTE_32F_FAST_TF32"
    return "COMPUTE_32F"


# Operands in memory ------------------------------------------------------------------------------


class _Strided(NamedTuple):
    """An operand as a matrix for each batch.

    Attributes:
        node: the value in memory.
        along_k: whether neighbouring values of k are neighbours in memory.
        matrix: by columns, which lie along k or along the other axis.
    """

    node: Node
    along_k: bool
    matrix: LibraryMatrix


def strides_of(
    node: Node, at: Sequence[Index], memory: Node, names: Collection[str]
) -> tuple[dict[str, int], int] | None:
    """What one more of each variable moves in memory, and the first element; None if not affine."""
    reader = Evaluator(KernelParams(), {memory}, True)
    reader.scopes = [Scope("batch"), Scope(*names)]
    node, inner, guard = zero_outside(reader, node, tuple(at))
    if guard or node is not memory:
        return None
    index = ix.flatten(inner, node.shape).expanded()
    steps = dict.fromkeys(names, 0)
    for coefficient, term in index.terms:
        if not isinstance(term, AffineLeaf) or term.name not in steps or coefficient < 0:
            return None
        steps[term.name] = coefficient
    return steps, index.constant


def in_memory(node: Node) -> Node | None:
    """The value behind an operand's movements, if it has memory of its own and the same dtype."""
    base = trace(node, set()).base
    if base.op.kind == "leaf" and base.op is not common.buffer:
        return None
    return base if base.dtype is node.dtype else None


def memory_view(x: Node) -> tuple[Node, tuple[int, ...], int] | None:
    """The value in memory that an operand is a view of, the view's strides, and its first element.

    None where its movements leave no strides.
    """
    base = in_memory(x)
    if base is None:
        return None
    names = [f"axis{number}" for number in range(len(x.shape))]
    at = tuple(ix.variable(name, size) for name, size in zip(names, x.shape, strict=True))
    strided = strides_of(x, at, base, names)
    if strided is None:
        return None
    steps, offset = strided
    return base, tuple(steps[name] for name in names), offset


def _strided(source: Source) -> _Strided | None:
    """An operand as strided matrices; None where its movements leave none."""
    base = in_memory(source.node)
    if base is None:
        return None
    sizes = {"k": source.k, source.other: source.extent, "batch": source.batches}
    k, other, batch = (ix.variable(name, size) for name, size in sizes.items())
    strided = strides_of(source.node, source.at(batch, other, k), base, sizes)
    if strided is None:
        return None
    steps, offset = strided
    for inner, outer in (("k", source.other), (source.other, "k")):
        rows, columns = sizes[inner], sizes[outer]
        stride = steps[outer] if columns > 1 else rows
        if (steps[inner] == 1 or rows == 1) and stride >= rows:
            matrix = LibraryMatrix(rows, columns, stride, steps["batch"], offset)
            return _Strided(base, inner == "k", matrix)
    return None


def with_matrices(product: Node, layouts: Layouts) -> Node:
    """The product of operands that are strided matrices in memory; others are stored so."""
    operands = []
    with gradient_mode(False), recorded_at(product.site):
        a, b = product.sources
        for source in sources_of(a, b):
            node = source.node
            usable = _strided(source) is not None
            operands.append(node if usable else layouts.copy(node, tuple(range(len(node.shape)))))
    return node_made(
        product.op, tuple(operands), product.attributes, product.outputs, product.device, False,
        product.site,
    )  # fmt: skip


# Epilogues ---------------------------------------------------------------------------------------


def with_epilogues(outputs: Sequence[Node], choices: Mapping[Node, Choice]) -> dict[Node, Choice]:
    """The choices, in which library products take the bias and the activation that follow alone.

    Args:
        outputs: of a plan.
        choices: the tiers of its products.
    """
    products = [node for node, choice in choices.items() if isinstance(choice.cut, LibraryCut)]
    if not products:
        return dict(choices)
    readers, wanted = readers_of(topological(outputs)), set(outputs)
    made = dict(choices)
    for product in products:
        epilogue = _epilogue_of(product, readers, wanted)
        if epilogue is not None:
            cut = choices[product].cut._replace(epilogue=epilogue)
            reason = f"{choices[product].reason}; its epilogue: {epilogue.name}"
            made[product] = choices[product]._replace(cut=cut, reason=reason)
    return made


def end_of_call(
    product: Node, readers: Mapping[Node, list[Node]], wanted: Collection[Node]
) -> Node:
    """What a library's call stores, if it makes a product: the end of its epilogue.

    Args:
        readers: of the plan's nodes, see `readers_of`.
        wanted: values that end up in memory.
    """
    epilogue = _epilogue_of(product, readers, wanted)
    return product if epilogue is None else epilogue.members[-1]


def _epilogue_of(
    product: Node, readers: Mapping[Node, list[Node]], wanted: Collection[Node]
) -> LibraryEpilogue | None:
    """The longest epilogue behind a product whose other values nobody reads."""
    graph = _Readers(readers, wanted)
    bias, activation, members, end = None, "", [product], product
    value = graph.behind(product)
    (*_, add) = graph.of(value) or [product]
    if add.op is ew.add and graph.of(value) == [add]:
        left, right = add.sources
        vector = right if left is value else left
        if vector is not value and _is_bias(vector, product):
            bias, end = vector, add
            members.append(add)
            value = graph.behind(add)
    for name, match in (("relu", _relu), ("gelu", _gelu)):
        nodes = match(value, graph)
        if nodes:
            activation, end = name, nodes[-1]
            members += nodes
            break
    stored = graph.stored_behind(end)
    if stored is not None:
        members.append(stored)
        end = stored
    if end is product:
        return None
    return LibraryEpilogue(tuple(members), bias, activation)


class _Readers:
    """Who reads a plan's values.

    Args:
        readers: of each node, once for each operand.
        wanted: values that end up in memory.
    """

    def __init__(self, readers: Mapping[Node, list[Node]], wanted: Collection[Node]) -> None:
        self._readers, self._wanted = readers, wanted

    def of(self, node: Node) -> list[Node]:
        """The nodes that read a value; none if the value is also wanted in memory."""
        return [] if node in self._wanted else self._readers[node]

    def behind(self, node: Node) -> Node:
        """The value as its readers see it, behind movements that leave elements in their order."""
        while len(readers := self.of(node)) == 1 and readers[0].op.kind == "movement":
            if not keeps_order(readers[0]):
                break
            (node,) = readers
        return node

    def stored_behind(self, node: Node) -> Node | None:
        """A value wanted in memory that has the same elements in the same order, and no others."""
        while len(readers := self.of(node)) == 1 and readers[0].op.kind == "movement":
            (node,) = readers
            if not keeps_order(node):
                return None
            if node in self._wanted:
                return node
        return None


def _is_bias(vector: Node, product: Node) -> bool:
    """Whether a value repeats one row of the product's columns, which lies in memory."""
    return _bias_offset(vector, product) is not None


def _bias_offset(vector: Node, product: Node) -> tuple[Node, int] | None:
    """The memory of a bias and its first element, if it is a vector of the product's columns."""
    base, columns = in_memory(vector), product.shape[-1]
    if base is None or vector.dtype is not product.dtype:
        return None
    rows = prod(vector.shape) // columns
    row, column = ix.variable("row", rows), ix.variable("column", columns)
    strided = strides_of(
        vector, ix.unflatten(row * columns + column, vector.shape), base, ("row", "column")
    )
    if strided is None:
        return None
    steps, offset = strided
    if (steps["column"] != 1 and columns > 1) or steps["row"]:
        return None
    return None if offset * base.dtype.itemsize % BIAS_ALIGNED else (base, offset)


def _constant_near(node: Node, value: float) -> bool:
    """Whether a node is this number everywhere, up to rounding."""
    while node.op.kind == "movement":
        node = node.sources[0]
    number = node.attributes.get("value") if node.op is common.constant else None
    return isinstance(number, int | float) and abs(number - value) <= NEAR * abs(value)


def _relu(x: Node, graph: _Readers) -> list[Node]:
    """The nodes of ``where(x <= 0, 0, x)``, or none."""
    readers = dict.fromkeys(graph.of(x))
    if [node.op for node in readers] not in ([ew.le, ew.where], [ew.where, ew.le]):
        return []
    low, result = sorted(readers, key=lambda node: node.op is ew.where)
    whole = result.sources[0] is low and result.sources[2] is x and low.sources[0] is x
    zeros = _constant_near(low.sources[1], 0) and _constant_near(result.sources[1], 0)
    return [low, result] if whole and zeros and graph.of(low) == [result] else []


def _gelu(x: Node, graph: _Readers) -> list[Node]:
    """The nodes of ``x sigmoid(x (CUBIC x x + LINEAR))``, in float32, or none."""
    before: list[Node] = []
    if x.dtype.name == "float64":
        return []  # the library's is off by 1e-11 of the largest result (13.1, H200)
    half = x.dtype.is_half
    if half:
        readers = graph.of(x)
        if len(readers) != 1 or readers[0].op is not ew.cast or readers[0].dtype.name != "float32":
            return []
        before, x = readers, readers[0]
    chain = _gelu_chain(x, graph)
    if not chain or not half:
        return chain
    last = graph.of(chain[-1])
    narrow = (
        len(last) == 1 and last[0].op is ew.cast and last[0].dtype is before[0].sources[0].dtype
    )
    return [*before, *chain, *last] if narrow else []


def _gelu_chain(x: Node, graph: _Readers) -> list[Node]:
    """From x to its product with the sigmoid, each read by the next alone."""
    square = next((node for node in graph.of(x) if node.sources == (x, x)), None)
    if square is None or square.op is not ew.mul:
        return []
    chain = [square]
    for op, value in ((ew.mul, CUBIC), (ew.add, LINEAR), (ew.mul, None), (ew.sigmoid, None),
                      (ew.mul, None)):  # fmt: skip
        readers = graph.of(chain[-1])
        if len(readers) != 1 or readers[0].op is not op:
            return []
        others = [node for node in readers[0].sources if node is not chain[-1]]
        if value is not None and not (len(others) == 1 and _constant_near(others[0], value)):
            return []
        if value is None and op is ew.mul and others != [x]:
            return []
        chain.append(readers[0])
    inside = {square, chain[3], chain[5]}
    return chain if set(graph.of(x)) == inside else []


# The stage ---------------------------------------------------------------------------------------


def library_stages(kernel: Kernel, cut: LibraryCut) -> list[Stage]:
    """One stage: the call, on memory that its parameters name."""
    (product,) = kernel.anchors
    left, right = product.sources
    a, b = (_strided(source) for source in sources_of(left, right))
    assert a is not None and b is not None, f"{product} has operands that are no matrices"
    epilogue = cut.epilogue
    if epilogue is not None and epilogue.members[-1] not in kernel.nodes:
        epilogue = None  # it was not joined: a kernel of its own computes it
    end = product if epilogue is None else epilogue.members[-1]
    assert kernel.stores == [end], f"no library call stores {kernel.stores}"
    assert end.dtype is product.dtype, f"{end} has another dtype than its product"
    params = KernelParams()
    names = [params.read(b.node), params.read(a.node), params.write(end)]
    names.append(params.scratch(LibraryWorkspace(WORKSPACE), "char", True))
    bias = None
    if epilogue is not None and epilogue.bias is not None:
        vector = _bias_offset(epilogue.bias, product)
        assert vector is not None, f"{epilogue.bias} is no vector in memory"
        names.append(params.read(vector[0]))
        bias = vector[1]
    words = words_of(params, names)
    activation = "" if epilogue is None else epilogue.activation
    call = _call(product, cut, a, b, bias, activation, words)
    *_, k = left.shape
    shape = f"{call.batches} x {call.result.columns} x {call.result.rows} x {k}"
    label = f"cuBLASLt {shape} {call.dtype}, {call.compute}"
    if call.bias is not None or call.activation:
        label += ", epilogue " + " ".join(["bias"] * (call.bias is not None) + [call.activation])
    return [call_stage(kernel, "cublaslt_matmul", call, params, label)]


def words_of(params: KernelParams, names: Sequence[str]) -> tuple[int, ...]:
    """Which words of a launch have these names, as `KernelParams` gave them."""
    return tuple(
        next(n for n, word in enumerate(params.list) if word.text.endswith(f" {name[2:]}"))
        for name in names
    )


def _call(
    product: Node, cut: LibraryCut, a: _Strided, b: _Strided, bias: int | None, activation: str,
    words: tuple[int, ...],
) -> LibraryProduct:  # fmt: skip
    """The product by columns: the result's transpose is that of B times that of A."""
    *batch, m, n = product.shape
    batches, first, second = prod(batch), b.matrix, a.matrix
    rows_follow = not a.along_k or second.apart == m * second.stride
    if batches > 1 and first.apart == 0 and a.along_k and rows_follow:
        # One matrix for all: a single product of all rows.
        second = second._replace(columns=batches * m, apart=0)
        m, batches = batches * m, 1
    result = LibraryMatrix(n, m, n, m * n, 0)
    return LibraryProduct(
        CUBLAS, product.dtype.name, cut.compute, first, second, result,
        (b.along_k, not a.along_k), batches, bias, activation, WORKSPACE, words,
    )  # fmt: skip


def call_stage(
    kernel: Kernel, name: str, call: LibraryCall, params: KernelParams, label: str
) -> Stage:
    """The call as a launch of its own; its text is a comment for readers."""
    digest = hashlib.sha256(repr(call).encode()).hexdigest()[:10]
    text = f"// {label.strip()}.\n"
    stage = Stage(kernel, f"{name}_{digest}", text, 1, 0, params.list, label)
    stage.alone, stage.threads, stage.library = True, THREADS, call
    return stage


__all__ = [
    "CUBLAS", "DTYPES", "LibraryCut", "call_stage", "compute_of", "end_of_call", "in_memory",
    "library_stages", "strides_of", "with_epilogues", "with_matrices", "words_of",
]  # fmt: skip
