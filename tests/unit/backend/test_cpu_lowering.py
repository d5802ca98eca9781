"""What the cpu device runs gives what the rows' references give node by node, bit for bit."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.backend.cpu.backend import (
    CpuBackend,
    CpuExecutable,
    ReferenceExecutable,
)
from tinygrad_cuda.backend.cpu.chains import ElementwiseChain
from tinygrad_cuda.backend.cpu.lowering import NumpyProgram
from tinygrad_cuda.backend.cpu.pool import CAPACITY, pool
from tinygrad_cuda.graph.ops import numeric, numeric_convolution
from tinygrad_cuda.graph.program import NOTHING, Number
from tinygrad_cuda.nn import functional as F

RNG = np.random.default_rng(0)
LONG = RNG.standard_normal((200, 180)).astype(np.float32)  # in two blocks
OTHER = RNG.standard_normal((200, 180)).astype(np.float32)
LONG[0, :4] = [0.0, -0.0, np.nan, -np.inf]


class Compared(CpuExecutable):
    """Runs both ways, and compares."""

    runs = 0

    def __init__(self, program: Any) -> None:
        super().__init__(program)
        self.plain = ReferenceExecutable(program)

    def run(
        self,
        inputs: Sequence[Any],
        arguments: Sequence[Number],
        spare: dict[int, Any] = NOTHING,
    ) -> list[Any]:
        copies = [np.array(array) for array in inputs]
        found = super().run(inputs, arguments)
        for before, after in zip(copies, inputs):
            assert before.tobytes() == after.tobytes(), "an input was changed"
        for mine, right in zip(found, self.plain.run(copies, arguments), strict=True):
            assert mine.flags.c_contiguous and mine.flags.owndata
            assert (mine.dtype, mine.shape) == (right.dtype, right.shape)
            # The sign of a sum that is zero is not defined.
            np.testing.assert_array_equal(mine, right)
        assert len({id(array) for array in (*found, *inputs)}) == len(found) + len(inputs)
        Compared.runs += 1
        return found


@pytest.fixture
def compared(on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from tinygrad_cuda.engine.plan import cache

    cache.clear()
    before = Compared.runs
    monkeypatch.setattr(CpuBackend, "compile", lambda self, program: Compared(program))
    yield
    cache.clear()
    assert Compared.runs > before


def _gradient(function: Callable[..., Any], *arrays: Any) -> list[Any]:
    tensors = [tc.tensor(array).requires_grad_() for array in arrays]
    out = function(*tensors)
    return [out, *tc.autograd.grad(out, tensors, tc.tensor(np.cos(np.arange(out.numel())).reshape(
        out.shape), dtype=out.dtype))]  # fmt: skip


def _layers(function: Callable[..., Any], x: Any, y: Any) -> Any:
    """Several, so that much lies between the forward and the backward pass of the first one."""
    for _ in range(4):
        x = function(x @ (y[:180] / 16))
    return x


def _with_view(function: Callable[[Any], Any]) -> Any:
    """Results of a value that nothing else reads."""
    return function(tc.tensor(OTHER) @ tc.tensor(OTHER[:180]))


SMALL = LONG[:3, :5].copy()
PROGRAMS: dict[str, Callable[[], Any]] = {
    "chain": lambda: _gradient(lambda x, y: (x * y).sin() * y + x / 3 - 1, LONG, OTHER),
    "rows": lambda: _gradient(lambda x, y: (x - y[:, :1]) * y[:1] + 2, LONG, OTHER),
    "transposed": lambda: _gradient(lambda x, y: (x.t() + y.t().exp()) * y.t(), LONG, OTHER),
    "shapes change": lambda: _gradient(
        lambda x, y: (x.exp().reshape(180, 200) + y.reshape(180, 200)).cos().reshape(-1),
        LONG, OTHER,
    ),
    "a reduction between": lambda: _gradient(lambda x: F.softmax(x * 2, -1) * x, OTHER),
    "relu": lambda: _gradient(F.relu, LONG),
    "gelu": lambda: _gradient(F.gelu, OTHER),
    "where": lambda: _gradient(lambda x, y: tc.where(x > y, x, y * 2), LONG, OTHER),
    "where and numbers": lambda: _gradient(
        lambda x: tc.where(x > 0, x, 0.0) + x.clamp(-1, 1), LONG
    ),
    "powers": lambda: _gradient(lambda x: x**2 + x**3 + x**4 + x**-1 + abs(x) ** 0.5, OTHER),
    "integer powers": lambda: tc.tensor([-3, 2, 0, 7]) ** 3,
    "half": lambda: _gradient(lambda x: (x * 2 + 1).tanh() * x, LONG.astype(np.float16)),
    "float64": lambda: _gradient(lambda x: x.sigmoid() * x.rsqrt(), np.abs(OTHER).astype(float)),
    "cat": lambda: _gradient(lambda x, y: tc.cat([x, y, x * 2], 1), LONG, OTHER),
    "stack": lambda: _gradient(lambda x: tc.stack([x[:, k] for k in range(5)], 1), LONG),
    "views at equal distances": lambda: (
        lambda x: (
            tc.stack([x[k] for k in range(9, 3, -1)]), tc.stack([x[1:, k] for k in range(5)]),
            tc.stack([x[:, k : k + 3] for k in range(0, 9, 2)], 2), tc.cat(x.chunk(6, 1), 1),
            tc.cat([x[k : k + 2] for k in (0, 3, 6)], 1), tc.cat([x[:4], x[2:6]]),
        )
    )(tc.tensor(LONG)),
    "padded": lambda: _gradient(lambda x: F.pad(x, (1, 2, 3, 0), value=7.0), SMALL),
    "movements": lambda: _gradient(
        lambda x, y: (
            x.t()[2:9, ::3].flip(0).expand(4, 7, 67)
            * y[:, 1:].t().unfold(0, 7, 20)[:4, :67].transpose(1, 2)
        ),
        LONG, OTHER,
    ),
    "short rows": lambda: _gradient(
        lambda x, y: (x[:, :1].reshape(200, 1, 1) + y[:, :6].reshape(200, 3, 2)) * y[0, :3, None],
        LONG[4:204].repeat(2, 0)[:200], OTHER,
    ),
    "long short rows": lambda: _gradient(
        lambda x, y: tc.where(x.reshape(-1, 4) > 0, x.reshape(-1, 4)[:, 1:2], 0.0) * y[0, :4], LONG,
        OTHER,
    ),
    "a view of what dies": lambda: _with_view(lambda x: (x + 1, x.flip(0) * (x + 1))),
    "a few rows of a large weight": lambda: _gradient(
        lambda x, w: F.layer_norm(F.linear(x[:30], w.repeat(2, 1)) * 2, (400,)), LONG, OTHER
    ),
    "short rows less their first": lambda: (
        lambda x: x - x[:, :1]
    )(tc.tensor(OTHER.reshape(-1, 6)).cumsum(0)),
    "read twice": lambda: _gradient(
        lambda x: tc.cat([x, x], 1)[:, 3:8] + tc.cat([x, x], 1)[:, :5], SMALL
    ),
    "slices": lambda: _gradient(lambda x: sum(x[k : k + 2] * k for k in range(3)), OTHER),
    "windows": lambda: _gradient(lambda x: x.unfold(0, 3, 2), OTHER[:9, :4].copy()),
    "dropout": lambda: _gradient(lambda x: F.dropout(x, 0.5) + F.dropout(x, 0.1), OTHER),
    "empty": lambda: tc.cat([tc.zeros(0, 3), tc.ones(2, 3)]) + tc.zeros(0, 1).sum(),
    "0-d": lambda: (tc.tensor(2.0) ** 3).relu() + tc.where(tc.tensor(True), 1.0, 0.0),
    "constants": lambda: (
        tc.ones(200, 180) * 3 + tc.arange(180) + tc.full((200, 1), 2.0), tc.ones(2)
    ),
    "several results": lambda: (
        lambda x: (x, x + 1, (x + 1).t(), x.t() * 2)
    )(tc.tensor(LONG) * 2),
    "bool": lambda: (tc.tensor(LONG) > 0).logical_and(tc.tensor(OTHER) > 0).logical_not(),
    "small integers": lambda: (
        tc.tensor((OTHER * 50).astype(np.int8)) * 3 + tc.tensor(2, dtype=tc.int8)
    ),
    "convolution": lambda: _gradient(
        lambda x, w: F.max_pool2d(F.relu(F.conv2d(x, w, padding=1)), 2),
        OTHER[:160].reshape(18, 1, 40, 40).copy(), OTHER[0, :27].reshape(3, 1, 3, 3).copy(),
    ),
    "embedding": lambda: _gradient(lambda w: F.embedding(tc.tensor([[1, 2], [1, 0]]), w), SMALL),
    "norms": lambda: _gradient(
        lambda x: F.layer_norm(x, (180,)) + F.batch_norm(x, None, None, training=True), OTHER
    ),
    "layers of gelu": lambda: _gradient(lambda x, y: _layers(F.gelu, x, y), LONG[1:], OTHER),
    "layers of softmax": lambda: _gradient(
        lambda x, y: _layers(lambda h: F.softmax(h, -1), x, y), OTHER, OTHER
    ),
    "layers of norms": lambda: _gradient(
        lambda x, y: _layers(lambda h: F.silu(F.layer_norm(h, (180,))) + h, x, y), OTHER, OTHER
    ),
    "layers of views": lambda: _gradient(
        lambda x, y: _layers(
            lambda h: (h.tanh() * h.sigmoid()).reshape(-1, 90).t().reshape(h.shape), x, y
        ), OTHER, OTHER,
    ),
    "layers of dropout": lambda: _gradient(
        lambda x, y: _layers(lambda h: F.dropout(F.relu(h), 0.3), x, y), OTHER, OTHER
    ),
    "cumsum": lambda: _gradient(lambda x: x.cumsum(1) + x.cumsum(0), OTHER),
    "sorted": lambda: _gradient(lambda x: x.sort(1)[0] + x.topk(180, 1)[0], OTHER),
}  # fmt: skip


def _values(result: Any) -> Any:
    return (
        [part.tolist() for part in result] if isinstance(result, list | tuple) else result.tolist()
    )


@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize("name", PROGRAMS)
def test_lowered_programs_agree_with_the_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for turned products, whose rounding is the BLAS library's for this machine."""
    monkeypatch.setattr(numeric, "turned_product", numeric.product)
    tc.manual_seed(0)
    first = _values(PROGRAMS[name]())
    tc.manual_seed(0)
    np.testing.assert_equal(_values(PROGRAMS[name]()), first)


