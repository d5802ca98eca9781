"""NaN, infinities, subnormal and equal numbers where PyTorch gives one definite answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.graph.ops import elementwise

torch = pytest.importorskip("torch")

Call = Callable[..., Any]  # (torch or tc, its nn.functional, Tensors) -> a Tensor
NAN, INF = float("nan"), float("inf")
TINY = 2.0**-149  # the least float32
VALUES = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.25, 3.0, -3.0, 100.0, TINY, -TINY]
FRACTIONS = [TINY, 1e-40, 1e-7, 0.01, 0.5, 0.9, 0.999999, 0.0, 1.0, -1e-40, 1.5, NAN]
RIGHT = [TINY, 1e-40, 0.1, 1.0, 30.0, 0.0, INF, -1.0, NAN]

# Values and gradients are those of torch, NaN included.
ONE: dict[str, tuple[Call, list[float]]] = {
    "abs": (lambda m, F, x: m.abs(x), VALUES),
    "sign": (lambda m, F, x: m.sign(x), VALUES),
    "frexp": (lambda m, F, x: m.frexp(x)[0], [NAN, 1.0, 3.0]),
    "norm_inf": (lambda m, F, x: x.norm(INF), [1.0, NAN, -3.0]),
    "renorm": (lambda m, F, x: m.renorm(x.reshape(2, 2), 2, 0, 1.0), [NAN, 1.0, 3.0, 4.0]),
    "quantile": (lambda m, F, x: m.quantile(x, 0.5), [1.0, NAN, 2.0, NAN]),
    "quantile_of_infinities": (lambda m, F, x: m.quantile(x, 0.5), [INF, INF, INF]),
    "lgamma": (lambda m, F, x: m.lgamma(x), [TINY, -TINY, 1.0, 2.5]),
    "i0": (lambda m, F, x: m.special.i0(x), [0.5, 80.0, 100.0, -100.0, NAN]),
    "i1": (lambda m, F, x: m.special.i1(x), [TINY, -TINY, 0.0, 1.0, NAN]),
    "i1e": (lambda m, F, x: m.special.i1e(x), [TINY, -TINY, 0.0, 1.0, NAN]),
    "entr": (lambda m, F, x: m.special.entr(x), RIGHT),
    "ndtri": (lambda m, F, x: m.special.ndtri(x), FRACTIONS),
}
TWO: dict[str, Call] = {
    "copysign": lambda m, F, x, y: m.copysign(x, y),
    "l1_loss": lambda m, F, x, y: F.l1_loss(x, y, reduction="none"),
    "nextafter": lambda m, F, x, y: m.nextafter(x, y),
    "hinge": lambda m, F, x, y: F.hinge_embedding_loss(x, -m.ones_like(x), reduction="none"),
    "cdist": lambda m, F, x, y: m.cdist(x.reshape(-1, 1), y.reshape(-1, 1)[:3], 0.0),
}


def values_and_gradients(module: Any, call: Call, arrays: list[Any], device: str) -> list[Any]:
    options = {} if module is torch else {"device": device}
    inputs = [module.tensor(a, dtype=module.float32, **options).requires_grad_() for a in arrays]
    result = call(module, module.nn.functional, *inputs)
    try:
        found = module.autograd.grad(result, inputs, module.ones_like(result), allow_unused=True)
    except NotImplementedError as error:  # of older versions of torch
        pytest.skip(f"torch {torch.__version__}: {error}")
    zeros = [np.zeros(np.shape(a), np.float32) for a in arrays]
    parts = [z if g is None else g.cpu().numpy() for g, z in zip(found, zeros)]
    return [result.detach().cpu().numpy(), *parts]


def compare(call: Call, arrays: list[Any], device: str = "cpu", atol: float = 1e-44) -> None:
    ours = values_and_gradients(tc, call, arrays, device)
    theirs = values_and_gradients(torch, call, arrays, device)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=atol)


@pytest.mark.parametrize("name", ONE)
def test_functions_of_one_tensor(name: str, on_cpu: None) -> None:
    compare(ONE[name][0], [ONE[name][1]])


@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_tensors(name: str, on_cpu: None) -> None:
    compare(TWO[name], [[a for a in VALUES for _ in VALUES], VALUES * len(VALUES)])


@pytest.mark.parametrize("name", ["abs", "i1e", "entr", "ndtri", "lgamma"])
def test_kernels_of_one_tensor(name: str, kernel_device: str) -> None:
    compare(ONE[name][0], [ONE[name][1]], kernel_device)


def test_clamp_between_tensors_gives_each_its_gradient(on_cpu: None) -> None:
    choices = [NAN, INF, -1.0, 0.0, 1.0, 2.0]
    grid = np.stack(np.meshgrid(choices, choices, choices)).reshape(3, -1)
    compare(lambda m, F, x, low, high: m.clamp(x, low, high), list(grid))


@pytest.mark.parametrize("call", [tc.igamma, tc.igammac, tc.special.zeta])
def test_arguments_that_do_not_matter_or_are_poles(call: Any, kernel_device: str) -> None:
    choices = [NAN, INF, 0.0, 1.0, 2.5, -1.0, -2.5, -3e38]
    a, b = np.stack(np.meshgrid(choices, choices)).reshape(2, -1).astype(np.float32)
    # torch has NaN for zeta(s, inf), which is 0.
    kept = ~np.isinf(b) | (call is not tc.special.zeta)
    a, b = a[kept], b[kept]
    theirs = getattr(torch.special, {"igamma": "gammainc", "igammac": "gammaincc"}.get(
        call.__name__, "zeta"))(torch.tensor(a), torch.tensor(b))  # fmt: skip
    ours = call(tc.tensor(a, device=kernel_device), tc.tensor(b, device=kernel_device))
    np.testing.assert_allclose(ours.cpu().numpy(), theirs.numpy(), rtol=1e-5)


def test_incomplete_gamma_of_tiny_and_huge_arguments(kernel_device: str) -> None:
    """Beside mpmath's; torch has 0 for the lower part of a subnormal a, NaN for a huge one."""
    arguments = [
        (5e-324, 0.5), (5e-324, 5e-324), (1e-310, 2.0), (1e-20, 1.05), (0.3, 0.2), (25.0, 40.0),
        (20.0, 3.0), (5000.0, 5100.0), (1e6, 1.002e6), (1e6, 0.99e6), (1.7e38, 1.7e38),
        (3.4e38, 1.7e38), (1.7e38, 3.4e38), (8e307, 1.0), (8e307, 8e307), (8e307, 9e307),
    ]  # fmt: skip
    lower = [
        1, 1, 1, 1, 0.6575067242697218, 0.9955173434344268, 8.3144235881917e-11,
        0.9206711189223811, 0.9771959041012301, 5.446644693010809e-24, 0.5, 0, 1, 0, 0.5,
        1,
    ]  # fmt: skip
    upper = [
        0, 3.676e-321, 4.890051070806e-312, 2.0187281322019657e-21, 0.34249327573027827,
        0.004482656565573204, 0.9999999999168557, 0.07932888107761897, 0.022804095898769864, 1,
        0.5, 1, 0, 1, 0.5, 0,
    ]  # fmt: skip
    a, x = (
        tc.tensor(part, dtype=tc.float64, device=kernel_device)
        for part in zip(*arguments, strict=True)
    )
    np.testing.assert_allclose(tc.igamma(a, x).cpu().numpy(), lower, rtol=1e-9)
    np.testing.assert_allclose(tc.igammac(a, x).cpu().numpy(), upper, rtol=1e-9, atol=1e-323)


