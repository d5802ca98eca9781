"""Arguments at the ends of their ranges, and ways through functions that few programs take."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import distributions, nn
from tinygrad_cuda.backend.emu.compiler import toolchain
from tinygrad_cuda.core.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from tinygrad_cuda.nn import functional as F

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("on_cpu")


def both(shape: tuple[int, ...], seed: int = 0) -> tuple[Any, Any]:
    """The same numbers as our Tensor and PyTorch's."""
    array = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return tc.tensor(array), torch.tensor(array)


def same(found: Any, expected: Any, rtol: float = 1e-5) -> None:
    assert tuple(found.shape) == tuple(expected.shape)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=rtol, atol=1e-6)


# Tensors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 2), (0, 3)])
def test_nonzero_static_fills_up_to_its_size(shape: tuple[int, ...]) -> None:
    x, y = both(shape)
    there = int((y > 0).sum())
    for size in {0, 1, max(there - 1, 0), there, there + 1, there + 5}:
        found = tc.nonzero_static(x > 0, size=size, fill_value=-7)
        expected = torch.nonzero_static(y > 0, size=size, fill_value=-7)
        assert tuple(found.shape) == tuple(expected.shape)
        assert found.tolist() == expected.tolist()


def test_a_geometry_over_a_view_of_a_view_begins_in_the_memory() -> None:
    """as_strided counts from the start of the memory, through slices, transposition and detach."""
    x, y = both((4, 6))
    for view in (
        lambda t: t[1:],
        lambda t: t[1:, 2:],
        lambda t: t.t()[2:],
        lambda t: t[1:][1:, 1:].detach(),
        lambda t: t.detach()[2:, 1:].t(),
    ):
        a, b = view(x), view(y)
        assert a.storage_offset() == b.storage_offset()
        same(a.as_strided((2, 2), (3, 1)), b.as_strided((2, 2), (3, 1)))
        same(a.as_strided((2, 3), (6, 2), 1), b.as_strided((2, 3), (6, 2), 1))


