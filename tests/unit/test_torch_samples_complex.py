"""torch's own sample inputs in complex128: the value and the gradient are torch's, or refused.

Of functions that torch itself refuses for complex numbers, float64 samples are made complex.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from torch_samples import collection, flat, full_name, handed_over, seed, torch

import tinygrad_cuda as tc

pytestmark = pytest.mark.filterwarnings("ignore")

NOT_LOOKED_AT = (
    "masked.", "signal.", "sparse.", "jiterator", "_", "torch.", "native_", "to_sparse", "chalf",
    "hash_tensor", "grid_sampler", "slice", "unravel_index", "max_pool2d_with", "special.airy",
    "constant_pad_nd", "bmm.triton", "nn.functional.alpha_dropout",
    "nn.functional.dropout", "nn.functional.feature_alpha",
)  # fmt: skip
# Values are random or unspecified.
RANDOM = (
    "cauchy", "exponential", "geometric", "log_normal", "normal", "uniform", "rand", "multinomial",
    "bernoulli", "empty", "new_empty", "svd_lowrank", "pca_lowrank", "nn.functional.rrelu",
)  # fmt: skip
ADAPTED: dict[str, Callable[..., Any]] = {
    "where": lambda x, condition, y: tc.where(condition, x, y),
    "einsum": lambda operands, equation: tc.einsum(equation, *operands),
    "item": lambda x: x.item(),
    "T": lambda x: x.T,
    "H": lambda x: x.H,
    "mT": lambda x: x.mT,
    "mH": lambda x: x.mH,
    "linalg.lstsq.grad_oriented": lambda a, b, driver: tc.linalg.lstsq(a, b, driver=driver)[:2],
    "linalg.pinv.singular": lambda a, b: tc.linalg.pinv(a @ b.mT),
}
# Exactly these differ, each for a reason.
EXCEPTIONS: dict[str, str] = {
    "linalg.eigh": "the phases of vectors are LAPACK's",
    "as_strided.partial_views": "the sample's memory is larger than the array handed over",
    "as_strided_scatter": "torch passes a gradient to what is overwritten",
    "linalg.eig": "torch refuses a loss that depends on the phases of vectors",
}
# What has to work, whatever else is refused.
_SUPPORTED = """
__radd__ __rmatmul__ __rmul__ __rpow__ __rsub__ abs acos acosh add addcdiv addcmul addmm all
allclose angle any as_strided asin asinh atan atanh baddbmm block_diag bmm cat cdouble cfloat
cholesky cholesky_inverse cholesky_solve chunk clone conj conj_physical corrcoef cos cosh
count_nonzero cov cumprod cumsum diag diagonal diff div.no_rounding_mode dot einsum eq equal exp
expand expm1 fft.fft fft.fft2 fft.fftn fft.fftshift fft.hfft fft.hfft2 fft.hfftn fft.ifft fft.ifft2
fft.ifftn fft.ifftshift fft.irfft fft.irfft2 fft.irfftn flip float_power gather geqrf gradient H
imag index_add index_copy index_fill index_put index_select inner isclose isfinite isinf isnan
isreal istft kron lerp linalg.cholesky linalg.cholesky_ex linalg.cross linalg.det linalg.diagonal
linalg.eigvalsh linalg.householder_product linalg.inv linalg.inv_ex linalg.ldl_factor
linalg.ldl_factor_ex linalg.ldl_solve linalg.lstsq linalg.lstsq.grad_oriented linalg.lu
linalg.lu_factor linalg.lu_factor_ex linalg.lu_solve linalg.matrix_power linalg.matrix_rank
linalg.multi_dot linalg.norm linalg.pinv linalg.pinv.hermitian linalg.qr linalg.slogdet linalg.solve
linalg.solve_triangular linalg.svd linalg.svdvals linalg.vander linalg.vecdot linalg.vector_norm log
log10 log1p log2 logdet logical_and logical_not lu lu_solve lu_unpack masked_fill masked_scatter
masked_select matmul matrix_exp mean mH mm movedim mul mv narrow ne neg nn.functional.l1_loss
nn.functional.linear nn.functional.normalize nn.functional.pad.constant nn.functional.pad.reflect
nn.functional.silu nn.functional.silu.complex nonzero ones_like ormqr outer permute pinverse pow
prod qr ravel real reciprocal repeat reshape resolve_conj roll rsqrt rsub scatter scatter_add select
sgn sigmoid sin sinc sinh split sqrt square squeeze stack std std.unbiased std_mean
std_mean.unbiased stft sub sum svd T take tan tanh tensordot tile to trace transpose trapezoid tril
triu true_divide unbind unfold unsqueeze var var.unbiased var_mean var_mean.unbiased vdot view
view_as_real where zeros_like
"""
SUPPORTED = frozenset(_SUPPORTED.split())
COUNT, LARGEST = 3, 1000
OPS = {
    full_name(op): op
    for op in collection.op_db
    if (not op.name.startswith((*NOT_LOOKED_AT, *RANDOM)) or op.name.startswith("__r"))
    and op.name != "__rdiv__"
}


def function_of(name: str, op: Any) -> Callable[..., Any]:
    """The function, or the method, of this name here."""
    if name in ADAPTED:
        return ADAPTED[name]
    if "." not in op.name and not hasattr(tc, op.name):
        return getattr(tc.Tensor, op.name, None) or getattr(tc.Tensor, f"{op.name}_")
    found: Any = tc
    for part in op.name.split("."):
        found = getattr(found, part)
    if isinstance(found, tc.dtype):
        found = getattr(tc.Tensor, op.name)
    return found  # type: ignore[no-any-return]


def resolved(value: Any) -> Any:
    """Without torch's lazy conjugates, which NumPy does not know."""
    if isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg()):
        plain = value.detach().resolve_conj().resolve_neg()
        return plain.requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):
        return type(value)(map(resolved, value))
    return value


