"""Every row has samples; NumPy agrees with formulas and torch, and every device with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import samples
import sampling
from execution import Batch, collected, device_or_skip, located, read, values
from sampling import Array, Sample, difference

from tinygrad_cuda.backend import registry
from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.errors import DTypeError
from tinygrad_cuda.graph.node import Node, Op
from tinygrad_cuda.graph.ops import TABLE, common, elementwise, movement, random
from tinygrad_cuda.graph.program import Program


def rows(keep: Callable[[Op], bool]) -> pytest.MarkDecorator:
    chosen = [op for op in TABLE.values() if keep(op)]
    return pytest.mark.parametrize("op", chosen, ids=[op.name for op in chosen])


ROWS = rows(lambda op: True)
TYPED = rows(lambda op: op.kind in ("elementwise", "reduction", "contraction"))
IN_TORCH = rows(lambda op: any(sample.torch for sample in samples.of(op)))
CHUNKS = samples.chunks(300)
IN_SMOKE = ("elementwise-0", "movement-0", "reduction-0", "indexing-0")
SMOKE = pytest.mark.smoke("backend")
BY_CHUNK = [pytest.param(name, marks=[SMOKE] if name in IN_SMOKE else []) for name in CHUNKS]


@pytest.mark.smoke("graph")
@ROWS
def test_row_has_samples(op: Op) -> None:
    """An op without samples is an op that nothing checks."""
    assert samples.of(op), f"{op.name} has no samples"
    rules = op.gradient if isinstance(op.gradient, tuple) else ()
    if any(rules):
        assert any(s.differentiate for s in samples.of(op)), f"{op.name}: no gradient is checked"


@TYPED
def test_every_dtype_that_a_row_takes_has_a_sample(op: Op) -> None:
    """Found by asking each row that computes which dtypes it refuses."""
    sample = samples.of(op)[0]
    seen = {s.sources[0].value.dtype for s in samples.of(op)}
    for dtype in (*dtypes.ALL, *dtypes.COMPLEX):
        nodes = [
            common.buffer.leaf(source.value.shape, dtype, CPU, slot=0) for source in sample.sources
        ]
        try:
            op.infer(op, tuple(nodes), sample.attributes)
        except DTypeError:
            continue
        assert dtype.numpy in seen, f"{op.name} takes {dtype.name} but no sample has it"


@pytest.mark.smoke("backend")
@ROWS
def test_reference_agrees_with_a_formula(op: Op) -> None:
    """NumPy's results against one-line formulas on Python numbers, and dtypes as inferred."""
    problems = []
    chosen = samples.of(op)
    found = located(values, chosen, CPU)
    for sample in chosen:
        problems += [f"{sample.name}: {p}" for p in _against_formula(sample, found[sample.name])]
    assert not problems, "\n".join(problems)


def _against_formula(sample: Sample, found: list[Array]) -> list[str]:
    batch = Batch(CPU)
    nodes = batch.record(sample, [read(batch.input(s.buffer), s) for s in sample.sources])
    problems = _as_inferred(nodes, found)
    if sample.expected is None or problems:
        return problems
    with np.errstate(all="ignore"):
        expected = sample.expected(*(s.value for s in sample.sources), **sample.attributes)
    loose = sampling.variant(sample, exact=False)
    if sample.op.kind == "elementwise" and sample.build is None and isinstance(expected, tuple):
        values_, defined = expected
        assert defined.mean() > 0.3 if defined.size else True, f"{sample.name}: nothing compared"
        pairs = [(np.where(defined, found[0], values_), values_)]
    else:
        pairs = list(zip(found, expected if isinstance(expected, tuple) else (expected,)))
    return [text for a, b in pairs if (text := difference(a, np.asarray(b), loose))]


def _as_inferred(nodes: tuple[Node, ...], found: list[Array]) -> list[str]:
    return [
        f"{array.shape} {array.dtype}, inferred {node.shape} {node.dtype.name}"
        for node, array in zip(nodes, found, strict=True)
        if array.shape != node.shape or array.dtype != node.dtype.numpy
    ]


def test_formulas_cover_the_table() -> None:
    """Only random leaves and values that formulas on numbers leave open lack an expectation."""
    for op in TABLE.values():
        if op not in random.ROWS:
            assert any(s.expected for s in samples.of(op)), f"{op.name} has no formula"