@pytest.mark.parametrize("dim", [(0, 1), (1, 2), (0, 2), (-1, 0), (2, 1)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_nuclear_norm_keeps_its_axes(dim: tuple[int, int], keepdim: bool) -> None:
    x, y = both((2, 3, 4))
    same(x.norm("nuc", dim, keepdim), y.norm("nuc", dim, keepdim))


@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss"])
def test_lstsq_gives_what_its_driver_finds(driver: str) -> None:
    (a, c), (b, d) = both((5, 3)), both((5, 2), 1)
    found, expected = (
        tc.linalg.lstsq(a, b, driver=driver), torch.linalg.lstsq(c, d, driver=driver)
    )  # fmt: skip
    for part in ("solution", "residuals", "rank", "singular_values"):
        same(getattr(found, part), getattr(expected, part), rtol=1e-4)


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64", "uint8"])
def test_the_ends_of_integers_are_constants_of_kernels(name: str) -> None:
    """C has no literal of the smallest number, nor one of a short type."""
    try:
        toolchain()
    except DeviceError as error:
        pytest.skip(str(error))
    dtype, info = getattr(tc, name), tc.iinfo(getattr(tc, name))
    found = []
    for device in ("cpu", "emu"):
        x = tc.tensor([info.min, 3, info.max], dtype=dtype, device=device)
        for end in (info.min, info.max):
            chosen = tc.where(x == 3, x, end)
            results = (chosen, x.clamp(min=end), x.clamp(max=end), x == end, x ^ end)
            found.append([device, *(result.tolist() for result in results)])
    assert [row[1:] for row in found[:2]] == [row[1:] for row in found[2:]]
    assert found[0][1] == [info.min, 3, info.min] and found[1][1] == [info.max, 3, info.max]


@pytest.mark.parametrize("key", [slice(0, 2), (slice(0, 2), 0), slice(None), ..., 0, (0, 0)])
def test_a_number_assigned_to_repeated_elements_is_refused_as_by_torch(key: Any) -> None:
    """`fill_` writes a number to elements that repeat; an assignment copies, and refuses."""
    x, y = tc.zeros(1, 3).expand(4, 3), torch.zeros(1, 3).expand(4, 3)
    try:
        y[key] = 1.0
    except RuntimeError:
        with pytest.raises(ShapeError, match="one element in memory"):
            x[key] = 1.0
    else:
        x[key] = 1.0
    assert x.tolist() == y.tolist()
    x[key].fill_(2.0)
    y[key].fill_(2.0)
    assert x.tolist() == y.tolist()


# Distributions ------------------------------------------------------------------------------------


def test_a_sample_of_laplace_is_finite_for_the_smallest_draw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """[0, 1) has 0, where the inverse of the distribution function is infinite."""
    from tinygrad_cuda.distributions import continuous

    monkeypatch.setattr(continuous, "uniform", lambda like, shape: tc.zeros(3))
    drawn = distributions.Laplace(tc.zeros(3), tc.ones(3)).rsample()
    assert (drawn < -10).all() and drawn.isfinite().all()


def test_the_ends_of_a_uniform_distribution() -> None:
    ours, theirs = distributions.Uniform(0.0, 2.0), torch.distributions.Uniform(0.0, 2.0)
    for value in (0.0, 1.0):
        same(ours.log_prob(tc.tensor(value)), theirs.log_prob(torch.tensor(value)))
    for value in (-0.1, 2.1):
        with pytest.raises(ArgumentError):
            ours.log_prob(tc.tensor(value))


# Layers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_channels_that_are_all_dropped(rank: int) -> None:
    x = tc.ones(2, 3, *[4] * rank)
    dropped = getattr(F, f"dropout{rank}d")
    assert not dropped(x, 1.0).any()
    assert set(dropped(x, 0.75).unique().tolist()) <= {0.0, 4.0}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("parameters", ["float32", "half"])
def test_half_batch_norm_has_the_bits_of_torch(dtype: str, parameters: str) -> None:
    """By running values: each step rounds to half, unless the parameters are float32."""
    pairs = [both((4, 3, 5)), *(both((3,), seed) for seed in range(3)), both((3,), 4)]
    kinds = [dtype, *[dtype if parameters == "half" else "float32"] * 4]
    ours = [x.to(getattr(tc, kind)) for (x, _), kind in zip(pairs, kinds)]
    theirs = [y.to(getattr(torch, kind)) for (_, y), kind in zip(pairs, kinds)]
    ours[2], theirs[2] = ours[2].abs() + 0.5, theirs[2].abs() + 0.5
    found, expected = F.batch_norm(*ours), torch.nn.functional.batch_norm(*theirs)
    assert str(found.dtype).endswith(dtype) and str(expected.dtype).endswith(dtype)
    assert found.float().tolist() == expected.float().tolist()


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_circular_padding(rank: int) -> None:
    x, y = both((2, 3, *[4] * rank))
    name, padding = f"CircularPad{rank}d", tuple(range(1, 2 * rank + 1))[:2] * rank
    for amount in (1, padding):
        same(getattr(nn, name)(amount)(x), getattr(torch.nn, name)(amount)(y))


def test_queries_keys_and_values_that_are_partly_the_same() -> None:
    """Only where all three are one Tensor they go through one product."""
    ours = nn.MultiheadAttention(4, 2, batch_first=True)
    theirs = torch.nn.MultiheadAttention(4, 2, batch_first=True)
    theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items()})
    (a, c), (b, d) = both((2, 3, 4)), both((2, 3, 4), 1)
    for x, y in (
        ((a, a, a), (c, c, c)), ((a, a, b), (c, c, d)), ((a, b, b), (c, d, d)),
        ((a, b, a), (c, d, c)),
    ):  # fmt: skip
        same(ours(*x)[0].detach(), theirs(*y)[0].detach())


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0, 2.1, 1.1])
def test_nearest_neighbours_by_a_factor_that_the_size_rounds(factor: float) -> None:
    x, y = both((1, 1, 4))
    for recompute in (None, False, True):
        for mode in ("nearest", "nearest-exact"):
            found = F.interpolate(
                x, scale_factor=factor, mode=mode, recompute_scale_factor=recompute
            )
            expected = torch.nn.functional.interpolate(
                y, scale_factor=factor, mode=mode, recompute_scale_factor=recompute
            )
            same(found, expected)


