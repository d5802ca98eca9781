"""Generators and random tensors: streams, states, distributions, recomputed masks, threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import scipy.stats

import tinygrad_cuda as tc
from tinygrad_cuda.graph.ops import philox
from tinygrad_cuda.tensors.random import draw_keep_mask


def test_seed_repeats_the_stream() -> None:
    """The same seed gives the same values, in the same order; another seed others."""

    def draw(seed: int) -> list[list[float]]:
        tc.manual_seed(seed)
        return [
            tc.rand(3, device="cpu").tolist(),
            tc.randn(2, 2, device="cpu").reshape(-1).tolist(),
            tc.randint(10, (4,), device="cpu").tolist(),
            tc.randperm(5, device="cpu").tolist(),
        ]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert tc.initial_seed() == 2


def test_values_are_those_of_the_definition() -> None:
    """Seed and node number decide: node k of a stream draws the k-th numbered block."""
    g = tc.Generator().manual_seed(99)
    first = tc.rand(5, generator=g, device="cpu").numpy()
    second = tc.randn(5, generator=g, device="cpu", dtype=tc.float64).numpy()
    third = tc.randint(-3, 12, (7,), generator=g, device="cpu").numpy()
    np.testing.assert_array_equal(first, philox.uniform(99, 0, (5,), np.float32))
    np.testing.assert_array_equal(second, philox.normal(99, 1, (5,), np.float64))
    np.testing.assert_array_equal(third, philox.randint(99, 2, (7,), -3, 12))


def test_order_of_looking_does_not_matter() -> None:
    """A value belongs to the call that recorded it, not to the moment it is computed."""
    tc.manual_seed(5)
    a, b = tc.rand(3, device="cpu"), tc.rand(3, device="cpu")
    later_first = b.tolist(), a.tolist()
    tc.manual_seed(5)
    assert (tc.rand(3, device="cpu").tolist(), tc.rand(3, device="cpu").tolist()) == later_first[
        ::-1
    ]


def test_state_goes_back() -> None:
    """get_state and set_state rewind a generator, in the middle of its stream too."""
    g = tc.Generator().manual_seed(3)
    tc.rand(2, generator=g, device="cpu")
    state = g.get_state()
    assert (state.dtype, tuple(state.shape)) == (tc.uint8, (16,))
    a = tc.rand(4, generator=g, device="cpu").tolist()
    g.manual_seed(0)
    g.set_state(state)
    assert g.initial_seed() == 3
    assert tc.rand(4, generator=g, device="cpu").tolist() == a
    outer = tc.get_rng_state()
    b = tc.rand(2, device="cpu").tolist()
    tc.set_rng_state(outer)
    assert tc.rand(2, device="cpu").tolist() == b


def test_state_of_another_kind_is_refused() -> None:
    """Only what get_state gave is a state."""
    with pytest.raises(tc.ArgumentError, match="not the state of a Generator"):
        tc.Generator().set_state(tc.zeros(16, device="cpu"))


def test_unpredictable_seed() -> None:
    """seed() begins a stream that its result can repeat."""
    g = tc.Generator()
    found = g.seed()
    a = tc.rand(3, generator=g, device="cpu").tolist()
    assert g.initial_seed() == found
    assert tc.rand(3, generator=g.manual_seed(found), device="cpu").tolist() == a


@pytest.mark.parametrize("dtype", [tc.float32, tc.float64, tc.float16, tc.bfloat16])
def test_distributions(dtype: tc.dtype) -> None:
    """Kolmogorov and Smirnov find nothing, in any floating dtype; ranges hold."""
    tc.manual_seed(11)
    uniform = tc.rand(5000, dtype=dtype, device="cpu")
    normal = tc.randn(5000, dtype=dtype, device="cpu")
    assert uniform.dtype is dtype
    assert normal.dtype is dtype
    u, n = uniform.double().numpy(), normal.double().numpy()
    assert 0 <= u.min() <= u.max() < 1
    assert scipy.stats.kstest(u, "uniform").pvalue > 1e-3
    assert scipy.stats.kstest(n, "norm").pvalue > 1e-3


def test_normal_with_parameters() -> None:
    """normal takes numbers with a size, or tensors that broadcast."""
    tc.manual_seed(2)
    x = tc.normal(3.0, 0.5, (4000,), device="cpu").numpy()
    assert abs(x.mean() - 3) < 0.03
    assert abs(x.std() - 0.5) < 0.02
    mean = tc.tensor([0.0, 100.0], device="cpu")
    y = tc.normal(mean, tc.full((500, 1), 2.0, device="cpu"))
    assert tuple(y.shape) == (500, 2)
    np.testing.assert_allclose(y.mean(0).tolist(), [0, 100], atol=0.4)
    with pytest.raises(tc.ArgumentError, match="std is negative"):
        tc.normal(0.0, -1.0, (2,), device="cpu")
    with pytest.raises(tc.ArgumentError, match="numbers need a size"):
        tc.normal(0.0, 1.0, device="cpu")


def test_bernoulli() -> None:
    """Chances 0 and 1 are certain, others come as often as they say."""
    tc.manual_seed(4)
    p = tc.tensor([0.0, 1.0, 0.25], device="cpu").expand(4000, 3)
    found = tc.bernoulli(p)
    assert found.dtype is tc.float32
    means = found.mean(0).tolist()
    assert means[:2] == [0, 1]
    assert abs(means[2] - 0.25) < 0.03
    filled = tc.zeros(4000, device="cpu", dtype=tc.int64).bernoulli_(0.75)
    assert abs(filled.double().mean().item() - 0.75) < 0.03


def test_randint_and_randperm() -> None:
    """Every value of the range comes; a permutation has each number once."""
    tc.manual_seed(6)
    x = tc.randint(-2, 3, (1000,), device="cpu", dtype=tc.int32)
    assert x.dtype is tc.int32
    assert set(x.tolist()) == {-2, -1, 0, 1, 2}
    assert sorted(tc.randperm(20, device="cpu").tolist()) == list(range(20))
    assert tc.randperm(0, device="cpu").tolist() == []
    with pytest.raises(tc.ArgumentError, match="the range is empty"):
        tc.randint(3, 3, (2,), device="cpu")


def test_like() -> None:
    """The *_like functions take shape, dtype and device."""
    x = tc.zeros(2, 3, dtype=tc.float64, device="cpu")
    for y in (tc.rand_like(x), tc.randn_like(x)):
        assert (tuple(y.shape), y.dtype, str(y.device)) == ((2, 3), tc.float64, "cpu")
    assert tc.randint_like(x, 5, dtype=tc.int64).dtype is tc.int64
    assert tc.rand_like(x, requires_grad=True).is_leaf


def test_in_place() -> None:
    """uniform_ and normal_ fill the tensor and everything that aliases it."""
    tc.manual_seed(8)
    x = tc.zeros(2000, device="cpu")
    x[:1000].uniform_(-2, 6)
    x[1000:].normal_(5, 0.1)
    array = x.numpy()
    assert -2 <= array[:1000].min() < array[:1000].max() < 6
    assert abs(array[:1000].mean() - 2) < 0.3
    assert abs(array[1000:].mean() - 5) < 0.02
    weight = tc.zeros(3, device="cpu", requires_grad=True)
    with pytest.raises(tc.GradientError, match="leaf that requires grad was written"):
        weight.uniform_()
    with tc.no_grad():
        weight.uniform_(1, 2)
    assert weight.is_leaf
    assert weight.min().item() >= 1


def test_mask_is_the_same_in_backward() -> None:
    """A dropout mask is drawn again from its number, even after the forward was looked at."""
    tc.manual_seed(9)
    x = tc.ones(200, device="cpu", requires_grad=True)
    kept = tc.where(_wrapped_mask(x), x * 2, 0.0)
    looked_at = kept.detach().tolist()
    kept.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == looked_at
    assert 0 < sum(looked_at) < 400


def _wrapped_mask(x: tc.Tensor) -> tc.Tensor:
    from tinygrad_cuda.tensors.base import wrap

    return wrap(draw_keep_mask(x.node, 0.5))


def test_integers_are_refused() -> None:
    """Random reals of an integer dtype are an error."""
    with pytest.raises(tc.DTypeError, match="random reals need a floating dtype"):
        tc.rand(3, dtype=tc.int64, device="cpu")
    with pytest.raises(tc.DTypeError, match="random reals need a floating dtype"):
        tc.zeros(3, dtype=tc.int64, device="cpu").normal_()


def test_threads_never_share_a_number() -> None:
    """Numbers are taken under a lock."""
    g = tc.Generator().manual_seed(1)
    taken: list[tuple[int, int]] = []

    def work() -> None:
        taken.extend([g.take() for _ in range(500)])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [(1, number) for number in range(4000)]
