"""Matrix products and einsum against torch: values, gradients, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from twins import compare, errors, values

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")

SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3,), (3,)),
    ((3,), (3, 5)),
    ((2, 3), (3,)),
    ((2, 3), (3, 5)),
    ((1, 7), (7, 1)),
    ((4, 2, 3), (4, 3, 5)),
    ((4, 2, 3), (3, 5)),
    ((2, 3), (4, 3, 5)),
    ((4, 1, 2, 3), (6, 3, 5)),
    ((3,), (4, 3, 5)),
    ((4, 2, 3), (3,)),
    ((2, 1, 2, 3), (1, 4, 3, 5)),
    ((0, 3), (3, 5)),
    ((2, 0), (0, 5)),
    ((4, 0, 3), (3, 2)),
]


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Vectors, matrices and batches that broadcast."""
    compare(lambda lib, x, y: x @ y, values(*a), values(*b, seed=1), grad=0 not in a + b)


def test_matmul_of_transposes() -> None:
    """All transpositions of both operands."""

    def program(lib: Any, x: Any, y: Any) -> Any:
        return x.mT @ y, x @ y.mT, (y.mT @ x).mT, x.flip(0).mT @ y[..., ::2]

    compare(program, values(3, 4, 4), values(3, 4, 4, seed=1), strides=False)