@pytest.mark.usefixtures("compared")
def test_recurrent_and_attention_steps_agree_with_the_rows() -> None:
    tc.manual_seed(0)
    model = tc.nn.LSTM(4, 8, batch_first=True)
    block = tc.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    parameters = [*model.parameters(), *block.parameters()]
    optimizer = tc.optim.AdamW(parameters, lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        block(model(tc.randn(2, 5, 4))[0]).square().mean().backward()
        optimizer.step()


@pytest.mark.usefixtures("compared")
def test_writes_agree_with_the_rows() -> None:
    x = tc.zeros(6, 4)
    view = x[1:3]
    x[2:5, ::2] = 3.0
    x[:, 1] += 2
    view.mul_(2)
    x[::2].copy_(tc.ones(3, 4))
    assert x.tolist() == [[1] * 4, [0, 4, 0, 0], [1] * 4, [3, 2, 3, 0], [1] * 4, [0, 2, 0, 0]]


@pytest.mark.usefixtures("compared")
def test_a_bad_index_is_reported_though_nothing_reads_it() -> None:
    loss = F.embedding(tc.tensor([9]), tc.zeros(3, 2)) * 0
    with pytest.raises(IndexError, match="9"):
        loss.tolist()
    tc.ones(3).add(1).tolist()


def test_arrays_of_dead_values_are_used_again_and_results_are_not(on_cpu: None) -> None:
    pool.clear()
    x = tc.tensor(OTHER)
    kept = [((x * k).exp().sum(0, keepdim=True) + x.exp() / 2).t() for k in range(4)]
    values = [tensor.numpy().copy() for tensor in kept]
    assert 0 < pool.idle_bytes <= CAPACITY
    ((x * 9).exp().sum(0, keepdim=True) + x.exp() / 3).t().numpy()
    for tensor, value in zip(kept, values):
        np.testing.assert_array_equal(tensor.numpy(), value)
    pool.clear()
    assert pool.idle_bytes == 0


@pytest.mark.parametrize("shape", [(7, 9), (120, 130), (200, 180)])
def test_sums_do_not_depend_on_what_else_is_read(shape: tuple[int, int], on_cpu: None) -> None:
    """NumPy sums in the order of memory, which must not be that of the operand that dies."""

    def total(a: tc.Tensor, b: tc.Tensor, kept: str) -> float:
        values = {"turned": a.t() * 1.5, "straight": b * 0.3}
        result = (values["turned"] + values["straight"]).sum()
        values = {name: value for name, value in values.items() if name in kept}
        return float(result)  # with all that is still held

    rng = np.random.default_rng(1)
    for _ in range(40):
        a = tc.tensor(rng.normal(size=shape).astype(np.float32))
        b = tc.tensor(rng.normal(size=shape[::-1]).astype(np.float32))
        found = [total(a, b, kept) for kept in ("", "turned", "straight", "turned straight")]
        assert len(set(found)) == 1


def test_an_array_of_the_pool_is_taken_in_another_shape() -> None:
    """What is made flat and seen in its shape would be kept for nobody."""
    pool.clear()
    array = np.empty(60_000, np.float32)
    pool.give(array)
    taken = pool.take((200, 300), array.dtype)
    assert taken is array and taken.shape == (200, 300)
    assert taken.flags.owndata and taken.flags.c_contiguous and not pool.idle_bytes
    assert pool.take((200, 300), array.dtype) is not array


@pytest.fixture
def plans(on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[NumpyProgram]]:
    """What is made for the programs of a test."""
    from tinygrad_cuda.engine.plan import cache

    cache.clear()
    made: list[NumpyProgram] = []

    def noted(self: Any, program: Any) -> CpuExecutable:
        executable = CpuExecutable(program)
        made.append(executable.lowered)
        return executable

    monkeypatch.setattr(CpuBackend, "compile", noted)
    yield made
    cache.clear()


def test_movements_that_copy_nothing_are_one_step(plans: list[NumpyProgram]) -> None:
    x = tc.tensor(OTHER)
    windows = (x * 2).t()[2:9].unfold(1, 5, 3).permute(2, 0, 1)
    (windows + 1).numpy()
    (steps,) = [plan.steps for plan in plans]
    assert len([step for step in steps if not isinstance(step, ElementwiseChain)]) <= 3


def test_views_at_equal_distances_are_joined_by_one_step(plans: list[NumpyProgram]) -> None:
    x = tc.tensor(OTHER)
    joins: list[tuple[Callable[[], Any], int]] = [
        (lambda: tc.stack([x[:, k] for k in range(1, 9)]), 1),
        (lambda: tc.cat(x.chunk(4, 1)[::-1], 1), 1),
        (lambda: tc.stack([x[0], x[1], x[3]]), 4),
        (lambda: tc.cat([x[:, :3], x[:, 3:9]], 1), 3),
    ]
    for join, steps in joins:
        plans.clear()
        join().numpy()
        assert [len(plan.steps) for plan in plans] == [steps]


@pytest.mark.usefixtures("plans")  # none is there already
def test_a_plan_is_made_without_memory_of_its_values_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Movements are tried with arrays of the layout alone: those of one plan would add up."""
    used: list[int] = []

    def noted(self: Any, program: Any) -> CpuExecutable:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        executable = CpuExecutable(program)
        used.append(tracemalloc.get_traced_memory()[1] - before)
        return executable

    monkeypatch.setattr(CpuBackend, "compile", noted)
    x = tc.tensor(np.resize(OTHER, (1, 700, 900)))
    y = x * 2
    moved = [y.transpose(1, 2), y.flip(1), y.expand(3, 700, 900), y[:, 2::3], y.unfold(2, 9, 4)]
    sums = [(part.permute(*range(part.ndim)[::-1]).contiguous() + 1).sum() for part in moved]
    tracemalloc.start()
    try:
        total = tc.stack(sums).sum().item()
    finally:
        tracemalloc.stop()
    assert used
    assert max(used) < OTHER.nbytes
    expected = sum(float((part.numpy().astype(np.float64) + 1).sum()) for part in moved)
    assert total == pytest.approx(expected, rel=1e-5)


def test_what_small_values_come_between_is_one_chain(plans: list[NumpyProgram]) -> None:
    """A norm's scale is computed in several small steps from what its shift comes from."""
    x = tc.tensor(np.resize(OTHER, (4, 9, 50, 50)))
    F.relu(F.batch_norm(x, None, None, training=True)).numpy()
    (chain,) = [step for plan in plans for step in plan.steps if isinstance(step, ElementwiseChain)]
    assert len(chain.members) >= 4


@pytest.mark.parametrize(
    "shape",
    [
        (16, 144, 4096), (6, 25, 50_000), (3, 7, 500), (5, 300, 12_000), (2, 512, 128),
        (40, 512, 128), (33, 128, 512), (64, 256, 784),
    ],
)  # fmt: skip
def test_turned_products_are_as_exact(shape: tuple[int, int, int]) -> None:
    """Both are within the bound of a sum of so many products (Higham, Accuracy and Stability, 3.1).

    On some processors a BLAS library adds a turned product in another order.
    """
    rows, columns, terms = shape
    a = np.resize(OTHER, (1, rows, terms))
    b = np.resize(OTHER[::-1], (1, columns, terms)).transpose(0, 2, 1)
    wide = a.astype(np.float64), b.astype(np.float64)
    exact, sizes = wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1])
    bound = terms * np.finfo(np.float32).eps / 2 * sizes
    turned = numeric.turned_product(a, b)
    assert (np.abs(turned - exact) <= bound).all()
    assert (np.abs(numeric.product(a, b) - exact) <= bound).all()
    out = np.empty_like(turned)
    assert turned.flags.c_contiguous
    assert numeric.turned_product(a, b, out=out) is out
    np.testing.assert_array_equal(out, turned)


