"""Complex numbers: their parts as views, promotion and printing as torch's, what is refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.core.config import settings

DEVICES = ("cpu", "emu")


def numbers(device: str = "cpu", **options: Any) -> tc.Tensor:
    return tc.tensor([1 + 2j, 3 - 1j, -0.5j], device=device, **options)


# Parts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_parts_are_views(device: str) -> None:
    z = numbers(device)
    z.real[0] = 9
    z.imag.mul_(2)
    assert z.tolist() == [9 + 4j, 3 - 2j, -1j]
    tc.view_as_real(z)[1, 1] = 7
    z.real[1:] = tc.zeros(2, device=device)
    assert z.tolist() == [9 + 4j, 7j, -1j]
    z.imag = tc.ones(3, device=device)
    assert z.tolist() == [9 + 1j, 1j, 1j]
    pairs = tc.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    tc.view_as_complex(pairs)[:1] *= 1j
    assert pairs.tolist() == [[-2.0, 1.0], [3.0, 4.0]]


def test_parts_have_torchs_strides() -> None:
    torch = pytest.importorskip("torch")
    array = np.arange(12, dtype=np.complex64).reshape(3, 4)
    for see in (
        lambda z, lib: z.real,
        lambda z, lib: z.T.imag,
        lambda z, lib: lib.view_as_real(z[:, ::2]),
        lambda z, lib: lib.view_as_complex(lib.view_as_real(z)).T,
    ):
        ours, theirs = see(tc.tensor(array, device="cpu"), tc), see(torch.tensor(array), torch)
        assert ours.stride() == theirs.stride() and tuple(ours.shape) == tuple(theirs.shape)
        assert ours.storage_offset() == theirs.storage_offset()
        assert ours.tolist() == theirs.tolist()


def test_numpy_sees_the_memory_of_a_part() -> None:
    z = numbers()
    z.imag.numpy()[0] = 5
    tc.view_as_real(z).numpy()[1] = (8, 9)
    assert z.tolist() == [1 + 5j, 8 + 9j, -0.5j]


def test_a_part_of_repeated_numbers_is_not_written() -> None:
    with pytest.raises(tc.ShapeError, match="repeated"):
        numbers()[:1].expand(3).real.add_(tc.arange(3.0, device="cpu"))


def test_copies_and_pickles() -> None:
    z = numbers()
    both = copy.deepcopy([z, z.imag])
    both[1][0] = 7
    assert both[0].tolist() == [1 + 7j, 3 - 1j, -0.5j] and z[0].item() == 1 + 2j
    assert pickle.loads(pickle.dumps(z)).tolist() == z.tolist()


def test_pairs_that_are_none() -> None:
    for x in (tc.ones(3, device="cpu"), tc.ones(2, 4, device="cpu").T, tc.ones((), device="cpu")):
        with pytest.raises(tc.ShapeError, match="no pairs"):
            tc.view_as_complex(x)
    with pytest.raises(tc.DTypeError, match="no complex number"):
        tc.view_as_complex(tc.ones(2, dtype=tc.float16, device="cpu"))


# Dtypes -------------------------------------------------------------------------------------------


def test_promotion_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    names = ("bool", "int32", "float32", "float64", "complex64", "complex128")
    for one in names:
        for other in names:
            for shape in ((2,), ()):
                a, b = (
                    lib.ones(2, dtype=getattr(lib, one))
                    * lib.ones(shape, dtype=getattr(lib, other))
                    for lib in (tc, torch)
                )
                assert a.dtype.name == str(b.dtype).removeprefix("torch."), (one, other, shape)
        for number in (1, 0.5, 2j):
            a, b = (lib.ones(2, dtype=getattr(lib, one)) * number for lib in (tc, torch))
            assert a.dtype.name == str(b.dtype).removeprefix("torch."), (one, number)
    assert tc.complex128.to_real() is tc.float64 and tc.float32.to_complex() is tc.complex64
    assert tc.finfo(tc.complex64).eps == tc.finfo(tc.float32).eps


@pytest.mark.parametrize(
    "values",
    [
        [1 + 2j, 3], [0.5 + 1e-3j, -2.25 - 1j], [1e5 + 1j, 1e-5 - 2j], [complex("nan+infj"), 1j],
        [[1j, -1.5], [2, -0.0j]], 3 - 4j, [1 + 1e-9j, 100],
    ],
)  # fmt: skip
def test_prints_as_torch(values: Any) -> None:
    torch = pytest.importorskip("torch")
    ours = tc.tensor(np.array(values, np.complex64), device="cpu")
    assert repr(ours) == repr(torch.tensor(np.array(values, np.complex64)))


def test_numbers_come_and_go(tmp_path: Path) -> None:
    z = numbers()
    assert complex(z[0]) == 1 + 2j and f"{z[0]:.1f}" == "1.0+2.0j" and (z == 3 - 1j)[1]
    assert tc.full((2,), 1j, device="cpu").dtype is tc.complex64
    assert tc.tensor([1, 2.5, 1j], dtype=tc.complex128, device="cpu").dtype is tc.complex128
    assert tc.from_numpy(np.array([1j])).dtype is tc.complex128
    tc.save({"z": z, "real": z.real}, tmp_path / "z")
    loaded = tc.load(tmp_path / "z")
    assert loaded["z"].tolist() == z.tolist() and loaded["real"].tolist() == z.real.tolist()
    with pytest.raises(tc.DataError, match="complex128"):
        tc.save(z.to(tc.complex128), tmp_path / "wide")
    drawn = tc.randn(20000, dtype=tc.complex64, device="cpu")
    assert abs(drawn.abs().square().mean().item() - 1) < 0.03
    assert abs((drawn.real * drawn.imag).mean().item()) < 0.02


@pytest.mark.parametrize("device", DEVICES)
def test_a_complex_number_that_varies_is_an_argument(device: str) -> None:
    z, found = numbers(device), []
    for k in range(4):
        found.append((z * complex(k, 0.5) + 1j * k).tolist())
    assert found == [[w * complex(k, 0.5) + 1j * k for w in z.tolist()] for k in range(4)]


# Gradients ----------------------------------------------------------------------------------------


def test_checked_gradients() -> None:
    tc.manual_seed(0)
    z, w = (tc.randn(2, 3, dtype=tc.complex128, device="cpu", requires_grad=True) for _ in (0, 1))
    check, again = tc.autograd.gradcheck, tc.autograd.gradgradcheck
    assert check(lambda z, w: (z * w.conj()).exp() + tc.fft.fft(z) / w, (z, w))
    assert again(lambda z, w: (z * w.conj()).sin() * tc.fft.ifft(z), (z, w))
    assert check(lambda z: tc.fft.irfft(z, 5), (z,)) and again(lambda z: z.abs().log(), (z,))
    with pytest.raises(tc.GradientError, match=r"(?i)gradient"):
        check(lambda z: z * z.detach(), (z,))


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
def test_functional_derivatives_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    z, v = np.array([1 + 2j, 3 - 1j]), np.array([0.5j, 1 + 1j])

    def each(lib: Any) -> list[Any]:
        a, b = (lib.tensor(x) for x in (z, v))
        function: Callable[[Any], Any] = lambda a: a * a.exp() + a.conj()  # noqa: E731
        slope = lib.func.grad(lambda a: (a.abs() ** 2).sum())(a)
        _, back = lib.func.vjp(function, a)
        return [slope, lib.func.jvp(function, (a,), (b,))[1], back(b)[0]]

    with tc.device("cpu"):
        ours = each(tc)
    for a, b in zip(ours, each(torch), strict=True):
        np.testing.assert_allclose(a.numpy(), b.resolve_conj().numpy(), rtol=1e-12)


class Doubled(tc.autograd.Function):
    """2 z, with a rule of its own."""

    @staticmethod
    def forward(ctx: Any, z: tc.Tensor) -> tc.Tensor:
        return z + z

    @staticmethod
    def backward(ctx: Any, g: tc.Tensor) -> tc.Tensor:
        return 2 * g


def test_gradients_pass_functions_and_checkpoints() -> None:
    z = numbers(requires_grad=True)

    def loss(z: tc.Tensor) -> tc.Tensor:
        return (z * z.exp()).abs().sum()

    expected = tc.autograd.grad(loss(2 * z), z)[0]
    for way in (
        lambda z: loss(Doubled.apply(z)),
        lambda z: tc.utils.checkpoint.checkpoint(lambda w: loss(2 * w), z, use_reentrant=False),
    ):
        assert tc.allclose(tc.autograd.grad(way(z), z)[0], expected)
    assert tc.where(z.real > 0, 1j, 0.0).tolist() == [1j, 1j, 0]


def test_what_has_no_derivative() -> None:
    z = numbers(requires_grad=True)
    with pytest.raises(tc.GradientError, match="complex output needs a seed"):
        (z * z).sum().backward()
    for derive in (tc.func.jacrev, tc.func.jacfwd):
        with pytest.raises(tc.DTypeError, match="complex"):
            derive(lambda z: z * z)(z.detach())
    with pytest.raises(tc.DTypeError, match="complex"):
        tc.autograd.functional.jacobian(lambda z: z * z, z.detach())
    with pytest.raises(tc.DTypeError, match="complex"):
        tc.func.grad(lambda z: z.sum())(z.detach())


# Matrices -----------------------------------------------------------------------------------------

FACTORS: dict[str, Callable[[Any], Any]] = {
    "inv": tc.linalg.inv, "det": tc.linalg.det, "slogdet": lambda a: tc.linalg.slogdet(a)[:],
    "solve": lambda a: tc.linalg.solve(a, a.mH), "pinv": lambda a: tc.linalg.pinv(a[:, :2]),
    "cholesky": lambda a: tc.linalg.cholesky(a @ a.mH + tc.eye(3, dtype=a.dtype)),
    "qr": lambda a: tc.linalg.qr(a[:, :2])[:], "wide qr": lambda a: tc.linalg.qr(a[:2])[:],
    "svdvals": tc.linalg.svdvals, "eigvalsh": lambda a: tc.linalg.eigvalsh(a + a.mH),
    "svd": lambda a: [p.abs() for p in tc.linalg.svd(a[:2], full_matrices=False)],
    "eigh": lambda a: tc.linalg.eigh(a + a.mH).eigenvectors.abs(),
    "norm": lambda a: tc.linalg.matrix_norm(a, "nuc"),
    "lstsq": lambda a: tc.linalg.lstsq(a[:, :2], a[:, 2:]).solution,
    "matrix_exp": lambda a: tc.linalg.matrix_exp(a), "logdet": lambda a: tc.logdet(a),
    "lu": lambda a: tc.linalg.lu(a)[1:], "lu, tall": lambda a: tc.linalg.lu(a[:, :2])[1:],
    "lu, wide": lambda a: tc.linalg.lu(a[:2])[1:],
    "lu_solve": lambda a: tc.linalg.lu_solve(*tc.linalg.lu_factor(a), a[:, :2]),
    "lu_solve, adjoint": lambda a: tc.linalg.lu_solve(
        *tc.linalg.lu_factor(a), a[:2], left=False, adjoint=True
    ),
    "cholesky_inverse": lambda a: tc.cholesky_inverse(tc.linalg.cholesky(a @ a.mH)),
    "cholesky_solve": lambda a: tc.cholesky_solve(a[:, :1], tc.linalg.cholesky(a @ a.mH)),
    "ormqr": lambda a: tc.ormqr(a[:, :2], a[0, :2], a, transpose=True),
    "corrcoef": lambda a: tc.corrcoef(a) / 2,
}  # fmt: skip


@pytest.mark.parametrize("name", FACTORS)
def test_factorizations_of_complex_matrices(name: str) -> None:
    """Gradients by differences; each factorization gives its matrix again."""
    rng = np.random.default_rng(0)
    array = rng.normal(size=(3, 3)) + 1j * rng.normal(size=(3, 3))
    a = tc.tensor(array, device="cpu", requires_grad=True)
    with tc.device("cpu"):
        assert tc.autograd.gradcheck(lambda a: FACTORS[name](a), (a,))


@pytest.mark.parametrize("device", DEVICES)
def test_factors_give_the_matrix_again(device: str) -> None:
    rng = np.random.default_rng(1)
    array = rng.normal(size=(2, 4, 3)) + 1j * rng.normal(size=(2, 4, 3))
    a = tc.tensor(array, dtype=tc.complex64, device=device)
    gram = a.mH @ a
    U, S, Vh = tc.linalg.svd(a, full_matrices=False)
    Q, R = tc.linalg.qr(a)
    old, low = tc.svd(a), tc.svd_lowrank(a)
    values, vectors = tc.linalg.eigh(gram)
    L = tc.linalg.cholesky(gram)
    sign, size = tc.linalg.slogdet(gram)
    assert S.dtype is values.dtype is size.dtype is tc.float32
    for found, expected in (
        (U * S.unsqueeze(-2) @ Vh, a), (Q @ R, a),
        *((f.U * f.S.unsqueeze(-2) @ f.V.mH, a) for f in (old, low)),
        (vectors * values.unsqueeze(-2) @ vectors.mH, gram),
        (L @ L.mH, gram), (sign * size.exp(), tc.linalg.det(gram)),
        (tc.linalg.inv(gram) @ gram @ a.mH, a.mH), (a @ tc.linalg.pinv(a) @ a, a),
    ):  # fmt: skip
        assert tc.allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["matrix_exp", "lu", "lu, tall", "lu_solve, adjoint"])
def test_second_gradients_of_factors(name: str) -> None:
    rng = np.random.default_rng(2)
    array = rng.normal(size=(3, 3)) + 1j * rng.normal(size=(3, 3))
    a = tc.tensor(array, device="cpu", requires_grad=True)
    with tc.device("cpu"):
        assert tc.autograd.gradgradcheck(lambda a: FACTORS[name](a), (a,))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [tc.complex64, tc.complex128])
def test_solutions_by_lapacks_factors(device: str, dtype: Any) -> None:
    """Of batches; symmetric and Hermitian matrices have other factors."""
    rng = np.random.default_rng(3)
    array = rng.normal(size=(2, 4, 4)) + 1j * rng.normal(size=(2, 4, 4))
    a = tc.tensor(array, dtype=dtype, device=device)
    right = a[..., :3] * 1j
    P, L, U = tc.linalg.lu(a)
    LU, pivots = tc.linalg.lu_factor(a)
    Q = tc.linalg.householder_product(*tc.geqrf(a[..., :2]))
    checked = [(P @ L @ U, a), (a @ tc.linalg.lu_solve(LU, pivots, right), right)]
    checked.append((Q.mH @ Q, tc.eye(2, dtype=dtype, device=device).expand(2, 2, 2)))
    for matrix, hermitian in ((a + a.mT, False), (a + a.mH, True)):
        factors = tc.linalg.ldl_factor(matrix, hermitian=hermitian)
        solution = tc.linalg.ldl_solve(*factors, right, hermitian=hermitian)
        checked.append((matrix @ solution, right))
    for found, expected in checked:
        assert found.dtype is dtype
        assert tc.allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_the_begun_factor_of_an_indefinite_matrix() -> None:
    """The columns before the minor that has no factor, as LAPACK leaves them."""
    a = tc.tensor([[4.0, 2j, 1 + 1j], [-2j, 5.0, 2.0], [1 - 1j, 2.0, -9.0]], device="cpu")
    L, info = tc.linalg.cholesky_ex(a)
    assert info.item() == 3
    assert tc.allclose((L @ L.mH)[:, :2], a[:, :2])


# Special values -----------------------------------------------------------------------------------

EDGES = (0.0, -0.0, 0.5, 1.0, -1.0000001, -2.0, 1e-30, 1e30, np.inf, -np.inf, np.nan)
FUNCTIONS = (
    "exp expm1 log log1p log2 log10 sqrt rsqrt reciprocal sin cos tan sinh cosh tanh asin acos "
    "atan asinh acosh atanh sigmoid"
)


@pytest.mark.parametrize("name", FUNCTIONS.split())
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_kernels_have_numpys_special_values(name: str, dtype: Any) -> None:
    """Infinities, NaN, zeros of both signs, and both sides of cuts.

    C leaves the sign of an infinity beside NaN free.
    """
    z = np.empty((len(EDGES), len(EDGES)), dtype)
    z.real, z.imag = np.reshape(EDGES, (-1, 1)), EDGES
    want, found = (
        tc.view_as_real(getattr(tc, name)(tc.tensor(z, device=device))).numpy()
        for device in DEVICES
    )
    for parts in (found, want):
        free = np.isinf(parts) & np.isnan(parts[..., ::-1])
        parts[free] = np.inf
    np.testing.assert_allclose(found, want, rtol=3e-6 if dtype is np.complex64 else 1e-13)
    signs = np.signbit(found) == np.signbit(want)
    assert (signs | np.isnan(want)).all(), z[~(signs | np.isnan(want)).all(-1)]


def test_small_numbers_are_not_lost() -> None:
    z = tc.tensor([1e-20 + 1e-20j, 1e-9 - 1e-5j], dtype=tc.complex128, device="cpu")
    assert z.log1p().tolist()[0] == z.expm1().tolist()[0] == 1e-20 + 1e-20j
    assert tc.allclose(z.log1p().expm1(), z, rtol=1e-15, atol=0)


def test_sigmoids_do_not_overflow() -> None:
    """Where exp(-z) is infinite, and where it is nothing."""
    for device in DEVICES:
        z = tc.tensor([-800 + 1j, 800 - 2j, -90 + 3j, 1j], dtype=tc.complex128, device=device)
        found = z.sigmoid()
        assert found[:2].tolist() == [0, 1]
        assert tc.allclose(found[2:], (z.exp() / (1 + z.exp()))[2:], rtol=1e-14, atol=0)


# Refusals -----------------------------------------------------------------------------------------

twice = tc.kernel("y = 2 * x")(lambda x: None)
REFUSED: tuple[Callable[[Any], Any], ...] = (
    lambda z: z < z, lambda z: z.max(), lambda z: z.argmin(0), lambda z: z.sort(),
    lambda z: z.floor(), lambda z: z.sign(), lambda z: z.clamp(0, 1), lambda z: z % 2,
    lambda z: z // 2, lambda z: tc.maximum(z, z), lambda z: z.erf(), lambda z: z.relu(),
    lambda z: z.unique(), lambda z: z.quantile(0.5), lambda z: z.median(), lambda z: float(z[0]),
    lambda z: z.cummax(0), lambda z: tc.arange(3, dtype=tc.complex64),
    lambda z: tc.linspace(0, 1j, 3), lambda z: tc.complex(z.real, z.imag.double()),
    lambda z: tc.full((2,), 1j, dtype=tc.float32), lambda z: tc.ones(2).fill_(1j),
    lambda z: tc.ones(3).add_(z), lambda z: tc.tensor([1j], dtype=tc.float32),
    lambda z: tc.nn.functional.mse_loss(z, z), lambda z: tc.nn.functional.softmax(z, 0),
    lambda z: tc.nn.functional.conv1d(z[None, None], z[None, None]),
    lambda z: tc.nn.functional.scaled_dot_product_attention(*[z[None]] * 3),
    lambda z: tc.nn.functional.layer_norm(z, (len(z),)), lambda z: tc.nn.functional.glu(z[:2]),
    lambda z: tc.nn.functional.group_norm(z[None], 1), lambda z: tc.nn.functional.softplus(z),
    lambda z: tc.optim.SGD([z.clone().requires_grad_()]), lambda z: tc.nn.Linear(2, 2).to(z.dtype),
    lambda z: tc.fft.rfft(z), lambda z: tc.fft.fft(z.real.half()), lambda z: tc.fft.fft(z[0]),
    lambda z: tc.fft.fft(z, norm="other"), lambda z: tc.fft.irfft(z[:1]),
    lambda z: tc.fft.fftn(z, dim=(0, 0)), lambda z: tc.fft.fft(z, 0), lambda z: twice(z),
    lambda z: tc.stft(z.real, 2), lambda z: tc.stft(z, 2, onesided=True, return_complex=True),
    lambda z: tc.istft(z.real[None], 2), lambda z: z.view(tc.float32),
)  # fmt: skip


@pytest.mark.parametrize("use", REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused(use: Callable[[Any], Any]) -> None:
    with tc.device("cpu"), pytest.raises(tc.TgcError):
        use(numbers())


def test_export_refuses_complex_results(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    with pytest.raises(tc.DTypeError, match="complex numbers are not exported"):
        tc.onnx.export(lambda x: tc.fft.fft(x).abs(), (tc.ones(4, device="cpu"),), tmp_path / "x")


# Looking inside -----------------------------------------------------------------------------------


def test_a_part_that_is_not_finite_is_found() -> None:
    with tc.detect_nan(), pytest.raises(tc.NonFiniteError, match="div"):
        (1 / tc.tensor([1j, 0j], device="cpu")).numpy()


def test_kernels_of_complex_numbers_are_validated() -> None:
    z = numbers("emu")
    with settings.override(validate=True):
        result = (tc.outer(z, z.exp()) @ z + tc.fft.fft(z)).cpu()
    plain = z.cpu()
    expected = tc.outer(plain, plain.exp()) @ plain + tc.fft.fft(plain)
    assert tc.allclose(result, expected, rtol=1e-5)


def test_a_compiled_function_of_complex_numbers() -> None:
    @tc.compile
    def filtered(x: tc.Tensor, factor: complex) -> tc.Tensor:
        return tc.fft.ifft(tc.fft.fft(x) * factor).abs()

    for factor in (1j, 2j, 1 + 1j):
        x = tc.randn(4, 6, dtype=tc.complex64, device="cpu")
        assert tc.allclose(filtered(x, factor), x.abs() * abs(factor), rtol=1e-4)
