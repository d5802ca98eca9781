"""Single operations, most on a million elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.cpu.case import Call, Case, Library, integers, normal

SIDE = 1024
MILLION = SIDE * SIDE


def _of(function: Callable[[Any, Any], Any], *arrays: np.ndarray[Any, Any]) -> Any:
    """A case's `make`: a function of the library and tensors made once."""

    def make(lib: Library) -> Call:
        tensors = [lib.tensor(array) for array in arrays]
        return lambda: function(lib, *tensors)

    return make


def _case(
    name: str,
    function: Callable[..., Any],
    *arrays: np.ndarray[Any, Any],
    goal: float = 3,
    elements: int = MILLION,
    passes: float = 1,
    compared: bool = True,
) -> Case:
    return Case(name, _of(function, *arrays), goal, elements, passes, compared)


def _gradient(function: Callable[..., Any], *arrays: np.ndarray[Any, Any]) -> Any:
    """A case's `make`: forward, and the gradients of all inputs."""

    def make(lib: Library) -> Call:
        tensors = [lib.tensor(array).requires_grad_() for array in arrays]
        shape = tuple(function(lib, *tensors).shape)
        cotangent = lib.tensor(normal(*shape, seed=5) if shape else np.float32(1))

        def call() -> Any:
            return lib.autograd.grad(function(lib, *tensors), tensors, cotangent)

        return call

    return make


def _images(*shape: int) -> np.ndarray[Any, Any]:
    return normal(*shape, seed=3)


X, Y = normal(SIDE, SIDE), normal(SIDE, SIDE, seed=2)
ROWS = integers(SIDE, SIDE, SIDE)
WIDE = integers(4096, 16384)
TABLE = normal(4096, 64)
VALUES = normal(16384, 64)

OPERATIONS = (
    _case("x + y", lambda lib, x, y: x + y, X, Y),
    _case("x ** 3", lambda lib, x: x**3, X, passes=2),
    _case("exp", lambda lib, x: lib.exp(x), X),
    _case("tanh", lambda lib, x: lib.tanh(x), X),
    _case("sigmoid", lambda lib, x: lib.sigmoid(x), X, passes=4),
    _case("erf", lambda lib, x: lib.erf(x), X, goal=8),
    _case("gelu", lambda lib, x: lib.functional.gelu(x), X, goal=8, passes=4),
    _case("relu", lambda lib, x: lib.functional.relu(x), X, passes=2),
    _case("where", lambda lib, x, y: lib.where(x > 0, x, y), X, Y, passes=2),
    _case("dropout", lambda lib, x: lib.functional.dropout(x, 0.5), X, compared=False),
    _case("rand", lambda lib: lib.rand(SIDE, SIDE), goal=8, compared=False),
    _case("randn", lambda lib: lib.randn(SIDE, SIDE), goal=8, compared=False),
    _case("cumsum", lambda lib, x: lib.cumsum(x, 1), X),
    _case("cumsum, axis 0", lambda lib, x: lib.cumsum(x, 0), X),
    _case("sort", lambda lib, x: lib.sort(x, dim=1)[0], X),
    _case("argsort", lambda lib, x: lib.argsort(x, dim=1), X, compared=False),
    _case("topk 10", lambda lib, x: lib.topk(x, 10, dim=1)[0], X),
    _case("sum", lambda lib, x: x.sum(), X),
    _case("sum, axis 0", lambda lib, x: x.sum(0), X),
    _case("sum, axis 1", lambda lib, x: x.sum(1), X),
    _case("mean, var", lambda lib, x: x.var(1) + x.mean(1), X, passes=4),
    _case("max, axis 1", lambda lib, x: x.max(1)[0], X, passes=2),
    _case("argmax, axis 1", lambda lib, x: x.argmax(1), X),
    _case("softmax", lambda lib, x: lib.softmax(x, 1), X, passes=5),
    _case("log_softmax", lambda lib, x: lib.log_softmax(x, 1), X, passes=5),
    _case("layer_norm", lambda lib, x: lib.functional.layer_norm(x, (SIDE,)), X, passes=5),
    _case("gather", lambda lib, x, i: lib.gather(x, 1, i), X, ROWS),
    _case(
        "scatter_add", lambda lib, x, i, y: lib.scatter_add(x, 1, i, y), X, ROWS, Y, passes=3
    ),
    _case("index_select", lambda lib, x, i: lib.index_select(x, 0, i), TABLE, WIDE),
    _case(
        "index_add", lambda lib, x, i, y: x.index_add(0, i, y), TABLE, WIDE, VALUES,
        passes=2,
    ),
    _case(
        "embedding", lambda lib, i, x: lib.functional.embedding(i, x), WIDE, TABLE
    ),
    Case(
        "embedding, gradient",
        lambda lib: _gradient(
            lambda lib, x: lib.functional.embedding(lib.tensor(WIDE), x), TABLE
        )(lib),
        3, MILLION, 3,
    ),
    _case(
        "stack of 64 slices", lambda lib, x: lib.stack([x[:, k] for k in range(64)]), X,
        elements=64 * SIDE,
    ),
    _case("cat", lambda lib, x, y: lib.cat((x, y), 1), X, Y, elements=2 * MILLION),
    _case("transpose, contiguous", lambda lib, x: x.t().contiguous(), X),
    _case("matmul", lambda lib, x, y: x @ y, X, Y),
    _case("linear", lambda lib, x, y: lib.functional.linear(x, y), X[:64].copy(), Y, elements=0),
    _case(
        "batched matmul", lambda lib, x, y: x @ y,
        normal(64, 128, 64), normal(64, 64, 128, seed=2),
    ),
    _case(
        "conv2d 3 x 3", lambda lib, x, w: lib.functional.conv2d(x, w, padding=1),
        _images(16, 32, 32, 32), normal(32, 32, 3, 3), elements=16 * 32**3,
    ),
    Case(
        "conv2d 3 x 3, gradients",
        lambda lib: _gradient(
            lambda lib, x, w: lib.functional.conv2d(x, w, padding=1),
            _images(16, 32, 32, 32), normal(32, 32, 3, 3),
        )(lib),
        3, 16 * 32**3, 3,
    ),
    _case(
        "max_pool2d", lambda lib, x: lib.functional.max_pool2d(x, 2), _images(16, 64, 32, 32),
    ),
    Case(
        "max_pool2d, gradient",
        lambda lib: _gradient(
            lambda lib, x: lib.functional.max_pool2d(x, 2), _images(16, 64, 32, 32)
        )(lib),
        3, MILLION, 3,
    ),
    _case(
        "batch_norm",
        lambda lib, x: lib.functional.batch_norm(x, None, None, training=True),
        _images(16, 64, 32, 32), passes=5,
    ),
    Case(
        "cross_entropy, gradient",
        lambda lib: _gradient(
            lambda lib, x: lib.functional.cross_entropy(x, lib.tensor(ROWS[0])), X
        )(lib),
        3, MILLION, 5,
    ),
    Case(
        "x.sin() * y chain, gradient",
        lambda lib: _gradient(lambda lib, x, y: (x * y).sin() * y + x, X, Y)(lib),
        3, MILLION, 8,
    ),
)  # fmt: skip