def test_what_is_no_larger_than_the_least_normal_number(kernel_device: str) -> None:
    huge = tc.tensor([9e307, 1.7e308], dtype=tc.float64, device=kernel_device)
    np.testing.assert_allclose(tc.polygamma(1, huge).tolist(), [1 / 9e307, 1 / 1.7e308])
    tiny = tc.tensor([5e-324, 1e-310, 1e-300], dtype=tc.float64, device=kernel_device)
    k0, k1 = tc.special.modified_bessel_k0(tiny), tc.special.modified_bessel_k1(tiny)
    # log(2 / x) - 0.5772
    np.testing.assert_allclose(k0.tolist(), [744.556003437, 713.917310344, 690.891459415])
    np.testing.assert_allclose(k1.tolist(), [INF, INF, 1e300])


def test_frexp_of_powers_of_two_and_their_neighbours(kernel_device: str) -> None:
    """Whichever way a device rounds their logarithms."""
    powers = 2.0 ** np.arange(-1074, 1024)
    for values, dtype in (
        (np.concatenate([powers, -np.nextafter(powers, 0), np.nextafter(powers, INF)]), tc.float64),
        (powers[1074 - 133 : 1074 + 128], tc.bfloat16),
    ):
        mantissa, exponent = tc.frexp(tc.tensor(values, dtype=dtype, device=kernel_device))
        expected = np.frexp(values)
        np.testing.assert_array_equal(mantissa.double().cpu().numpy(), expected[0])
        np.testing.assert_array_equal(exponent.cpu().numpy(), expected[1])