NAMED: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "mm": (lambda lib, a, b: lib.mm(a, b), ((2, 3), (3, 4))),
    "bmm": (lambda lib, a, b: lib.bmm(a, b), ((5, 2, 3), (5, 3, 4))),
    "mv": (lambda lib, a, b: lib.mv(a, b), ((2, 3), (3,))),
    "dot": (lambda lib, a, b: lib.dot(a, b), ((3,), (3,))),
    "outer": (lambda lib, a, b: lib.outer(a, b), ((3,), (4,))),
    "addmm": (lambda lib, c, a, b: lib.addmm(c, a, b), ((4,), (2, 3), (3, 4))),
    "addmm scaled": (
        lambda lib, c, a, b: c.addmm(a, b, beta=0.5, alpha=-2), ((2, 4), (2, 3), (3, 4)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_named_products(name: str) -> None:
    """mm, bmm, mv, dot, outer and addmm."""
    program, shapes = NAMED[name]
    compare(program, *(values(*shape, seed=k) for k, shape in enumerate(shapes)))


EQUATIONS: list[tuple[str, tuple[tuple[int, ...], ...]]] = [
    ("ij,jk->ik", ((2, 3), (3, 4))),
    ("ij,jk", ((2, 3), (3, 4))),
    ("ij,kj->ki", ((2, 3), (4, 3))),
    ("bij,bjk->bik", ((5, 2, 3), (5, 3, 4))),
    ("bhqd,bhkd->bhqk", ((2, 3, 4, 5), (2, 3, 6, 5))),
    ("i,j->ji", ((3,), (4,))),
    ("i,i->", ((3,), (3,))),
    ("i,i->i", ((3,), (3,))),
    ("ii->", ((4, 4),)),
    ("ii->i", ((4, 4),)),
    ("iji->j", ((3, 2, 3),)),
    ("ij->ji", ((2, 3),)),
    ("ij->", ((2, 3),)),
    ("ij", ((2, 3),)),
    ("ba", ((2, 3),)),
    ("ij,ij->", ((2, 3), (2, 3))),
    ("ij,k->ikj", ((2, 3), (4,))),
    ("ij,jk,kl->il", ((2, 3), (3, 4), (4, 5))),
    ("i,ij,j->", ((2,), (2, 3), (3,))),
    ("...ij,...jk->...ik", ((5, 2, 3), (3, 4))),
    ("...i,i", ((2, 3, 4), (4,))),
    ("b...,b...->...", ((3, 2, 4), (3, 2, 4))),
    ("ij,jk->j", ((2, 3), (3, 4))),
    (" i j , j k -> i k ", ((2, 3), (3, 4))),
    ("bn,anm,bm->ba", ((2, 3), (5, 3, 4), (2, 4))),
]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_einsum(equation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    """Products, sums, transposes, diagonals and ellipses."""

    def program(lib: Any, *operands: Any) -> Any:
        return lib.einsum(equation, *operands)

    arrays = [values(*shape, seed=k) for k, shape in enumerate(shapes)]
    compare(program, *arrays, strides=False, tolerance=1e-10)


@pytest.mark.parametrize("equation", ["ij->ij", "ij->ji", "ji", "ii->i", "...ij->...ji", "ij->i"])
def test_einsum_of_one_operand_is_a_view_unless_it_sums(equation: str) -> None:
    """A write to the operand is seen in the result where it is in PyTorch, strides are equal."""
    seen = []
    for lib in (torch, tc):
        x = lib.ones(3, 3)
        result = lib.einsum(equation, x)
        x.mul_(2)
        seen.append((result.tolist(), result.stride()))
    assert seen[0] == seen[1]


def test_integers() -> None:
    """Integer matrices are multiplied exactly."""
    compare(
        lambda lib, x, y: (x @ y, x.mv(y[:, 0])),
        values(3, 4, dtype="int64"),
        values(4, 2, dtype="int64"),
        grad=False,
    )


def test_second_derivative() -> None:
    """The gradient of a product's gradient."""

    def program(lib: Any, x: Any, y: Any) -> Any:
        (first,) = lib.autograd.grad(((x @ y) ** 3).sum(), x, create_graph=True)
        return first

    compare(program, values(2, 3), values(3, 4), tolerance=1e-10)


ERRORS: dict[str, tuple[Callable[..., Any], str]] = {
    "inner": (lambda lib, a, b: a @ b, "inner dimensions differ"),
    "batch": (
        lambda lib, a, b: lib.zeros(2, 3, 4, dtype=a.dtype) @ lib.zeros(3, 4, 5, dtype=a.dtype),
        "do not broadcast",
    ),
    "0-d": (lambda lib, a, b: a @ a.sum(), "a 0-d tensor has no rows"),
    "dtype": (lambda lib, a, b: a @ b.float().mT, "operands have different dtypes"),
    "number": (lambda lib, a, b: lib.matmul(a, 2), "other is no Tensor"),
    "mm": (lambda lib, a, b: lib.mm(a, b[0]), "2-d"),
    "dot": (lambda lib, a, b: lib.dot(a, b), "1-d"),
    "einsum letters": (lambda lib, a, b: lib.einsum("ijk,ij->k", a, b), "does not fit its operand"),
    "einsum operands": (lambda lib, a, b: lib.einsum("ij->i", a, b), "another number of operands"),
    "einsum sizes": (lambda lib, a, b: lib.einsum("ij,jk->ik", a, b), "'j' stands for different"),
    "einsum result": (lambda lib, a, b: lib.einsum("ij,ij->z", a, a), "the result's letters"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    """Where torch raises we raise, and the text says what was wrong."""
    program, text = ERRORS[name]
    with tc_default_cpu():
        assert text in errors(program, values(3, 4), values(3, 4, seed=1))


def tc_default_cpu() -> Any:
    """Creation inside the block goes to the CPU on a machine with a GPU too."""
    return tc.core.config.settings.override(device="cpu")


def test_error_text() -> None:
    """The error of a product names both sizes and shapes and a transpose that fits."""
    h, w = tc.zeros(32, 20, device="cpu"), tc.zeros(16, 20, device="cpu")
    with pytest.raises(tc.ShapeError) as caught:
        h @ w
    assert str(caught.value).splitlines() == [
        "[matmul] inner dimensions differ",
        "  expect: a.shape[-1] == b.shape[-2]",
        "  actual: 20 != 16        a: (32, 20)  b: (16, 20)",
        f"  at:     test_linalg.py:{caught.traceback[0].lineno + 1}  h @ w",
        "  hint:   b.T has shape (20, 16) and would fit",
    ]


def test_one_matrix_for_a_batch_is_one_product() -> None:
    """A batch times one matrix is recorded as one product of all rows."""
    x, w = tc.zeros(5, 2, 3, device="cpu"), tc.zeros(3, 4, device="cpu")
    products, stack = set(), [(x @ w).node]
    while stack:
        node = stack.pop()
        if node.op.name == "matmul":
            products.add(node.shape)
        stack.extend(node.sources)
    assert products == {(10, 4)}
    assert np.asarray((x @ w).numpy()).shape == (5, 2, 4)


def test_matrices_never_stand_for_vectors_in_solve_triangular() -> None:
    A = np.eye(2) * 2 + np.triu(np.ones((2, 2, 2)))
    B = np.arange(4.0).reshape(2, 2)
    found = tc.linalg.solve_triangular(tc.tensor(A), tc.tensor(B), upper=True)
    assert found.shape == (2, 2, 2)
    np.testing.assert_allclose(np.triu(A) @ found.numpy(), np.broadcast_to(B, (2, 2, 2)))


def test_solve_refuses_two_dtypes_and_matrix_exp_takes_half() -> None:
    with pytest.raises(tc.DTypeError, match="different dtypes"):
        tc.linalg.solve(tc.eye(2), tc.tensor([1, 2]))
    found = tc.linalg.matrix_exp(tc.eye(2, dtype=tc.float16))
    assert found.dtype is tc.float16
    np.testing.assert_allclose(found.numpy(), np.eye(2) * np.e, rtol=1e-3)


@pytest.mark.parametrize("dtype", ["bool", "int64", "float16", "float64"])
def test_solve_triangular_casts_the_right_side_to_the_matrix(dtype: str) -> None:
    """An integer right side was solved in integers, a half one in half."""

    def solve(lib: Any, left: bool) -> Any:
        A = lib.tensor([[2.0, 1.0], [0.0, 3.0]])
        B = lib.tensor([[1, 0], [1, 1]], dtype=getattr(lib, dtype))
        X = lib.linalg.solve_triangular(A, B, upper=True, left=left)
        assert X.dtype is lib.float32
        return X.numpy()

    for left in (True, False):
        np.testing.assert_allclose(solve(tc, left), solve(torch, left), rtol=1e-6)
