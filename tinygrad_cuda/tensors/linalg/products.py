"""Matrix products: matmul with PyTorch's rules for vectors and batches, and what is made of it.

einsum, baddbmm, tensordot, kron, cross, cdist, ... are compositions of `matmul`.
"""

from __future__ import annotations

import string
from math import prod
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core.dtypes import bool_, int64, uint8
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError
from tinygrad_cuda.core.shapes import Shape, broadcast, normalize_axis
from tinygrad_cuda.engine.cell import detached
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, contraction, elementwise, movement, reduction
from tinygrad_cuda.tensors import math, reductions, shaping
from tinygrad_cuda.tensors.arguments import require_real
from tinygrad_cuda.tensors.autocast import in_float32, in_half, in_widest
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.call_replay import templated
from tinygrad_cuda.tensors.linalg import products
from tinygrad_cuda.tensors.opmath import rounded, rounded_once, widened
from tinygrad_cuda.tensors.promotion import factor_of, promote, to_dtype, to_shape
from tinygrad_cuda.tensors.shaping import join, slice_axis

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "cdist", "chain_matmul",
    "cosine_similarity", "cross", "dot", "einsum", "ger", "inner", "kron", "matmul", "mm", "mv",
    "outer", "pairwise_distance", "pdist", "spmm", "tensordot", "vdot",
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
        product = _matrix_product(rows, right)
        return movement.reshape(product, shape=(*left.shape[:-1], right.shape[-1]))
    if batch != right.shape[:-2]:
        batch = _batch(op, left, right)
        left = to_shape(left, (*batch, *left.shape[-2:]))
        right = to_shape(right, (*batch, *right.shape[-2:]))
    return _matrix_product(left, right)


def _matrix_product(left: Node, right: Node) -> Node:
    """One product; of complex numbers four, of their parts."""
    if not left.dtype.is_complex:
        return contraction.matmul(left, right)
    product, parts = contraction.matmul, (elementwise.real, elementwise.imag)
    (a, b), (c, d) = ([part(x) for part in parts] for x in (left, right))
    real = elementwise.sub(product(a, c), product(b, d))
    return elementwise.complex_(real, elementwise.add(product(a, d), product(b, c)))


def _empty_sum(left: Node, right: Node, batch: Shape) -> Node:
    """Zeros, with the history of both operands, whose gradients are empty."""
    shape = (*batch, left.shape[-2], right.shape[-1])
    if not (left.requires_grad or right.requires_grad):
        return common.full(0, shape, left)
    parts = []
    for node, axis in ((left, len(left.shape) - 1), (right, len(right.shape) - 2)):
        ones = tuple(1 if n == axis else size for n, size in enumerate(node.shape))
        total = movement.reshape(reduction.sum(node, axes=(axis,)), shape=ones)
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
def spmm(input: Tensor, mat2: Tensor) -> Tensor:
    """`mm`, under the name that programs give it for matrices with many zeros."""
    return mm(input, mat2)


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
    else:
        product = _unread(base, product)
    return wrap(product if product.dtype is dtype else rounded(product, dtype))


def _unread(base: Node, product: Node) -> Node:
    """The product, for ``beta=0``: `base` gives it no value, not even NaN, but has a gradient."""
    if not base.requires_grad:
        return product
    here = common.constant.leaf(product.shape, bool_, product.device, value=True)
    return elementwise.where(here, product, to_shape(base, product.shape))


def _times(name: str, node: Node, factor: int | float) -> Node:
    if factor == 1:
        return node
    return elementwise.mul(
        node, common.full_like(node, factor_of("addmm", factor, node.dtype, name))
    )


# einsum -------------------------------------------------------------------------------------------