@IN_TORCH
def test_reference_agrees_with_torch(op: Op) -> None:
    """The same samples in PyTorch, edges included."""
    torch = pytest.importorskip("torch")
    chosen = [s for s in samples.of(op) if s.torch is not None]
    found = values(chosen, CPU)
    problems, compared = [], 0
    for sample in chosen:
        try:
            expected = sample.torch(torch, *map(tensor, operands(sample)), **sample.attributes)
        except (RuntimeError, NotImplementedError):
            continue  # torch lacks this dtype, or refuses an integer division by zero
        compared += 1
        parts = expected if isinstance(expected, tuple) else (expected,)
        loose = sampling.variant(sample, exact=False)
        for a, b in zip(found[sample.name], parts):
            if text := difference(a, array(b), loose):
                problems.append(f"{sample.name}: {text}")
    assert compared
    assert not problems, "\n".join(problems)


def operands(sample: Sample) -> list[Array]:
    return [source.value for source in sample.sources]


def tensor(value: Array) -> Any:
    torch = pytest.importorskip("torch")
    value = np.array(value, order="C")
    if value.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(value)


def array(value: Any) -> Array:
    torch = pytest.importorskip("torch")
    value = value.detach().contiguous()
    if value.dtype == torch.bfloat16:
        return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return value.numpy()


@pytest.mark.parametrize("kind", ["emu", "cuda"])
@pytest.mark.parametrize("chunk", BY_CHUNK)
def test_device_agrees_with_reference(
    kind: str, chunk: str, request: pytest.FixtureRequest
) -> None:
    """Generated kernels against NumPy: a family is recorded first, then run as one program."""
    device = device_or_skip(kind, request)
    chosen = CHUNKS[chunk]
    expected = values(chosen, CPU)
    found = located(values, chosen, device)
    problems = [
        f"{sample.name}: {text}"
        for sample in chosen
        for a, b in zip(found[sample.name], expected[sample.name], strict=True)
        if (text := difference(a, b, sample))
    ]
    assert not problems, f"{len(problems)} of {len(chosen)}:\n" + "\n".join(problems[:60])


@pytest.mark.parametrize("chunk", list(CHUNKS))
def test_results_do_not_depend_on_the_order_of_threads(
    chunk: str, request: pytest.FixtureRequest
) -> None:
    """A missing barrier shows when threads run in another order: the same bits are wanted."""
    batch = collected(CHUNKS[chunk], device_or_skip("emu", request))
    run = batch.runner(registry.get(batch.device).compile(batch.program()))
    first = run(batch.arrays)
    for order in (1, 2):
        with settings.override(emu_order=order):
            again = run(batch.arrays)
        for label, results in first.items():
            for one, other in zip(results, again[label], strict=True):
                assert one.tobytes() == other.tobytes(), f"{label} in order {order}"


def test_reference_results_share_no_memory() -> None:
    """Inputs, views of a result and the same result twice are storages of their own."""
    batch = Batch(CPU)
    x = batch.input(np.ones((3, 4)))
    y = elementwise.exp(x)
    outputs = (y, common.assign(x, y), movement.reshape(y, shape=(12,)), common.assign(x, x), x, y)
    backend = registry.get(CPU)
    storage = backend.from_host(batch.arrays[0])
    found = backend.compile(Program(CPU, outputs, (x,))).run([storage], [])
    for one, other in combinations([*found, storage], 2):
        assert not np.shares_memory(one, other)


@pytest.mark.parametrize("op", random.ROWS, ids=lambda op: op.name)
def test_random_leaves_are_distributed(op: Op) -> None:
    """Mean and spread of many draws, and other numbers for another seed or node."""
    batch = Batch(CPU)
    limits = {"low": 0, "high": 100} if op is random.random_integer else {}
    dtype = dtypes.int64 if limits else dtypes.float64
    for label, seed, number in (("a", 1, 2), ("again", 1, 2), ("seed", 2, 2), ("node", 1, 3)):
        batch.want(label, [op.leaf((20000,), dtype, CPU, seed=seed, number=number, **limits)])
    found = {label: results[0] for label, results in batch.run().items()}
    assert np.array_equal(found["a"], found["again"])
    assert np.mean(found["a"] == found["seed"]) < 0.02
    assert np.mean(found["a"] == found["node"]) < 0.02
    mean, spread = {
        "random_uniform": (0.5, 12**-0.5),
        "random_normal": (0.0, 1.0),
        "random_integer": (49.5, 28.87),
    }[op.name]
    for draws in found.values():
        assert abs(draws.mean() - mean) < 4 * spread / 20000**0.5
        assert abs(draws.std() / spread - 1) < 0.02