@pytest.mark.parametrize("toward", [-INF, INF])
def test_frexp_does_not_trust_the_last_place_of_a_logarithm(
    toward: float, monkeypatch: pytest.MonkeyPatch, on_cpu: None
) -> None:
    monkeypatch.setattr(
        elementwise.log2, "numpy", lambda x, **options: np.nextafter(np.log2(x), toward)
    )
    values = 2.0 ** np.arange(-600, 601).reshape(1, 1, -1)  # a shape that no plan has seen
    cache.clear()
    mantissa, exponent = tc.frexp(tc.tensor(values, dtype=tc.float64))
    assert (mantissa == 0.5).all()
    np.testing.assert_array_equal(exponent.numpy(), np.frexp(values)[1])
    cache.clear()


def test_the_mean_of_a_row_with_an_infinity_is_infinite(kernel_device: str) -> None:
    """So that the gradient of its variance is infinite, and NaN at the infinity alone."""
    rows = np.random.default_rng(3).standard_normal((6, 40)).astype(np.float32)
    rows[0, 0] = rows[1, 39] = rows[2, 5] = rows[2, 9] = INF
    rows[3, 7] = -INF
    rows[4, 3], rows[4, 30] = INF, -INF
    compare(lambda m, F, x: m.var(x, 1), [rows], kernel_device, atol=1e-6)
    compare(lambda m, F, x: m.var(x, 0), [rows.T], kernel_device, atol=1e-6)
    # torch's var_mean has NaN where an infinity is not the last.
    mean = [INF, INF, INF, -INF, NAN, rows[5].mean()]
    x = tc.tensor(rows, device=kernel_device)
    for found in (tc.var_mean(x, 1)[1], tc.std_mean(x.T.contiguous(), 0)[1]):
        np.testing.assert_allclose(found.cpu().numpy(), mean, rtol=1e-5)


def test_whole_numbers_far_left_are_poles_too(kernel_device: str) -> None:
    x = tc.tensor([-1e30, -2000.0, -2000.5, -1.0], device=kernel_device)
    for order, expected in ((1, [INF, INF, NAN, INF]), (2, [-INF, -INF, NAN, -INF])):
        np.testing.assert_array_equal(tc.polygamma(order, x).cpu().numpy(), expected)


def test_the_norm_of_one_number_does_not_underflow(on_cpu: None) -> None:
    for order in (2, 3, 6):
        assert tc.linalg.vector_norm(tc.tensor([[-1e-30]]), order, -1).item() == np.float32(1e-30)


def test_a_polynomial_of_a_huge_degree_is_refused(on_cpu: None) -> None:
    with pytest.raises(tc.ArgumentError, match="too high"):
        tc.special.chebyshev_polynomial_t(tc.ones(2), 2**40)


def test_polynomials_of_degree_zero_do_not_depend_on_nan(on_cpu: None) -> None:
    x = tc.tensor([NAN, INF, 2.0])
    for name in ("chebyshev_polynomial_t", "hermite_polynomial_h", "laguerre_polynomial_l"):
        assert getattr(tc.special, name)(x, 0).tolist() == [1.0, 1.0, 1.0]
        assert getattr(tc.special, name)(x, -1).tolist() == [0.0, 0.0, 0.0]


# NaN in one row does not reach the others --------------------------------------------------------

