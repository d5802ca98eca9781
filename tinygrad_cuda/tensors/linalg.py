"""Matrix products: matmul with PyTorch's rules for vectors and batches, and einsum above it."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core.dtypes import bool_, int64, uint8
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError
from tinygrad_cuda.core.shapes import Shape, broadcast
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, contraction, elementwise, movement, reduction
from tinygrad_cuda.tensors.autocast import in_half, in_widest
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.call_replay import templated
from tinygrad_cuda.tensors.opmath import rounded, widened
from tinygrad_cuda.tensors.promotion import factor_of, promote, to_dtype, to_shape

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "addmm", "bmm", "dot", "einsum", "matmul", "mm", "mv", "outer",
]  # fmt: skip


def _operand(op: str, value: Any) -> Node:
    if not isinstance(value, TensorBase):
        raise DTypeError(
            op, "an operand is not a tensor", expect="a Tensor", actual=type(value).__name__
        )
    return value.node


def matmul_nodes(op: str, a: Node, b: Node) -> Node:
    """The product by PyTorch's rules: vectors gain a dimension and lose it, batches broadcast."""
    if not a.shape or not b.shape:
        raise ShapeError(
            op,
            "a 0-d tensor has no rows",
            expect="at least 1-d",
            actual=f"a: {a.shape}  b: {b.shape}",
            hint="use * for a product with a number",
        )
    if a.dtype is not b.dtype:
        raise DTypeError(
            op,
            "operands have different dtypes",
            expect="one dtype",
            actual=f"a: {a.dtype.name}  b: {b.dtype.name}",
            hint=f"b.to(tc.{a.dtype.name}) would fit",
        )
    left = a if len(a.shape) > 1 else movement.reshape(a, shape=(1, *a.shape))
    right = b if len(b.shape) > 1 else movement.reshape(b, shape=(*b.shape, 1))
    if left.shape[-1] != right.shape[-2]:
        raise _inner_error(op, a, b)
    result = _batched(op, left, right)
    shape = result.shape[:-2]
    if len(a.shape) > 1:
        shape += result.shape[-2:-1]
    if len(b.shape) > 1:
        shape += result.shape[-1:]
    return result if shape == result.shape else movement.reshape(result, shape=shape)


def _batched(op: str, left: Node, right: Node) -> Node:
    if left.shape[-1] == 0:
        return _empty_sum(left, right, _batch(op, left, right))
    batch = left.shape[:-2]
    if len(right.shape) == 2 and batch:
        # One matrix for the whole batch: a single product of all rows.
        rows = movement.reshape(left, shape=(prod(left.shape[:-1]), left.shape[-1]))
        product = contraction.matmul(rows, right)
        return movement.reshape(product, shape=(*left.shape[:-1], right.shape[-1]))
    if batch != right.shape[:-2]:
        batch = _batch(op, left, right)
        left = to_shape(left, (*batch, *left.shape[-2:]))
        right = to_shape(right, (*batch, *right.shape[-2:]))
    return contraction.matmul(left, right)


def _empty_sum(left: Node, right: Node, batch: Shape) -> Node:
    """Zeros, with the history of both operands, whose gradients are empty."""
    shape = (*batch, left.shape[-2], right.shape[-1])
    if not (left.requires_grad or right.requires_grad):
        return common.full(0, shape, left)
    parts = []
    for node, axis in ((left, len(left.shape) - 1), (right, len(right.shape) - 2)):
        kept = tuple(1 if n == axis else size for n, size in enumerate(node.shape))
        total = movement.reshape(reduction.sum(node, axes=(axis,)), shape=kept)
        parts.append(to_shape(total, shape))
    return elementwise.add(*parts)


def _batch(op: str, left: Node, right: Node) -> Shape:
    try:
        return broadcast(op, left.shape[:-2], right.shape[:-2])
    except ShapeError:
        raise ShapeError(
            op,
            "the batches do not broadcast",
            expect="leading sizes that are equal or 1",
            actual=f"{left.shape[:-2]} and {right.shape[:-2]}".ljust(16)
            + f"a: {left.shape}  b: {right.shape}",
        ) from None