@in_half
def einsum(equation: Any, *operands: Any) -> Tensor:
    """Sums of products by Einstein's convention, as permutations and matrix products.

    Args:
        equation: ``"bij,bjk->bik"``: a letter for each dimension of each operand, then those of
            the result; all other letters are summed over. A letter twice in one operand takes its
            diagonal; ``...`` stands for dimensions that are broadcast. Without ``->`` the result
            has the letters that occur once, in alphabetical order.
        operands: as many Tensors as the equation has terms, of one dtype.

    Instead of letters there may be numbers from 0 to 51 and ``...``, in lists behind their operands
    and behind the last one for the result: ``einsum(a, [0, 1], b, [1, 2], [0, 2])``.

    Raises:
        ArgumentError: the equation is malformed or names other operands.
        ShapeError: a letter stands for different sizes.

    Example:
        >>> import tinygrad_cuda as tc
        >>> a = tc.tensor([[1.0, 2.0], [3.0, 4.0]], device="cpu")
        >>> tc.einsum("ii->", a).item(), tc.einsum("ij,kj->ik", a, a).tolist()
        (5.0, [[5.0, 11.0], [11.0, 25.0]])
    """
    if isinstance(equation, TensorBase):
        equation, operands = _lettered((equation, *operands))
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    nodes = [_operand("einsum", operand) for operand in operands]
    terms, result = _parsed(equation, nodes)
    sizes = _letter_sizes(terms, nodes)
    if len(terms) == 1 and set(terms[0]) == set(result):
        return _rearranged(operands[0], terms[0], result)
    labelled = [_diagonals(node, term) for node, term in zip(nodes, terms)]
    node, term = labelled[0]
    for position in range(1, len(labelled)):
        later = set(result).union(*(term for _, term in labelled[position + 1 :]))
        node, term = _contracted(node, term, *labelled[position], later, sizes)
    if set(term) - set(result) and node.dtype.category < 2:
        node = to_dtype(node, int64)  # as `sum` does
    node, term = _summed(node, term, set(result))
    if term != result:
        node = movement.permute(node, axes=tuple(term.index(letter) for letter in result))
    return wrap(node)


