"""torch's own sample inputs, a few of each function: values, dtypes, shapes and gradients, float64.

Not looked at are what this package leaves out (complex, sparse, quantized) and torch's private
parts; nn.functional stands in tests/models, and masked tensors are not here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch_samples import both, collection, full_name, handed_over, samples, torch

import tinygrad_cuda as tc

pytestmark = pytest.mark.filterwarnings("ignore")

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


def compare(name: str, op: Any) -> None:
    """Raises what differs."""
    function, drawn = function_of(name, op), op.name.startswith(RANDOM)
    for sample in samples(op, op.supports_autograd and not drawn):
        pairs: list[tuple[Any, Any]] = []
        args = handed_over((sample.input, *sample.args), pairs)
        options = handed_over(sample.kwargs, pairs)
        theirs = op.op(sample.input, *sample.args, **sample.kwargs)
        ours = function(*args, **options)
        if sample.output_process_fn_grad is not None:
            # What is unique of the result: of eigenvectors the magnitudes.
            theirs, ours = map(sample.output_process_fn_grad, (theirs, ours))
        both(ours, theirs, pairs, values=not drawn)


@pytest.mark.parametrize("name", OPS)
def test_torchs_samples(name: str) -> None:
    if name not in EXCEPTIONS:
        compare(name, OPS[name])
        return
    with pytest.raises(Exception):  # noqa: B017 (whatever the difference is)
        compare(name, OPS[name])