def _inner_error(op: str, a: Node, b: Node) -> ShapeError:
    inner_a = a.shape[-1]
    axis = -2 if len(b.shape) > 1 else 0
    inner_b = b.shape[axis]
    hint = None
    if len(b.shape) > 1 and b.shape[-1] == inner_a:
        name = "b.T" if len(b.shape) == 2 else "b.mT"
        hint = f"{name} has shape {(*b.shape[:-2], b.shape[-1], b.shape[-2])} and would fit"
    elif len(a.shape) > 1 and a.shape[-2] == inner_b:
        name = "a.T" if len(a.shape) == 2 else "a.mT"
        hint = f"{name} has shape {(*a.shape[:-2], a.shape[-1], a.shape[-2])} and would fit"
    return ShapeError(
        op,
        "inner dimensions differ",
        expect=f"a.shape[-1] == b.shape[{axis}]",
        actual=f"{inner_a} != {inner_b}".ljust(16) + f"a: {a.shape}  b: {b.shape}",
        hint=hint,
    )


def _require_rank(op: str, name: str, node: Node, rank: int) -> Node:
    if len(node.shape) != rank:
        raise ShapeError(
            op,
            f"{name} has the wrong number of dimensions",
            expect=f"{rank}-d",
            actual=f"{len(node.shape)}-d, shape {node.shape}",
            hint="matmul takes any number of dimensions",
        )
    return node


@templated
@in_half
def matmul(input: Tensor, other: Tensor) -> Tensor:
    r"""The matrix product: ``c[.., i, j] = sum_k a[.., i, k] b[.., k, j]``.

    Args:
        input: (.., m, k), or a vector (k,), which counts as a row.
        other: (.., k, n), or a vector (k,), which counts as a column; leading dimensions are
            broadcast against those of `input`.

    Raises:
        ShapeError: the inner dimensions differ or the leading ones do not broadcast.
        DTypeError: the dtypes differ.

    Example:
        >>> import tinygrad_cuda as tc
        >>> a = tc.tensor([[1.0, 2.0], [3.0, 4.0]], device="cpu")
        >>> (a @ tc.tensor([1.0, 1.0], device="cpu")).tolist()
        [3.0, 7.0]
    """
    return wrap(matmul_nodes("matmul", _operand("matmul", input), _operand("matmul", other)))


def _product(op: str, a: Any, b: Any, rank_a: int, rank_b: int) -> Node:
    left = _require_rank(op, "input", _operand(op, a), rank_a)
    right = _require_rank(op, "the second operand", _operand(op, b), rank_b)
    return matmul_nodes(op, left, right)


@in_half
def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """The product of two matrices, (m, k) and (k, n)."""
    return wrap(_product("mm", input, mat2, 2, 2))


@in_half
def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """The products of two batches of matrices, (b, m, k) and (b, k, n)."""
    if input.ndim == mat2.ndim == 3 and input.shape[0] != mat2.shape[0]:
        raise ShapeError(
            "bmm",
            "the batches differ in size",
            expect=str(input.shape[0]),
            actual=str(mat2.shape[0]),
        )
    return wrap(_product("bmm", input, mat2, 3, 3))


@in_half
def mv(input: Tensor, vec: Tensor) -> Tensor:
    """The product of a matrix (m, k) and a vector (k,)."""
    return wrap(_product("mv", input, vec, 2, 1))


@in_widest
def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """The inner product of two vectors (k,)."""
    return wrap(_product("dot", input, tensor, 1, 1))


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """The outer product of two vectors: ``out[i, j] = input[i] * vec2[j]``."""
    a = _require_rank("outer", "input", _operand("outer", input), 1)
    b = _require_rank("outer", "vec2", _operand("outer", vec2), 1)
    column = movement.reshape(a, shape=(*a.shape, 1))
    left, right = promote("outer", wrap(column), wrap(b))
    return wrap(elementwise.mul(left, right))


