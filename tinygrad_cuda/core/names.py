"""Names that are not here: how what is meant is spelled, or else the nearest name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from tinygrad_cuda.core.errors import UnknownNameError

# PyTorch's methods of Tensors that are spelled otherwise here; x is the Tensor, y another.
TENSOR = {
    "absolute_": "x.abs_()",
    "argwhere": "x.nonzero()",
    "clamp_max": "x.clamp(max=high)",
    "clamp_min": "x.clamp(min=low)",
    "deg2rad": "x * (math.pi / 180)",
    "dist": "(x - y).norm()",
    "erfc": "1 - x.erf()",
    "fliplr": "x.flip(1)",
    "flipud": "x.flip(0)",
    "frac": "x - x.trunc()",
    "ger": "x.outer(y)",
    "get_device": "x.device.index",
    "hypot": "(x * x + y * y).sqrt()",
    "is_cpu": "x.device.kind == 'cpu'",
    "is_nonzero": "bool(x)",
    "isneginf": "x == -math.inf",
    "isposinf": "x == math.inf",
    "itemsize": "x.element_size()",
    "logaddexp": "tc.stack((x, y)).logsumexp(0)",
    "nan_to_num": "tc.where(x.isnan(), 0.0, x)",
    "nansum": "tc.where(x.isnan(), 0.0, x).sum()",
    "nbytes": "x.numel() * x.element_size()",
    "ndimension": "x.dim()",
    "new_empty": "x.new_zeros(size)",
    "positive": "+x",
    "rad2deg": "x * (180 / math.pi)",
    "ravel": "x.flatten()",
    "sgn": "x.sign()",
    "split_with_sizes": "x.split(sizes)",
    "trace": "x.diagonal().sum()",
    "type": "x.dtype, or x.to(dtype)",
    "vdot": "x.dot(y)",
    "xlogy": "tc.where(x == 0, 0.0, x * y.log())",
}
# PyTorch's functions.
MODULE = {
    "absolute": "tc.abs",
    "arccos": "tc.acos",
    "arcsin": "tc.asin",
    "arctan": "tc.atan",
    "arctan2": "tc.atan2",
    "asarray": "tc.as_tensor",
    "divide": "tc.div",
    "double": "tc.float64",
    "finfo": "np.finfo(dtype.numpy)",
    "fix": "tc.trunc",
    "float": "tc.float32",
    "greater": "tc.gt",
    "greater_equal": "tc.ge",
    "half": "tc.float16",
    "iinfo": "np.iinfo(dtype.numpy)",
    "inf": "math.inf",
    "int": "tc.int32",
    "is_tensor": "isinstance(x, tc.Tensor)",
    "less": "tc.lt",
    "less_equal": "tc.le",
    "long": "tc.int64",
    "multiply": "tc.mul",
    "nan": "math.nan",
    "negative": "tc.neg",
    "not_equal": "tc.ne",
    "pi": "math.pi",
    "range": "tc.arange",
    "row_stack": "tc.vstack",
    "scalar_tensor": "tc.tensor",
    "set_anomaly_enabled": "tc.autograd.set_detect_nan",
    "short": "tc.int16",
    "subtract": "tc.sub",
    "true_divide": "tc.div",
    "FloatTensor": "tc.tensor(data, dtype=tc.float32)",
    "LongTensor": "tc.tensor(data, dtype=tc.int64)",
}
# NumPy's names for methods and functions.
NUMPY = {
    "array": "tc.tensor",
    "astype": "x.to(dtype)",
    "copy": "x.clone()",
    "expand_dims": "x.unsqueeze(dim)",
    "power": "x.pow(y)",
}


def unknown_name(owner: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that `owner` (a class or the package) does not have.

    Args:
        owner: as the user knows it: ``Tensor`` or ``tinygrad_cuda``.
        name: what was asked for.
        known: the names there are.
    """
    names = [other for other in known if not other.startswith("_")]
    return UnknownNameError(
        owner,
        f"there is no {name!r}",
        expect=f"one of {len(names)} names, see dir({owner})",
        actual=name,
        hint=_spelling(owner, name, names),
    )


def _spelling(owner: str, name: str, names: list[str]) -> str | None:
    own, other = (TENSOR, MODULE) if owner == "Tensor" else (MODULE, TENSOR)
    for table, whose in ((own, "torch"), (NUMPY, "NumPy"), (other, "torch")):
        if name in table:
            return f"{whose}'s {name} is spelled {table[name]} here"
    if name.endswith("_") and name.rstrip("_") in names:
        base = name.rstrip("_")
        return f"there is no form in place: x = x.{base}(...), or x.copy_(x.{base}(...))"
    near = get_close_matches(name, names, 3)
    return f"near to it: {', '.join(near)}" if near else None