RESIZED: dict[str, Call] = {
    mode: lambda m, F, x, mode=mode: F.interpolate(x, size=(5, 9), mode=mode)
    for mode in ("bilinear", "bicubic", "area")
} | {
    "antialias": lambda m, F, x: F.interpolate(x, size=(3, 4), mode="bilinear", antialias=True),
    "aligned": lambda m, F, x: F.interpolate(x, (5, 9), mode="bilinear", align_corners=True),
    "adaptive": lambda m, F, x: F.adaptive_avg_pool2d(x, (3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("special", [NAN, INF])
@pytest.mark.parametrize("name", RESIZED)
def test_resizing_reads_only_what_it_weighs(name: str, special: float, kernel_device: str) -> None:
    x = np.random.default_rng(0).normal(size=(1, 2, 4, 6)).astype(np.float32)
    x[0, 0, 1, 2] = special
    compare(RESIZED[name], [x], kernel_device, 1e-6)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2])
def test_bags_do_not_share_nan(mode: str, padding: int | None, kernel_device: str) -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    table[2, 1] = NAN
    rows, offsets = [0, 1, 3, 2, 1], [0, 2, 2, 3]

    def bags(m: Any, F: Any, weight: Any) -> Any:
        options = {"device": weight.device}
        index, begin = m.tensor(rows, **options), m.tensor(offsets, **options)
        return F.embedding_bag(index, weight, begin, mode=mode, padding_idx=padding)

    def matrix(m: Any, F: Any, weight: Any) -> Any:
        index = m.tensor([rows[:2], rows[3:]], device=weight.device)
        return F.embedding_bag(index, weight, mode=mode, padding_idx=padding)

    compare(bags, [table], kernel_device)
    compare(matrix, [table], kernel_device)


# Gradients of equals, of what is replaced, and of hinges -----------------------------------------


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_equal_elements_share_the_gradient_of_scatter_reduce(reduce: str, on_cpu: None) -> None:
    def scattered(m: Any, F: Any, x: Any, source: Any) -> Any:
        return x.scatter_reduce(0, m.tensor([0, 0, 1, 2, 2]), source, reduce)

    compare(scattered, [[1.0, INF, -INF, 5.0], [1.0, 1.0, INF, -INF, -INF]])


def test_each_value_of_max_unpool_has_the_gradient_of_its_place(on_cpu: None) -> None:
    def unpooled(m: Any, F: Any, x: Any) -> Any:
        return F.max_unpool1d(x, m.tensor([[[1, 1, 4]]]), 2) * m.arange(6.0)

    ours = values_and_gradients(tc, unpooled, [[[[1.0, 2.0, 3.0]]]], "cpu")[1]
    np.testing.assert_array_equal(ours, [[[1.0, 1.0, 4.0]]])


def test_hinges_pass_no_gradient_at_nan_and_one_at_the_edge(on_cpu: None) -> None:
    def triplets(m: Any, F: Any, a: Any, b: Any, c: Any) -> Any:
        return F.triplet_margin_loss(a, b, c, reduction="none")

    def cosines(m: Any, F: Any, a: Any, b: Any, c: Any) -> Any:
        return F.cosine_embedding_loss(a, b, m.tensor([-1, -1]), reduction="none") + 0 * c[:, 0]

    rows = [[NAN, 1.0], [1.0, 0.0]], [[1.0, 2.0], [0.0, 1.0]], [[3.0, 1.0], [2.0, 2.0]]
    compare(triplets, [*rows])
    compare(cosines, [[[1.0, 0.0], [2.0, 0.0]], [[0.0, 1.0], [1.0, 1.0]], rows[2]])
    compare(
        lambda m, F, a: F.multilabel_margin_loss(a, m.tensor([[0, -1, 1]])), [[[NAN, 1.0, 2.0]]]
    )


def test_losses_of_small_probabilities_keep_their_digits(on_cpu: None) -> None:
    """1 - x has none left of 1e-7 in float32."""
    inputs = [[1e-7, 3e-6, 0.001, 0.5, 0.999, 1.0], [0.0, 0.0, 0.25, 0.5, 1.0, 0.0]]
    compare(lambda m, F, x: F.binary_cross_entropy(x, m.tensor(inputs[1])), [inputs[0]])
    compare(
        lambda m, F, x: F.binary_cross_entropy(x, m.zeros_like(x), reduction="none"), inputs[:1]
    )


def test_the_slope_of_a_certain_and_right_probability_is_zero(kernel_device: str) -> None:
    """PyTorch's is (x - target) / max(x (1 - x), 1e-12), second order too."""
    x = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1e-13, 1e-13, 1e-40, 1e-12, 1e-7, 0.3]
    target = [0.0, 1.0, 0.5, 0.0, 1.0, 0.5, 0.0, 1.0, 0.0, 0.0, 1.0, 0.3]

    def losses(m: Any, F: Any, x: Any) -> Any:
        t = m.tensor(target, **({} if m is torch else {"device": kernel_device}))
        return F.binary_cross_entropy(x, t, reduction="none")

    compare(losses, [x], kernel_device)


def test_nan_is_no_violation_of_a_margin(on_cpu: None) -> None:
    for p in (1, 2):
        compare(
            lambda m, F, x, p=p: F.multi_margin_loss(x, m.tensor([4, 0]), p, reduction="none"),
            [[[NAN, NAN, 3.25, 4.5, -8.25], [NAN, 1.0, 2.0, NAN, INF]]],
        )


def test_lengths_below_the_bound_keep_their_slope(on_cpu: None) -> None:
    compare(lambda m, F, a, b: F.cosine_similarity(a, b), [[[1e-10, 2e-10]], [[3e-10, -1e-10]]])
    compare(
        lambda m, F, a, b: F.gaussian_nll_loss(a, a * 2, b, reduction="none"),
        [[1.0, 2.0, 3.0], [INF, 1e-9, 4.0]],
    )


# Factorizations end ------------------------------------------------------------------------------


@pytest.mark.parametrize("special", [NAN, INF])
@pytest.mark.parametrize("name", ["svdvals", "eigvalsh", "pinv", "cond"])
def test_a_factorization_of_infinities_is_refused(name: str, special: float, on_cpu: None) -> None:
    """LAPACK iterates for ever over some of them."""
    x = np.random.default_rng(1).normal(size=(3, 5, 5)).astype(np.float32)
    x[1, 2, 3] = special
    with pytest.raises(tc.ArgumentError, match="infinite or NaN"):
        getattr(tc.linalg, name)(tc.tensor(x))