@pytest.mark.parametrize(("shape", "pieces"), [((24, 72, 18_496), 6), ((3, 7, 500), 1)])
def test_long_sums_are_cut_into_pieces(shape: tuple[int, int, int], pieces: int) -> None:
    rows, columns, terms = shape
    assert numeric.pieces_of(rows, columns, terms) == pieces
    a, b = np.resize(OTHER, (1, rows, terms)), np.resize(LONG[1:], (1, terms, columns))
    right = a.astype(np.float64) @ b.astype(np.float64)
    for out in (None, np.empty((1, rows, columns), np.float32)):
        found = numeric.product(a, b, out=out)
        np.testing.assert_allclose(found, right, atol=1e-6 * np.abs(a).sum())


def kept_of_a_layer(layer: Callable[..., Any], shape: tuple[int, ...], look: bool) -> float:
    """What a layer adds to the most memory of a step, in its activations."""
    most = []
    for layers in (4, 8):
        x = tc.tensor(np.resize(OTHER, shape))
        weights = [
            tc.tensor(np.resize(OTHER, (8, 8, 3, 3)) / 4).requires_grad_() for _ in range(layers)
        ]
        y = x
        for _ in range(2):  # the second time there is a plan
            y = loss = None
            pool.clear()
            tracemalloc.start()
            y = x
            for weight in weights:
                y = layer(y, weight)
            loss = (y * y).mean()
            if look:
                loss.item()
            gradients = tc.autograd.grad(loss, weights)
            del loss, y
            gradients[0].numpy()
            most.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    return (most[3] - most[1]) / 4 / x.numel() / 4