def _lettered(given: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """The equation and the operands of a call with lists of numbers."""
    count = len(given) // 2
    terms = [_letters(numbers) for numbers in given[1 : 2 * count : 2]]
    arrow = f"->{_letters(given[-1])}" if len(given) % 2 else ""
    return ",".join(terms) + arrow, given[: 2 * count : 2]


def _letters(numbers: Any) -> str:
    alphabet = string.ascii_uppercase + string.ascii_lowercase
    if not isinstance(numbers, list | tuple) or not all(
        number is ... or (isinstance(number, int) and 0 <= number < 52) for number in numbers
    ):
        raise ArgumentError(
            "einsum", "no list of dimensions", expect="numbers from 0 to 51 or ... behind operands",
            actual=repr(numbers),
        )  # fmt: skip
    return "".join("..." if number is ... else alphabet[number] for number in numbers)


def _rearranged(operand: Tensor, term: str, result: str) -> Tensor:
    """One operand of which nothing is summed: a view of it, as in PyTorch."""
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            first, second = _repeated(operand.shape, term, letter)
            operand = shaping.diagonal(operand, dim1=first, dim2=second)
            term = term[:first] + term[first + 1 : second] + term[second + 1 :] + letter
    return shaping.permute(operand, tuple(term.index(letter) for letter in result))


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
            earlier = sizes.get(letter, 1)
            if earlier != 1 and size not in (1, earlier):
                name = letter if letter.isascii() else "..."
                raise ShapeError(
                    "einsum",
                    f"{name!r} stands for different sizes",
                    expect=str(earlier),
                    actual=f"{size} in shape {node.shape}",
                )
            sizes[letter] = max(earlier, size) if size else 0
    return sizes


def _repeated(shape: Shape, term: str, letter: str) -> tuple[int, int]:
    """The first two dimensions that have a letter, of one size."""
    first = term.index(letter)
    second = term.index(letter, first + 1)
    if shape[second] != shape[first]:
        raise ShapeError(
            "einsum", f"{letter!r} stands for different sizes", expect=str(shape[first]),
            actual=f"{shape[second]} in shape {tuple(shape)}",
        )  # fmt: skip
    return first, second


def _diagonals(node: Node, term: str) -> tuple[Node, str]:
    """Repeated letters of one term become one: the diagonal of their dimensions."""
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            first, second = _repeated(node.shape, term, letter)
            size = node.shape[first]
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


def _summed(node: Node, term: str, remaining: set[str]) -> tuple[Node, str]:
    """Sums over the letters that nobody needs any more."""
    axes = tuple(axis for axis, letter in enumerate(term) if letter not in remaining)
    if not axes:
        return node, term
    left = "".join(letter for letter in term if letter in remaining)
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
    extents = dict(zip(term_b, b.shape)) | dict(zip(term_a, a.shape))
    shape = tuple(sizes[letter] if letter in batch else extents[letter] for letter in letters)
    return movement.reshape(product, shape=shape), "".join(letters)


Scalar = bool | int | float


# With an addend -----------------------------------------------------------------------------------


def _scaled(op: str, node: Node, factor: Scalar) -> Node:
    if factor == 1:
        return node
    return elementwise.mul(
        node, common.full_like(node, factor_of(op, factor, node.dtype, "the factor"))
    )


def _added(op: str, input: Tensor, product: Node, beta: Scalar, alpha: Scalar) -> Tensor:
    base = input.node
    if base.dtype is not product.dtype:
        raise DTypeError(
            op, "operands have different dtypes", expect=product.dtype.name, actual=base.dtype.name
        )
    if broadcast(op, base.shape, product.shape) != product.shape:
        raise ShapeError(
            op,
            "input does not broadcast to the product",
            expect=str(product.shape),
            actual=str(base.shape),
        )
    dtype = product.dtype
    if alpha != 1 or beta not in (0, 1):
        # Factors and sum round a half type once, after the product has.
        product, base = widened(product), widened(base)
    product = _scaled(op, product, alpha)
    if beta:
        product = elementwise.add(to_shape(_scaled(op, base, beta), product.shape), product)
    else:
        product = _unread(base, product)
    return wrap(product if product.dtype is dtype else rounded(product, dtype))


@in_half
def baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Tensor:
    """``beta * input + alpha * (batch1 @ batch2)`` for batches of matrices."""
    return _added("baddbmm", input, products.bmm(batch1, batch2).node, beta, alpha)


@in_half
def addbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Tensor:
    """``beta * input + alpha * sum(batch1 @ batch2)`` over the batch, as one product."""
    b, n, m = batch1.shape
    left = batch1.permute(1, 0, 2).reshape(n, b * m)
    right = batch2.reshape(b * m, batch2.shape[2])
    return _added("addbmm", input, products.mm(left, right).node, beta, alpha)


@in_half
def addmv(
    input: Tensor, mat: Tensor, vec: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Tensor:
    """``beta * input + alpha * (mat @ vec)``."""
    return _added("addmv", input, products.mv(mat, vec).node, beta, alpha)


@in_half
def addr(
    input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Tensor:
    """``beta * input + alpha * outer(vec1, vec2)``."""
    base, product = promote("addr", input, products.outer(vec1, vec2))
    return _added("addr", wrap(base), product, beta, alpha)


# Vectors ------------------------------------------------------------------------------------------


@in_widest
def vdot(input: Tensor, other: Tensor) -> Tensor:
    """The inner product of two vectors, the first one conjugated."""
    if isinstance(input, TensorBase) and input.dtype.is_complex:
        return dot(input.conj(), other)
    return products.dot(input, other)


ger = products.outer


@in_widest
def inner(input: Tensor, other: Tensor) -> Tensor:
    """The inner products of vectors in the last dimension of both."""
    if not input.ndim or not other.ndim:
        return math.mul(input, other)
    if input.shape[-1] != other.shape[-1]:
        raise ShapeError(
            "inner",
            "the last dimensions differ",
            expect=str(input.shape[-1]),
            actual=str(other.shape[-1]),
        )
    return tensordot(input, other, ([-1], [-1]))


@in_half
def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The inner products of vectors along `dim`, x conjugated; the others are broadcast."""
    return math.mul(x.conj(), y).sum(dim)


@in_widest
def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The cross products of vectors of 3 elements along `dim`.

    Args:
        dim: the first dimension of size 3 when left out.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([1, 0, 0], device="cpu")
        >>> tc.cross(x, tc.tensor([0, 1, 0], device="cpu"), dim=0).tolist()
        [0, 0, 1]
    """
    a, b = promote("cross", input, other)
    if dim is None:
        threes = [axis for axis, size in enumerate(a.shape) if size == 3]
        if not threes:
            raise ShapeError(
                "cross",
                "no dimension has size 3",
                expect="a dimension of 3 elements",
                actual=str(a.shape),
            )
        dim = threes[0]
    axis = normalize_axis("cross", dim, len(a.shape))
    if not a.shape or a.shape[axis] != 3:
        raise ShapeError("cross", f"dim {dim} has another size", expect="3", actual=str(a.shape))

    def turned(node: Node, by: int) -> Node:
        return join([slice_axis(node, axis, by, 3 - by), slice_axis(node, axis, 0, by)], axis)

    left = elementwise.mul(turned(a, 1), turned(b, 2))
    right = elementwise.mul(turned(a, 2), turned(b, 1))
    return wrap(elementwise.sub(left, right))


# Tensors ------------------------------------------------------------------------------------------


@in_widest
def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """The sum of products over several dimensions of both, as one matrix product.

    Args:
        dims: how many of the last of `a` meet the first of `b`; or two lists of dimensions.

    Example:
        >>> import tinygrad_cuda as tc
        >>> a = tc.ones(2, 3, 4, device="cpu")
        >>> tuple(tc.tensordot(a, tc.ones(4, 3, device="cpu"), ([1, 2], [1, 0])).shape)
        (2,)
    """
    if hasattr(dims, "tolist"):
        dims = dims.tolist()
    if isinstance(dims, int):
        if not 0 <= dims <= min(a.ndim, b.ndim):
            raise ArgumentError(
                "tensordot",
                "too many dims",
                expect="at most the dimensions of each",
                actual=str(dims),
            )
        of_a, of_b = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    else:
        first, second = ([axes] if isinstance(axes, int) else list(axes) for axes in dims)
        of_a = [normalize_axis("tensordot", axis, a.ndim) for axis in first]
        of_b = [normalize_axis("tensordot", axis, b.ndim) for axis in second]
    if len(of_a) != len(of_b):
        raise ShapeError(
            "tensordot",
            "as many dims of both are needed",
            expect=str(len(of_a)),
            actual=str(len(of_b)),
        )
    for left, right in zip(list(of_a), list(of_b)):
        sizes = a.shape[left], b.shape[right]
        if sizes[0] != sizes[1]:
            if 1 not in sizes:
                raise ShapeError(
                    "tensordot",
                    f"dims {left} and {right} differ",
                    expect=str(sizes[0]),
                    actual=str(sizes[1]),
                )
            # As in PyTorch, a dimension of size 1 is summed over on the other side first.
            if sizes[0] == 1:
                b = b.sum(right, True, dtype=b.dtype)
            else:
                a = a.sum(left, True, dtype=a.dtype)
    rest_a = [axis for axis in range(a.ndim) if axis not in of_a]
    rest_b = [axis for axis in range(b.ndim) if axis not in of_b]
    inside = prod(a.shape[axis] for axis in of_a)
    rows = tuple(a.shape[axis] for axis in rest_a)
    columns = tuple(b.shape[axis] for axis in rest_b)
    left_matrix = a.permute(*rest_a, *of_a).reshape(prod(rows), inside)
    right_matrix = b.permute(*of_b, *rest_b).reshape(inside, prod(columns))
    return products.mm(left_matrix, right_matrix).reshape(rows + columns)


def kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product: every element of `input` times all of `other`."""
    rank = max(input.ndim, other.ndim)
    a = input.reshape((1,) * (rank - input.ndim) + tuple(input.shape))
    b = other.reshape((1,) * (rank - other.ndim) + tuple(other.shape))
    apart_a = tuple(size for pair in zip(a.shape, (1,) * rank) for size in pair)
    apart_b = tuple(size for pair in zip((1,) * rank, b.shape) for size in pair)
    product = math.mul(a.reshape(apart_a), b.reshape(apart_b))
    return shaping.reshape(product, tuple(m * n for m, n in zip(a.shape, b.shape)))


@in_half
def chain_matmul(*matrices: Any) -> Tensor:
    """The product of several matrices in the cheapest order; see `multi_dot`."""
    if len(matrices) == 1 and isinstance(matrices[0], list | tuple):
        matrices = tuple(matrices[0])
    if len(matrices) == 1:
        only: Tensor = matrices[0] + 0
        return only
    return multi_dot(matrices)


@in_half
def multi_dot(tensors: Any) -> Tensor:
    """The product of several matrices in the order with the fewest multiplications.

    The first and the last may be vectors.
    """
    operands = list(tensors)
    if len(operands) < 2:
        raise ArgumentError(
            "multi_dot", "needs at least two tensors", expect="2 or more", actual=str(len(operands))
        )
    is_row, is_column = operands[0].ndim == 1, operands[-1].ndim == 1
    if is_row:
        operands[0] = operands[0].unsqueeze(0)
    if is_column:
        operands[-1] = operands[-1].unsqueeze(1)
    sizes = [operands[0].shape[0], *(matrix.shape[1] for matrix in operands)]
    result = _chain(operands, _splits(sizes), 0, len(operands) - 1)
    shape = tuple(result.shape)
    return result.reshape(shape[int(is_row) : 1 if is_column else 2])


def _splits(sizes: list[int]) -> dict[tuple[int, int], int]:
    """Where each sub-chain is cut at least cost (dynamic programming over lengths)."""
    count = len(sizes) - 1
    cost = {(k, k): 0 for k in range(count)}
    cuts = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            options = [
                (cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k)
                for k in range(i, j)
            ]
            cost[i, j], cuts[i, j] = min(options)
    return cuts


def _chain(matrices: list[Tensor], cuts: dict[tuple[int, int], int], i: int, j: int) -> Tensor:
    if i == j:
        return matrices[i]
    k = cuts[i, j]
    return products.mm(_chain(matrices, cuts, i, k), _chain(matrices, cuts, k + 1, j))


# Distances ----------------------------------------------------------------------------------------


@in_float32
@rounded_once
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: Any = None) -> Tensor:
    """The p-norm distance of each row of `x1` to each row of `x2`.

    Computed from the differences, which is exact for near rows; `compute_mode` changes nothing.

    Args:
        x1, x2: (.., m, k) and (.., n, k); leading dimensions are broadcast.

    Returns:
        (.., m, n)

    Raises:
        DTypeError: an operand is not floating, or the dtypes differ.
    """
    if p < 0:
        raise ArgumentError("cdist", "p is negative", expect="p >= 0", actual=str(p))
    for x in (x1, x2):
        reductions.require_float("cdist", x.node)
    if x1.dtype is not x2.dtype:
        raise DTypeError(
            "cdist", "x1 and x2 have different dtypes", expect=x1.dtype.name, actual=x2.dtype.name
        )
    if x1.shape[-1] != x2.shape[-1]:
        raise ShapeError(
            "cdist", "the rows differ in length", expect=str(x1.shape[-1]), actual=str(x2.shape[-1])
        )
    gap = math.sub(x1.unsqueeze(-2), x2.unsqueeze(-3))
    if not gap.shape[-1]:
        return gap.sum(-1)
    if p == 0:
        return math.clamp(math.ceil(math.abs(gap)), max=1).sum(-1)  # a count; NaN stays
    return reductions.norm(gap, p, -1)


@in_float32
@rounded_once
def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The p-norm distances of all pairs of rows, as a vector: (0, 1), (0, 2), ..."""
    require_real("pdist", input)
    if input.ndim != 2:
        raise ShapeError("pdist", "needs rows", expect="2-d", actual=str(tuple(input.shape)))
    count = input.shape[0]
    rows = [i for i in range(count) for _ in range(i + 1, count)]
    columns = [j for i in range(count) for j in range(i + 1, count)]
    gap = math.sub(input[rows], input[columns])
    return reductions.norm(gap, p, -1)


@in_float32
@rounded_once
def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The p-norm of ``x1 - x2 + eps`` over the last dimension."""
    return reductions.norm(math.add(math.sub(x1, x2), eps), p, -1, keepdim)


def _at_least(size: Tensor, eps: float) -> Tensor:
    """The size or eps; as in PyTorch, the bound does not stop the gradient."""
    node = size.node
    bound = common.full_like(node, eps)
    moved = elementwise.add(elementwise.sub(node, detached(node)), bound)
    return wrap(elementwise.where(elementwise.lt(node, bound), moved, node))


@in_float32
@rounded_once
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle of vectors along `dim`, their lengths taken as at least `eps`."""
    require_real("cosine_similarity", x1, x2)
    a, b = (wrap(node) for node in promote("cosine_similarity", x1, x2))
    first, second = (_at_least(reductions.norm(x, 2, dim, True), eps) for x in (a, b))
    cosine: Tensor = math.mul(math.div(a, first), math.div(b, second)).sum(dim)
    return cosine