@in_half
def addmm(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: int | float = 1,
    alpha: int | float = 1,
) -> Tensor:
    """``beta * input + alpha * (mat1 @ mat2)``; `input` is broadcast to the product."""
    product = _product("addmm", mat1, mat2, 2, 2)
    base, dtype = _operand("addmm", input), product.dtype
    if broadcast("addmm", base.shape, product.shape) != product.shape:
        raise ShapeError(
            "addmm",
            "input does not broadcast to the product",
            expect=str(product.shape),
            actual=str(base.shape),
        )
    if base.dtype is dtype and (alpha != 1 or beta not in (0, 1)):
        # Factors and sum round a half type once, after the product has.
        product, base = widened(product), widened(base)
    product = _times("alpha", product, alpha)
    if beta:
        product = elementwise.add(to_shape(_times("beta", base, beta), product.shape), product)
    return wrap(product if product.dtype is dtype else rounded(product, dtype))


def _times(name: str, node: Node, factor: int | float) -> Node:
    if factor == 1:
        return node
    return elementwise.mul(
        node, common.full_like(node, factor_of("addmm", factor, node.dtype, name))
    )


# einsum -------------------------------------------------------------------------------------------


@in_half
def einsum(equation: str, *operands: Any) -> Tensor:
    """Sums of products by Einstein's convention, as permutations and matrix products.

    Args:
        equation: ``"bij,bjk->bik"``: a letter for each dimension of each operand, then those of
            the result; all other letters are summed over. A letter twice in one operand takes its
            diagonal; ``...`` stands for dimensions that are broadcast. Without ``->`` the result
            has the letters that occur once, in alphabetical order.
        operands: as many Tensors as the equation has terms, of one dtype.

    Raises:
        ArgumentError: the equation is malformed or names other operands.
        ShapeError: a letter stands for different sizes.

    Example:
        >>> import tinygrad_cuda as tc
        >>> a = tc.tensor([[1.0, 2.0], [3.0, 4.0]], device="cpu")
        >>> tc.einsum("ii->", a).item(), tc.einsum("ij,kj->ik", a, a).tolist()
        (5.0, [[5.0, 11.0], [11.0, 25.0]])
    """
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    nodes = [_operand("einsum", operand) for operand in operands]
    terms, result = _parsed(equation, nodes)
    sizes = _letter_sizes(terms, nodes)
    labelled = [_diagonals(node, term) for node, term in zip(nodes, terms)]
    node, term = labelled[0]
    for position in range(1, len(labelled)):
        later = set(result).union(*(term for _, term in labelled[position + 1 :]))
        node, term = _contracted(node, term, *labelled[position], later, sizes)
    if set(term) - set(result) and not node.dtype.is_floating:
        node = to_dtype(node, int64)  # as `sum` does
    node, term = _summed(node, term, set(result))
    if term != result:
        node = movement.permute(node, axes=tuple(term.index(letter) for letter in result))
    return wrap(node if node is not nodes[0] else movement.reshape(node, shape=node.shape))