ROWS, IMAGES = (8192, 8), (8, 8, 32, 32)
LAYERS: dict[str, tuple[Callable[..., Any], tuple[int, ...], float]] = {
    "tanh": (lambda x, w: (x @ w[:, :, 0, 0]).tanh(), ROWS, 1.3),
    "sigmoid": (lambda x, w: (x @ w[:, :, 0, 0]).sigmoid(), ROWS, 1.3),
    "relu": (lambda x, w: F.relu(x @ w[:, :, 0, 0]), ROWS, 1.3),
    "gelu": (lambda x, w: F.gelu(x @ w[:, :, 0, 0]), ROWS, 2.3),
    "softmax": (lambda x, w: F.softmax(x @ w[:, :, 0, 0], -1), ROWS, 1.6),
    "layer_norm": (lambda x, w: F.layer_norm(x @ w[:, :, 0, 0], (8,)), ROWS, 2.0),
    "dropout": (lambda x, w: F.dropout(x @ w[:, :, 0, 0], 0.5), ROWS, 2.4),
    "convolution": (lambda x, w: F.relu(F.conv2d(x, w, padding=1)), IMAGES, 1.6),
}  # fmt: skip


@pytest.mark.fast_paths
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("look", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_keeps_what_its_gradient_reads(name: str, look: bool) -> None:
    """As PyTorch does, in one plan as well as in two: one activation, but no mask or columns."""
    layer, shape, most = LAYERS[name]
    assert kept_of_a_layer(layer, shape, look) < most


# References of more than one call -----------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-30, 1e-4, 0.1, 1.0, 4.0])
def test_erf_is_within_three_units_in_the_last_place(scale: float) -> None:
    from scipy.special import erf

    x = (RNG.standard_normal(20_000) * scale).astype(np.float32)
    right = erf(x.astype(np.float64))
    unit = np.spacing(np.abs(right).astype(np.float32))
    assert (np.abs(numeric.erf(x) - right) <= 3 * unit).all()


def test_erf_of_special_values() -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 9.0], np.float32)
    found = numeric.erf(x)
    np.testing.assert_array_equal(found, np.array([0, 0, 1, -1, np.nan, 1e-45, 1], np.float32))
    assert np.signbit(found).tolist()[:2] == [False, True]
    assert numeric.erf(np.float32(0.5)) == numeric.erf(np.full(3, 0.5, np.float32))[1]


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((5000,), (0,)), ((7, 1031), (1,)), ((64, 48), (0, 1)), ((3, 4, 32, 32), (0, 2, 3)),
        ((1, 5000), (0,)), ((200, 3, 5), (1, 2)), ((0, 9), (1,)), ((9, 0), (1,)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_and_deviations(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> None:
    x = RNG.standard_normal(shape).astype(dtype)
    right = x.astype(np.float64).sum(axes, keepdims=True)
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    found = numeric.total(x, axes)
    assert found.shape == right.shape and found.dtype == x.dtype
    np.testing.assert_allclose(found, right, rtol=tolerance, atol=100 * tolerance)
    if x.size:
        mean, m2 = numeric.welford(x, axes)
        deviations = x - x.astype(np.float64).mean(axes, keepdims=True)
        assert mean.shape == m2.shape == right.shape and mean.dtype == m2.dtype == x.dtype
        np.testing.assert_allclose(m2, (deviations**2).sum(axes, keepdims=True), rtol=tolerance)


@pytest.mark.parametrize("width", [(), (3,), (40,)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "bool"])
def test_sums_at_positions(width: tuple[int, ...], dtype: str) -> None:
    index = RNG.integers(0, 50, (60, 70))
    values = (RNG.standard_normal((60, 70, *width)) * 9).astype(dtype)
    base = (RNG.standard_normal((50, *width)) * 9).astype(dtype)
    right = base.astype("bool" if dtype == "bool" else np.float64)
    if dtype == "bool":
        np.logical_or.at(right, index, values)
    else:
        np.add.at(right, index, values.astype(np.float64))
    found = numeric.add_at(base, index, values)
    assert found.dtype == base.dtype
    if base.dtype.kind in "iu":
        right = right.astype(np.int64).astype(dtype)
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kernel", [(3, 3), (1, 3), (5, 2)])
def test_columns_of_a_convolution(kernel: tuple[int, int]) -> None:
    from numpy.lib.stride_tricks import sliding_window_view

    images = OTHER[:160].reshape(18, 2, 40, 20)
    windows = sliding_window_view(images, kernel, (2, 3)).transpose(1, 4, 5, 0, 2, 3)
    for view in (windows, windows[..., ::2, ::2], windows[:, ::2]):
        shape = (view.shape[0] * view.shape[1] * view.shape[2], -1)
        found = numeric.reshaped(shape, pool, view)
        np.testing.assert_array_equal(found, np.ascontiguousarray(view).reshape(shape))


def test_columns_do_not_lie_a_power_of_two_apart() -> None:
    from numpy.lib.stride_tricks import sliding_window_view

    images = np.resize(OTHER, (16, 3, 18, 18))
    windows = sliding_window_view(images, (3, 3), (2, 3)).transpose(1, 4, 5, 0, 2, 3)[None]
    found = numeric.reshaped((1, 27, 4096), pool, windows)
    assert found.strides[1] % numeric._SET
    np.testing.assert_array_equal(found, np.ascontiguousarray(windows).reshape(1, 27, 4096))


@pytest.mark.parametrize("tail", [(4,), (2, 3)])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
def test_extremes_of_short_rows(tail: tuple[int, ...], dtype: str) -> None:
    x = (RNG.integers(-2, 3, (50, 7, *tail)) * 1.5).astype(dtype)
    if dtype == "float32":
        x[::3, 1, 0] = np.nan
    flat = x.reshape(50, 7, -1)
    for combine, largest, position in (
        (np.maximum, np.max, np.argmax), (np.minimum, np.min, np.argmin),
    ):  # fmt: skip
        found = numeric.short_extreme(combine, tail, x)
        np.testing.assert_array_equal(found, largest(flat, -1, keepdims=True))
        found = numeric.short_position(combine, tail, x)
        np.testing.assert_array_equal(found, position(flat, -1, keepdims=True))


@pytest.mark.parametrize("shape", [(3000,), (40, 100), (40, 96), (96, 3, 40), (300, 20)])
def test_running_sums(shape: tuple[int, ...]) -> None:
    for dtype in ("float32", "float64", "int32", "uint8"):
        x = (RNG.standard_normal(shape) * 9).astype(dtype)
        for axis in range(x.ndim):
            found = numeric.cumsum(x, axis)
            right = np.cumsum(x.astype(np.float64 if x.dtype.kind == "f" else dtype), axis, dtype=(
                np.float64 if x.dtype.kind == "f" else dtype))  # fmt: skip
            assert found.dtype == x.dtype
            np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("descending", [False, True])
def test_first_positions_are_those_of_a_stable_sort(descending: bool) -> None:
    x = RNG.standard_normal((30, 200)).astype(np.float32)
    x[:10] = np.round(x[:10])  # with equals at the border
    x[5:15, ::7], x[15, :190] = np.nan, np.nan
    whole = numeric.order(x, descending, 200)
    for count in (1, 7, 40):
        np.testing.assert_array_equal(numeric.order(x, descending, count), whole[:, :count])


def test_threads_of_matrix_products() -> None:
    before = tc.get_num_threads()
    try:
        tc.set_num_threads(2)
        two = tc.get_num_threads()
        tc.set_num_threads(1)
        assert (two, tc.get_num_threads()) == (2, 1)
    finally:
        tc.set_num_threads(before)
    for number in (0, -1, True, 1.0, "2"):
        with pytest.raises(tc.ArgumentError, match="integer of at least 1"):
            tc.set_num_threads(number)


def test_threads_are_set_in_the_library_of_numpy() -> None:
    """SciPy's wheel brings an OpenBLAS too: its number of threads is not that of a product."""
    folder = Path(np.__file__).parents[1] / "numpy.libs"
    libraries = [str(path) for path in folder.glob("libscipy_openblas64_*.so")]
    if not libraries:
        pytest.skip("this NumPy is not a Linux wheel with OpenBLAS")
    program = (
        "import ctypes, sys, scipy.linalg, tinygrad_cuda as tc\n"
        "count = ctypes.CDLL(sys.argv[1]).scipy_openblas_get_num_threads64_\n"
        "for number in (2, 1):\n"
        "    tc.set_num_threads(number)\n"
        "    assert count() == number == tc.get_num_threads(), count()\n"
    )
    subprocess.run([sys.executable, "-c", program, libraries[0]], check=True, timeout=120)


SPECIAL = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-45, -2.5], np.float32)