def test_functional_call_can_insist_on_all_names() -> None:
    net = nn.Linear(2, 1)
    x, given = tc.ones(1, 2), {"weight": tc.zeros(1, 2), "bias": tc.ones(1)}
    assert tc.func.functional_call(net, given, (x,), strict=True).tolist() == [[1.0]]
    with pytest.raises(ArgumentError, match="bias"):
        tc.func.functional_call(net, {"weight": given["weight"]}, (x,), strict=True)
    partly = tc.func.functional_call(net, {"weight": given["weight"]}, (x,))
    assert partly.tolist() == [net.bias.tolist()]


def test_a_picture_without_a_batch_draws_what_a_batch_of_one_draws() -> None:
    """Of fractional pooling: the samples, and what comes behind them from the generator."""
    x, _ = both((3, 9, 9))
    found = []
    for given in (x, x.unsqueeze(0)):
        tc.manual_seed(3)
        pooled = F.fractional_max_pool2d(given, 2, output_size=4)
        found.append((pooled.reshape(3, 4, 4).tolist(), tc.rand(4).tolist()))
    assert found[0] == found[1]


# Words to the user --------------------------------------------------------------------------------


def test_the_note_about_scripts_points_at_the_call() -> None:
    from tinygrad_cuda import jit

    jit._note.cache_clear()
    with pytest.warns(UserWarning, match="no TorchScript") as notes:
        jit.script(nn.ReLU())
    assert notes[0].filename == __file__
    jit._note.cache_clear()


@pytest.mark.parametrize("count", [1, 11, 12, 13, 20])
def test_a_long_account_of_the_compiler_says_how_much_is_left_out(count: int) -> None:
    from tinygrad_cuda.backend.cuda.compiler import _rejected

    log = "\n".join(f"complaint {k}" for k in range(count))
    text = str(_rejected("source", "sm_90", (), log))
    shown = sum(f"complaint {k}" in text.split() or f"complaint {k}\n" in text + "\n"
                for k in range(count))  # fmt: skip
    left = count - shown
    assert (f"... {left} more lines" in text) == (left > 0)
    assert shown == min(count, 12)


@pytest.mark.parametrize("count", [11, 12, 13])
def test_an_account_without_lines_is_cut(count: int) -> None:
    from tinygrad_cuda.backend.emu.compiler import _rejected

    lines = [f"complaint {k}." for k in range(count)]
    text = str(_rejected("source", "kernels", "\n".join(lines)))
    assert sum(line in text for line in lines) == min(count, 12)


# How often something is done ----------------------------------------------------------------------


