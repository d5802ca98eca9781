"""A name that is not here says how it is spelled, and what it says is true."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.core import names

VALUES = np.array([[0.5, -1.25, 2.0], [1.0, 0.25, -3.0]])
OTHER = np.array([[1.5, 0.75, 2.5], [1.0, 3.0, 0.5]])
VECTORS = ("ger", "vdot")
# What torch's method is called with; x and y are torch's there.
ARGUMENTS: dict[str, str] = {
    "clamp_max": "high", "clamp_min": "low", "dist": "y", "ger": "y", "hypot": "y",
    "logaddexp": "y", "new_empty": "size", "split_with_sizes": "sizes", "vdot": "y", "xlogy": "y",
}  # fmt: skip
PROPERTIES = ("is_cpu", "itemsize", "nbytes")
INCOMPARABLE = ("new_empty", "type", "get_device", "is_nonzero")


def namespace(library: Any, vectors: bool, single: bool = False) -> dict[str, Any]:
    """What the spellings refer to."""
    arrays = [VALUES[0], OTHER[0]] if vectors else [VALUES, OTHER]
    if single:
        arrays = [array.reshape(-1)[:1] for array in arrays]
    options = {"device": "cpu"}
    x, y = (library.tensor(array, **options) for array in arrays)
    return {
        "x": x, "y": y, "tc": tc, "math": math, "np": np, "low": -0.5, "high": 0.5, "size": (2, 3),
        "sizes": [1, 1], "dim": 0, "dtype": tc.float32, "data": [1.0, 2.0],
    }  # fmt: skip


def plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


@pytest.mark.parametrize("name", names.TENSOR)
def test_spellings_of_methods_do_what_torch_does(name: str) -> None:
    torch = pytest.importorskip("torch")
    assert not hasattr(tc.Tensor, name), "it is here by now: remove it from the table"
    assert hasattr(torch.Tensor, name)
    vectors, single = name in VECTORS, name == "is_nonzero"
    ours = namespace(tc, vectors, single)
    found = [eval(part, ours) for part in names.TENSOR[name].split(", or ")]
    if name in INCOMPARABLE:
        return
    theirs = namespace(torch, vectors)
    call = f"x.{name}" if name in PROPERTIES else f"x.{name}({ARGUMENTS.get(name, '')})"
    expected, (result,) = plain(eval(call, theirs)), plain(found)
    assert len(result) == len(expected) if isinstance(result, list) else True
    for a, b in zip(*(v if isinstance(v, list) else [v] for v in (result, expected))):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", names.MODULE)
def test_spellings_of_functions_exist(name: str) -> None:
    torch = pytest.importorskip("torch")
    assert not hasattr(tc, name), "it is here by now: remove it from the table"
    assert hasattr(torch, name)
    known = namespace(tc, False) | {"dtype": tc.int32 if name == "iinfo" else tc.float32}
    assert eval(names.MODULE[name], known) is not None


@pytest.mark.parametrize("name", names.NUMPY)
def test_spellings_of_numpy_exist(name: str) -> None:
    assert hasattr(np, name) or hasattr(np.ndarray, name)
    assert not hasattr(tc.Tensor, name) or not hasattr(tc, name)
    assert eval(names.NUMPY[name], namespace(tc, False)) is not None


def text(owner: Any, name: str) -> str:
    with pytest.raises(AttributeError) as caught:
        getattr(owner, name)
    assert isinstance(caught.value, tc.TgcError)
    assert "at:     test_names.py" in str(caught.value)
    return str(caught.value)


def test_known_spellings_and_near_names() -> None:
    x = tc.ones(2, device="cpu")
    assert "hint:   torch's ravel is spelled x.flatten() here" in text(x, "ravel")
    assert "hint:   NumPy's astype is spelled x.to(dtype) here" in text(x, "astype")
    assert "hint:   torch's arcsin is spelled tc.asin here" in text(tc, "arcsin")
    assert "near to it: matmul" in text(tc, "matmull")
    assert "near to it: reshape" in text(x, "reshap")
    assert "x = x.unsqueeze(...)" in text(x, "unsqueeze_")
    assert "hint" not in text(x, "qqzzqq")


def test_asking_politely_still_works() -> None:
    x = tc.ones(2, device="cpu")
    assert not hasattr(x, "ravel")
    assert getattr(x, "ravel", None) is None
    assert not hasattr(tc, "matmull")
    for owner in (x, tc):
        with pytest.raises(AttributeError):
            _ = owner._private
    assert pickle.loads(pickle.dumps(x)).tolist() == [1.0, 1.0]
    assert copy.deepcopy(x).tolist() == [1.0, 1.0]
    assert np.asarray(x).tolist() == [1.0, 1.0]


def test_an_error_inside_a_property_is_not_hidden() -> None:
    class Strange(tc.Tensor):
        @property
        def wrong(self) -> Any:
            return math.missing  # type: ignore[attr-defined]

    strange = object.__new__(Strange)
    with pytest.raises(AttributeError, match="module 'math' has no attribute 'missing'"):
        _ = strange.wrong


def test_modules_of_the_package_are_still_found() -> None:
    assert nn.Linear is tc.nn.Linear