@pytest.mark.parametrize("size", [8, 800, 80_000])
@pytest.mark.parametrize("bound", [0.0, -0.0, 1.5, np.nan, -np.inf])
def test_extremes_with_a_number_are_those_with_an_array(size: int, bound: float) -> None:
    x = np.resize(SPECIAL, size)
    number = np.array(bound, np.float32)
    for ours, right in ((numeric.maximum, np.maximum), (numeric.minimum, np.minimum)):
        expected = right(x, np.full(size, bound, np.float32))
        for found in (
            ours(x, number),
            ours(number, x),
            ours(x.copy(), number, out=np.empty(size, "f")),
        ):
            np.testing.assert_array_equal(found, expected)
    assert numeric.maximum(x.reshape(-1, 8), number).shape == (size // 8, 8)


@pytest.mark.parametrize("size", [8, 80_000])
def test_relu_has_no_negative_zero_and_keeps_nan(size: int) -> None:
    x = np.resize(SPECIAL, size)
    found, within = numeric.relu(x), x.copy()
    assert numeric.relu(within, out=within) is within
    for values in (found, within):
        np.testing.assert_array_equal(values, np.where(x <= 0, np.float32(0), x))
        assert not np.signbit(values[values == 0]).any()


def test_a_cube_may_lie_where_its_base_is() -> None:
    x = LONG.copy()
    expected = x * x * x
    np.testing.assert_array_equal(numeric.product_power(3, x, out=np.empty_like(x)), expected)
    np.testing.assert_array_equal(numeric.product_power(3, x[:100], out=x[:100]), expected[:100])


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
def test_copies_of_views_whose_lines_share_a_set_of_the_cache(dtype: str) -> None:
    x = (RNG.standard_normal((40, 2, 1024)) * 50).astype(dtype)
    for view in (
        x.reshape(80, 1024).T, x.transpose(2, 1, 0), x[::-1].transpose(1, 2, 0),
        x.reshape(80, 1024)[:, :100].T, x.transpose(2, 0, 1)[900:],
    ):  # fmt: skip
        copy = np.empty(view.shape, view.dtype)
        numeric.copy_into(copy, view)
        np.testing.assert_array_equal(copy, view)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (5, 2)])
@pytest.mark.usefixtures("compared")
def test_a_convolution_makes_its_columns_in_parts(
    kernel: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forwards and backwards."""
    parts: list[int] = []
    whole = numeric_convolution._parts

    def noted(*sizes: int) -> Any:
        found = whole(*sizes)
        parts.append(len(found))
        return found

    monkeypatch.setattr(numeric_convolution, "_parts", noted)
    x = tc.tensor(np.resize(OTHER, (7, 12, 40, 40))).requires_grad_()
    w = tc.tensor(np.resize(OTHER, (16, 12, kernel, kernel))).requires_grad_()
    y = F.conv2d(x, w, stride=stride, padding=1)
    y.square().sum().backward()
    assert x.grad is not None and w.grad is not None
    x.grad.numpy(), w.grad.numpy(), y.detach().numpy()
    assert len([count for count in parts if count > 1]) >= 2