def test_a_loop_stops_looking_for_a_program_that_it_does_not_find(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tinygrad_cuda.capture import multi_step

    tried = []

    def none(call: Any, state: Any, count: int) -> tuple[int, Any]:
        tried.append(count)
        return 0, None

    monkeypatch.setattr(multi_step, "_turned", none)
    assert tc.loop(50, lambda x: x + 1, tc.zeros(())).item() == 50
    assert len(tried) == multi_step.ATTEMPTS


def test_a_call_of_many_steps_stops_looking_for_a_program_of_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tinygrad_cuda.capture import multi_step

    tried = []

    def none(call: Any, *given: Any) -> bool:
        tried.append(given)
        return False

    monkeypatch.setattr(multi_step.Steps, "_chained", none)
    rows = tc.compile(lambda x: x + 1, steps=9)(tc.zeros(9, 2))
    assert rows.tolist() == [[1, 1]] * 9
    assert len(tried) == multi_step.ATTEMPTS


def test_the_first_pass_backward_has_the_plan_of_all_others() -> None:
    from tinygrad_cuda.engine.plan import cache as plans

    made = []
    w = tc.ones(3, 3, requires_grad=True)
    assert w.tolist() == [[1.0] * 3] * 3  # it is in memory from the first pass on
    for _ in range(4):
        w.grad = None
        (tc.tanh(w @ w) * 0.5).sum().backward()
        _ = w.grad.tolist()
        made.append(plans.made)
    assert made[1:] == made[:1] * 3


def test_a_batch_is_asked_for_while_the_one_before_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where copies overlap with work, one batch is under way, never more."""
    from tinygrad_cuda.backend import registry
    from tinygrad_cuda.data import prefetch

    taken: list[int] = []

    def batches() -> Any:
        for number in range(5):
            taken.append(number)
            yield np.full(2, number, np.float32)

    backend = registry.get(tc.tensor(0.0).device)
    monkeypatch.setattr(type(backend), "upload", lambda self, array: None, raising=False)

    class Coming:
        def __init__(self, array: Any, start: Any, device: Any) -> None:
            self.value = array.tolist()
            self.upload = self

        def wait_for_source(self) -> None:
            pass

    monkeypatch.setattr(prefetch, "_Coming", Coming)
    monkeypatch.setattr(prefetch, "_arrived", lambda batch: batch.value)
    ahead = []
    for number, batch in enumerate(prefetch.prefetched(batches())):
        assert batch == [number, number]
        ahead.append(len(taken) - number - 1)
    assert ahead == [1, 1, 1, 1, 0]


# Compiled functions -------------------------------------------------------------------------------


def test_a_permutation_that_is_written_to_is_drawn_anew_in_each_call() -> None:
    def drawn(x: Any) -> Any:
        places = tc.randperm(5)
        places.add_(1)
        return places + 0 * x, tc.randperm(5)

    found = []
    for call in (drawn, tc.compile(drawn)):
        tc.manual_seed(0)
        found.append([[t.tolist() for t in call(tc.zeros(5).long())] for _ in range(5)])
    assert found[0] == found[1]
    assert len({str(pair) for pair in found[1]}) == 5


def test_a_view_that_is_returned_is_the_callers_own() -> None:
    w = tc.ones(2, 3)
    view = w[0]
    alone, beside = tc.compile(lambda v: v), tc.compile(lambda v, x: (v, x + 1))
    written = tc.compile(lambda x, v: (x.mul_(2), v)[1])
    for turn in range(1, 5):
        assert alone(view) is view
        assert beside(view, w)[0] is view
        assert written(w, view) is view
        assert view.tolist() == [2.0**turn] * 3


# Shapes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["nll_loss", "cross_entropy", "multi_margin_loss", "multilabel_margin_loss"]
)
def test_labels_of_every_shape_are_taken_or_refused_as_by_torch(name: str) -> None:
    inputs = [(), (1,), (5,), (1, 5), (3, 5), (1, 1), (2, 5, 3)]
    labels = [(), (1,), (3,), (5,), (1, 1), (1, 5), (3, 1), (3, 5), (2, 3)]
    for shape, labelled, reduction in itertools.product(inputs, labels, ("none", "mean")):
        x, zeros = both(shape)[1], torch.zeros(labelled, dtype=torch.long)
        try:
            expected = getattr(torch.nn.functional, name)(x, zeros, reduction=reduction)
        except (RuntimeError, ValueError, IndexError):
            expected = None
        arguments = tc.tensor(x.numpy()), tc.tensor(zeros.numpy())
        if expected is None:
            with pytest.raises((ShapeError, DTypeError)):
                getattr(F, name)(*arguments, reduction=reduction)
        else:
            same(getattr(F, name)(*arguments, reduction=reduction), expected)