def _parsed(equation: str, nodes: list[Node]) -> tuple[list[str], str]:
    """Terms with a letter for every dimension: those behind ``...`` are capital Greek."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(nodes):
        raise ArgumentError(
            "einsum",
            "the equation names another number of operands",
            expect=f"{len(terms)} for {equation!r}",
            actual=str(len(nodes)),
        )
    hidden = 0
    for term, node in zip(terms, nodes):
        letters = term.replace("...", "", 1)
        dots = len(node.shape) - len(letters) if "..." in term else 0
        if (letters and not (letters.isascii() and letters.isalpha())) or dots < 0 or (
            "..." not in term and len(letters) != len(node.shape)
        ):  # fmt: skip
            raise ArgumentError(
                "einsum",
                f"the term {term!r} does not fit its operand",
                expect="one letter for each dimension",
                actual=f"shape {node.shape}",
            )
        hidden = max(hidden, dots)
    unseen = "".join(chr(0x391 + k) for k in range(hidden))
    full_terms = []
    for term, node in zip(terms, nodes):
        dots = len(node.shape) - len(term.replace("...", "", 1))
        full_terms.append(term.replace("...", unseen[hidden - dots :] if dots > 0 else ""))
    letters = "".join(full_terms)
    if arrow:
        result = right.replace("...", unseen)
    else:
        once = sorted(x for x in set(letters) if letters.count(x) == 1 and x not in unseen)
        result = unseen + "".join(once)
    if len(set(result)) != len(result) or not set(result) <= set(letters):
        raise ArgumentError(
            "einsum",
            "the result's letters do not fit",
            expect="letters of the operands, each at most once",
            actual=f"{result!r} in {equation!r}",
        )
    return full_terms, result


def _letter_sizes(terms: list[str], nodes: list[Node]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for term, node in zip(terms, nodes):
        for letter, size in zip(term, node.shape):
            known = sizes.get(letter, 1)
            if known != 1 and size not in (1, known):
                name = letter if letter.isascii() else "..."
                raise ShapeError(
                    "einsum",
                    f"{name!r} stands for different sizes",
                    expect=str(known),
                    actual=f"{size} in shape {node.shape}",
                )
            sizes[letter] = max(known, size) if size else 0
    return sizes


def _diagonals(node: Node, term: str) -> tuple[Node, str]:
    """Repeated letters of one term become one: the diagonal of their dimensions."""
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            first = term.index(letter)
            second = term.index(letter, first + 1)
            size = node.shape[first]
            if node.shape[second] != size:
                raise ShapeError(
                    "einsum",
                    f"{letter!r} stands for different sizes",
                    expect=str(size),
                    actual=f"{node.shape[second]} in shape {node.shape}",
                )
            rest = [axis for axis in range(len(term)) if axis not in (first, second)]
            moved = movement.permute(node, axes=(*rest, first, second))
            outer_shape = moved.shape[:-2]
            flat = movement.reshape(moved, shape=(*outer_shape, size * size))
            node = movement.slice_(
                flat,
                starts=(0,) * len(flat.shape),
                shape=(*outer_shape, size),
                steps=(*(1,) * len(outer_shape), size + 1),
            )
            term = "".join(term[axis] for axis in rest) + letter
    return node, term


def _summed(node: Node, term: str, kept: set[str]) -> tuple[Node, str]:
    """Sums over the letters that nobody needs any more."""
    axes = tuple(axis for axis, letter in enumerate(term) if letter not in kept)
    if not axes:
        return node, term
    left = "".join(letter for letter in term if letter in kept)
    shape = tuple(size for axis, size in enumerate(node.shape) if axis not in axes)
    return movement.reshape(reduction.sum(node, axes=axes), shape=shape), left


def _contracted(
    a: Node, term_a: str, b: Node, term_b: str, later: set[str], sizes: dict[str, int]
) -> tuple[Node, str]:
    """Two operands as one batched matrix product."""
    a, term_a = _summed(a, term_a, later | set(term_b))
    b, term_b = _summed(b, term_b, later | set(term_a))
    shared = [letter for letter in term_a if letter in term_b]
    batch = [letter for letter in shared if letter in later]
    inner = [letter for letter in shared if letter not in later]
    rows = [letter for letter in term_a if letter not in shared]
    columns = [letter for letter in term_b if letter not in shared]

    def arranged(node: Node, term: str, *groups: list[str]) -> Node:
        letters = [letter for group in groups for letter in group]
        moved = movement.permute(node, axes=tuple(term.index(letter) for letter in letters))
        alone = (*rows, *columns)
        full: Shape = tuple(
            size if letter in alone else sizes[letter] for letter, size in zip(letters, moved.shape)
        )
        moved = to_shape(moved, full)
        lengths = iter(full)
        shape = tuple(prod(next(lengths) for _ in group) for group in groups)
        return movement.reshape(moved, shape=shape)

    left = arranged(a, term_a, batch, rows, inner)
    right = arranged(b, term_b, batch, inner, columns)
    if a.dtype is bool_ and b.dtype is bool_ and not inner:
        # Nothing is summed: the product of two bools is their conjunction.
        left, right = to_dtype(left, uint8), to_dtype(right, uint8)
        product = to_dtype(matmul_nodes("einsum", left, right), bool_)
    else:
        product = matmul_nodes("einsum", left, right)
    letters = [*batch, *rows, *columns]
    known = dict(zip(term_b, b.shape)) | dict(zip(term_a, a.shape))
    shape = tuple(sizes[letter] if letter in batch else known[letter] for letter in letters)
    return movement.reshape(product, shape=shape), "".join(letters)
