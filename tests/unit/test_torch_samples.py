"""torch's own sample inputs, a few of each function: values, dtypes, shapes and gradients, float64.

Not looked at are what this package leaves out (complex, sparse, quantized) and torch's private
parts; nn.functional and masked tensors have other tests.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # torch's module of samples needs it
collection = pytest.importorskip("torch.testing._internal.common_methods_invocations")

pytestmark = pytest.mark.filterwarnings("ignore")

SAMPLES, LARGEST = 3, 300
VALUES, GRADIENTS = 1e-10, 1e-8

NOT_LOOKED_AT = (
    "nn.functional.", "masked.", "fft.", "signal.", "sparse.", "jiterator", "_", "torch.",
    "native_", "complex", "view_as_", "polar", "imag", "to_sparse", "cdouble", "cfloat", "chalf",
    "stft", "istft", "hash_tensor", "max_pool2d", "grid_sampler", "constant_pad_nd", "bmm.triton",
)  # fmt: skip
# Values are random or unspecified: dtypes and shapes alone.
RANDOM = (
    "cauchy", "exponential", "geometric", "log_normal", "normal", "uniform", "rand", "multinomial",
    "bernoulli", "empty", "new_empty", "svd_lowrank", "pca_lowrank",
)  # fmt: skip
# torch calls these through functions of its own, whose arguments are other ones.
ADAPTED: dict[str, Callable[..., Any]] = {
    "where": lambda x, condition, y: tc.where(condition, x, y),
    "einsum": lambda operands, equation: tc.einsum(equation, *operands),
    "item": lambda x: x.item(),
    "normal.in_place": lambda x, mean, std: x.normal_(mean, std),
    "T": lambda x: x.T,
    "H": lambda x: x.H,
    "mT": lambda x: x.mT,
    "mH": lambda x: x.mH,
    "linalg.lstsq.grad_oriented": lambda a, b, driver: tc.linalg.lstsq(a, b, driver=driver)[:2],
    "linalg.pinv.singular": lambda a, b: tc.linalg.pinv(a @ b.mT),
    "svd_lowrank": lambda a, b, q, M: tc.svd_lowrank(a @ b.mT, q=q, M=M),
    "pca_lowrank": lambda a, b, q, center: tc.pca_lowrank(a @ b.mT, q=q, center=center),
}
# Exactly these differ, each for a reason.
EXCEPTIONS: dict[str, str] = {
    "as_strided.partial_views": "the sample's memory is larger than the array handed over",
    "as_strided_scatter": "torch passes a gradient to what is overwritten",
    "corrcoef": "the gradient of a constant is 0 here and rounding noise in torch",
    "nextafter": "no gradient here; torch passes it on",
    "__rdiv__": "Python 2's division",
    "slice": "no public function of torch's",
    "zero_": "the sample writes to a leaf; torch's test gives it a clone",
    "linalg.eig": "complex results",
    "linalg.eigvals": "complex results",
    "special.airy_ai": "not here",
    "special.bessel_j0": "torch's is right to ten digits only; SciPy's decides",
    "special.bessel_j1": "torch's is right to ten digits only; SciPy's decides",
    "special.bessel_y0": "torch's is right to ten digits only; SciPy's decides",
    "special.bessel_y1": "torch's is right to ten digits only; SciPy's decides",
}


def full_name(op: Any) -> str:
    return op.name + ("." + op.variant_test_name if op.variant_test_name else "")


OPS = {
    full_name(op): op
    for op in collection.op_db
    if (not op.name.startswith(NOT_LOOKED_AT) or op.name.startswith("__r"))
    and torch.float64 in op.dtypes
}


def function_of(name: str, op: Any) -> Callable[..., Any]:
    """The function, or the method, of this name here."""
    if name in ADAPTED:
        return ADAPTED[name]
    if "." not in op.name and not hasattr(tc, op.name):
        for method in (op.name, f"{op.name}_"):
            if hasattr(tc.Tensor, method):
                return getattr(tc.Tensor, method)  # type: ignore[no-any-return]
    found: Any = tc
    for part in op.name.split("."):
        found = getattr(found, part)
    if isinstance(found, tc.dtype):  # tc.float is a dtype, Tensor.float a method
        found = getattr(tc.Tensor, op.name)
    return found  # type: ignore[no-any-return]


def handed_over(value: Any, pairs: list[tuple[Any, Any]]) -> Any:
    """torch's arguments as ours; `pairs` collects the tensors of both."""
    if isinstance(value, torch.Tensor):
        for theirs, ours in pairs:
            if theirs is value:
                return ours
        tensor = tc.tensor(value.detach().numpy(), device="cpu", requires_grad=value.requires_grad)
        pairs.append((value, tensor))
        return tensor
    if isinstance(value, torch.dtype):
        return getattr(tc, str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return "cpu"
    if isinstance(value, dict):
        extra = (torch.layout, torch.memory_format)
        return {k: handed_over(v, pairs) for k, v in value.items() if not isinstance(v, extra)}
    if isinstance(value, list | tuple):
        parts = [handed_over(part, pairs) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value


def flat(result: Any) -> list[Any]:
    if isinstance(result, list | tuple):
        return [tensor for part in result for tensor in flat(part)]
    return [result]


def close(found: Any, expected: Any, tolerance: float) -> None:
    a, b = np.asarray(found), np.asarray(expected)
    if b.dtype.kind != "f":
        np.testing.assert_array_equal(a, b)
        return
    finite = np.isfinite(b)
    np.testing.assert_array_equal(a[~finite], b[~finite])
    scale = np.max(np.abs(b[finite]), initial=0)
    np.testing.assert_allclose(a[finite], b[finite], rtol=tolerance, atol=tolerance * scale)


def alike(ours: list[Any], theirs: list[Any], values: bool) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert tuple(a.shape) == tuple(b.shape)
        assert a.dtype.name == str(b.dtype).removeprefix("torch.")
        if values:
            single = b.dtype in (torch.float32, torch.float16, torch.bfloat16)
            as_double = (x.detach().double() if single else x.detach() for x in (a, b))
            close(*(x.numpy() for x in as_double), 1e-5 if single else VALUES)


def weighted(library: Any, results: list[Any]) -> Any:
    """A fixed weighted sum of what can be differentiated; None if nothing can."""
    total: Any = None
    for number, result in enumerate(results):
        if isinstance(result, library.Tensor) and result.requires_grad:
            rng = np.random.default_rng([number, *result.shape])
            weights = np.asarray(rng.uniform(-1, 1, tuple(result.shape)))
            factor = tc.tensor(weights, device="cpu") if library is tc else torch.tensor(weights)
            part = (result.double() * factor).sum()
            total = part if total is None else total + part
    return total


def samples(op: Any) -> Iterator[Any]:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 (torch's samples draw from it)
    random.seed(0)
    gradual = op.supports_autograd and not op.name.startswith(RANDOM)
    # Not op.sample_inputs, which walks the stack of frames each time.
    found = op.sample_inputs_func(op, "cpu", torch.float64, gradual)
    small = (s for s in found if not isinstance(s.input, torch.Tensor) or s.input.numel() < LARGEST)
    return itertools.islice(small, SAMPLES)


def compare(name: str, op: Any) -> None:
    """Raises what differs."""
    function, drawn = function_of(name, op), op.name.startswith(RANDOM)
    for sample in samples(op):
        pairs: list[tuple[Any, Any]] = []
        args = handed_over((sample.input, *sample.args), pairs)
        options = handed_over(sample.kwargs, pairs)
        theirs = op.op(sample.input, *sample.args, **sample.kwargs)
        ours = function(*args, **options)
        if sample.output_process_fn_grad is not None:
            # What is unique of the result: of eigenvectors the magnitudes.
            theirs, ours = map(sample.output_process_fn_grad, (theirs, ours))
        expected, total = weighted(torch, flat(theirs)), None
        if expected is not None:
            total = weighted(tc, flat(ours))
            expected.backward()
            total.backward()  # before the first look: values and gradients are one plan
        alike(flat(ours), flat(theirs), not drawn)
        for b, a in pairs if expected is not None else ():
            if b.requires_grad:
                none = np.zeros(tuple(b.shape))
                wanted = none if b.grad is None else b.grad.numpy(force=True)
                close(none if a.grad is None else a.grad.numpy(), wanted, GRADIENTS)
                b.grad = None  # samples share tensors


@pytest.mark.parametrize("name", OPS)
def test_torchs_samples(name: str) -> None:
    if name not in EXCEPTIONS:
        compare(name, OPS[name])
        return
    with pytest.raises(Exception):  # noqa: B017 (whatever the difference is)
        compare(name, OPS[name])