def made_complex(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype is torch.float64:
        turned = value.detach() * (0.6 + 0.8j)
        return turned.requires_grad_(value.requires_grad)
    if isinstance(value, list | tuple):
        return type(value)(map(made_complex, value)) if type(value) in (list, tuple) else value
    if isinstance(value, dict):
        return {key: made_complex(part) for key, part in value.items()}
    return value


def arguments(op: Any, gradual: bool) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Small samples as arguments."""
    seed()
    native = torch.complex128 in op.dtypes
    dtype = torch.complex128 if native else torch.float64
    for sample in op.sample_inputs_func(op, "cpu", dtype, gradual):
        args = resolved((sample.input, *sample.args))
        if not isinstance(sample.input, torch.Tensor) or sample.input.numel() < LARGEST:
            yield (args, sample.kwargs) if native else (
                made_complex(args), made_complex(sample.kwargs)
            )  # fmt: skip


def close(found: Any, expected: Any, tolerance: float = 1e-9) -> None:
    a, b = np.asarray(found), np.asarray(expected)
    assert a.dtype == b.dtype and a.shape == b.shape, (a.dtype, b.dtype, a.shape, b.shape)
    scale = np.max(np.abs(b[np.isfinite(b)]), initial=0) if b.dtype.kind in "fc" else 0
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale + 1e-12)


def total(library: Any, results: list[Any]) -> Any:
    """A fixed real number of all results that have a gradient."""
    found: Any = None
    for number, result in enumerate(results):
        if isinstance(result, library.Tensor) and result.requires_grad:
            rng = np.random.default_rng([number, *result.shape])
            weights = [rng.uniform(-1, 1, tuple(result.shape)) for _ in (0, 1)]
            own = [library.tensor(w) if library is torch else tc.tensor(w, device="cpu")
                   for w in weights]  # fmt: skip
            parts = (result.real, result.imag) if result.is_complex() else (result,)
            part = sum((p.double() * w).sum() for p, w in zip(parts, own, strict=False))
            found = part if found is None else found + part
    return found


def compare(name: str, op: Any) -> str:
    """Raises what differs; says whether something was computed, or why not."""
    function, outcome = function_of(name, op), "no sample"
    gradual = op.supports_autograd and torch.complex128 in op.dtypes
    for args, options in itertools.islice(arguments(op, gradual), COUNT):
        pairs: list[tuple[Any, Any]] = []
        own_args, own_options = handed_over(args, pairs), handed_over(options, pairs)
        if not any(b.is_complex() for b, _ in pairs):
            continue
        try:
            ours = function(*own_args, **own_options)
            results = flat(ours)
            number = total(tc, results)
            if number is not None:
                number.backward()
            values = [r.detach().numpy() if isinstance(r, tc.Tensor) else r for r in results]
        except (tc.TgcError, TypeError, AttributeError) as error:
            outcome = f"refused: {str(error).splitlines()[0]}"
            continue
        try:
            theirs = flat(op.op(*args, **options))
        except (RuntimeError, ValueError, NotImplementedError) as error:
            raise AssertionError(f"torch refuses: {error}") from error
        assert len(values) == len(theirs)
        for a, b in zip(values, theirs, strict=True):
            if isinstance(b, torch.Tensor):
                half = b.dtype in (torch.bfloat16, torch.float16)
                b = b.detach().resolve_conj().resolve_neg()
                close(a.astype(np.float32) if half else a, (b.float() if half else b).numpy())
            else:
                assert a == b
        expected = total(torch, theirs)
        if expected is not None:
            expected.backward()
        for b, a in pairs if expected is not None else ():
            if b.requires_grad:
                none = np.zeros(b.shape)
                wanted = none if b.grad is None else b.grad.resolve_conj().numpy(force=True)
                found = none if a.grad is None else a.grad.numpy()
                close(found.astype(complex), wanted.astype(complex), 1e-7)
                b.grad = None  # samples share tensors
        outcome = "same"
    return outcome


@pytest.mark.parametrize("name", OPS)
def test_torchs_samples(name: str) -> None:
    if name not in EXCEPTIONS:
        outcome = compare(name, OPS[name])
        assert outcome == "same" or name not in SUPPORTED, outcome
        return
    with pytest.raises((AssertionError, RuntimeError)):
        compare(name, OPS[name])


def test_supported_functions_have_samples() -> None:
    assert set(OPS) >= SUPPORTED
