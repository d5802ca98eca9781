"""Gradient rules against central differences in float64, torch, and across devices; twice over."""

from __future__ import annotations

import numpy as np
import pytest
import samples
from derivatives import Check, derivatives, record
from execution import Batch, device_or_skip, located
from samples_elementwise import FLAT
from sampling import Sample, difference, in_dtype, variant
from test_values import array, operands, tensor

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import DTypeError
from tinygrad_cuda.graph.node import Op
from tinygrad_cuda.graph.ops import TABLE, special
from tinygrad_cuda.graph.ops import elementwise as ew

# Second derivatives of one sample take several kernels: fewer samples a translation unit.
CHUNKS = samples.chunks(60, differentiate=True)


def differentiable(op: Op) -> tuple[Sample, ...]:
    return tuple(sample for sample in samples.of(op) if sample.differentiate)


ROWS = [op for op in TABLE.values() if differentiable(op)]
BY_ROW = pytest.mark.parametrize("op", ROWS, ids=[op.name for op in ROWS])


@BY_ROW
def test_first_and_second_derivatives_are_the_slopes(op: Op) -> None:
    """Along a random direction and every axis, of the results and of the gradients."""
    for sample in differentiable(op):
        Check(sample).run()


@pytest.mark.smoke("graph")
@BY_ROW
def test_small_jacobians_entry_by_entry(op: Op) -> None:
    """Rows recorded by the rule, columns by differences: no error can cancel in a sum."""
    for sample in differentiable(op):
        Check(sample, order=1).jacobian()


@pytest.mark.parametrize("op", FLAT, ids=[op.name for op in FLAT])
def test_flat_rows_have_no_slope(op: Op) -> None:
    """Steps: exactly zero, not small."""
    for sample in differentiable(op):
        check = Check(sample, order=1)
        reached = [g for g, there in zip(check.base["g"], check.derived.reached) if there]
        assert all(not np.any(g) for g in reached)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16, dtypes.bfloat16], ids=repr)
@BY_ROW
def test_rules_keep_the_dtype(op: Op, dtype: DType) -> None:
    """A gradient has its operand's dtype, and the value it has in float64 as far as that holds."""
    if op is special.nextafter and dtype is not dtypes.float32:
        with pytest.raises(DTypeError, match="nextafter"):
            record(Batch(CPU), in_dtype(differentiable(op)[0], dtype), order=1)
        return
    precision = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 8e-2}[dtype.name]
    for sample in differentiable(op):
        if dtype.is_half and not sample.halves:
            continue
        batch, precise = Batch(CPU), Batch(CPU)
        record(batch, in_dtype(sample, dtype), order=1)
        record(precise, sample, order=1)
        found = batch.run().get(f"{sample.name} g", [])
        expected = precise.run().get(f"{sample.name} g", [])
        for a, b in zip(found, expected, strict=True):
            assert (a.shape, a.dtype) == (b.shape, dtype.numpy)
            scale = 1 + np.max(np.abs(b), initial=0)
            assert np.max(np.abs(a.astype(float) - b), initial=0) < precision * scale, sample.name


def with_torch(op: Op) -> list[Sample]:
    """Smooth samples and ties: there a derivative is a convention, and ours is torch's."""
    return [
        sample for sample in samples.of(op)
        if sample.torch and op is not ew.floor_divide  # which torch refuses to differentiate
        and (sample.differentiate or sample.label.startswith("ties"))
    ]  # fmt: skip


IN_TORCH = [op for op in TABLE.values() if any(s.differentiate for s in with_torch(op))]


@pytest.mark.parametrize("op", IN_TORCH, ids=[op.name for op in IN_TORCH])
def test_gradients_agree_with_torch(op: Op) -> None:
    """torch.autograd on the same operands and cotangents."""
    torch = pytest.importorskip("torch")
    for sample in with_torch(op):
        batch = Batch(CPU)
        derived = record(batch, sample, order=1, views=False)
        found = iter(batch.run().get(f"{sample.name} g", []))
        inputs = [tensor(value) for value in operands(sample)]
        leaves = [x.requires_grad_() for x in inputs if x.is_floating_point()]
        results = sample.torch(torch, *inputs, **sample.attributes)
        results = results if isinstance(results, tuple) else (results,)
        seeds = [tensor(batch.arrays[place]) for place in derived.seeds]
        pairs = [(y, v) for y, v in zip(results, seeds) if y.requires_grad]
        expected = torch.autograd.grad(
            [y for y, _ in pairs], leaves, [v for _, v in pairs], allow_unused=True
        ) if pairs else [None] * len(leaves)  # fmt: skip
        for there, leaf, theirs in zip(derived.reached, leaves, expected):
            ours = next(found) if there else np.zeros(leaf.shape)
            theirs = np.zeros(leaf.shape) if theirs is None else array(theirs)
            text = difference(ours, theirs, variant(sample, exact=False))
            assert text is None, f"{sample.name}: {text}"


@pytest.mark.parametrize("kind", ["emu", "cuda"])
@pytest.mark.parametrize("chunk", list(CHUNKS))
def test_device_derivatives_agree_with_reference(
    kind: str, chunk: str, request: pytest.FixtureRequest
) -> None:
    """Gradients and second derivatives of a family in one program of generated kernels."""
    device = device_or_skip(kind, request)
    chosen = CHUNKS[chunk]
    expected = derivatives(chosen, CPU)
    found = located(derivatives, chosen, device)
    problems = []
    for sample in chosen:
        # Sums of products of several rounded factors.
        loose = variant(sample, exact=False, loose=max(sample.loose, 1) * 100)
        for kind_ in ("g", "h"):
            label = f"{sample.name} {kind_}"
            pairs = zip(found.get(label, []), expected.get(label, []), strict=True)
            problems += [f"{label}: {t}" for a, b in pairs if (t := difference(a, b, loose))]
    assert not problems, f"{len(problems)}:\n" + "\n".join(problems[:60])
