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
# What torch's method is called with; x and y are torch's there.
ARGUMENTS: dict[str, str] = {}


def namespace(library: Any) -> dict[str, Any]:
    """What the spellings refer to."""
    x, y = (library.tensor(array, device="cpu") for array in (VALUES, OTHER))
    return {
        "x": x, "y": y, "tc": tc, "math": math, "np": np, "dim": 0, "dtype": tc.float32,
        "data": [1.0, 2.0],
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
    found = eval(names.TENSOR[name], namespace(tc))
    expected = eval(f"x.{name}({ARGUMENTS.get(name, '')})", namespace(torch))
    np.testing.assert_allclose(plain(found), plain(expected), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", names.MODULE)
def test_spellings_of_functions_exist(name: str) -> None:
    torch = pytest.importorskip("torch")
    assert not hasattr(tc, name), "it is here by now: remove it from the table"
    assert hasattr(torch, name)
    known = namespace(tc) | {"dtype": tc.int32 if name == "iinfo" else tc.float32}
    assert eval(names.MODULE[name], known) is not None


@pytest.mark.parametrize("name", names.NUMPY)
def test_spellings_of_numpy_exist(name: str) -> None:
    assert hasattr(np, name) or hasattr(np.ndarray, name)
    assert not hasattr(tc.Tensor, name) or not hasattr(tc, name)
    assert eval(names.NUMPY[name], namespace(tc)) is not None


def text(owner: Any, name: str) -> str:
    with pytest.raises(AttributeError) as caught:
        getattr(owner, name)
    assert isinstance(caught.value, tc.TgcError)
    assert "at:     test_names.py" in str(caught.value)
    return str(caught.value)


def test_known_spellings_and_near_names() -> None:
    x = tc.ones(2, device="cpu")
    assert "hint:   torch's hardshrink is spelled tc.where(" in text(x, "hardshrink")
    assert "hint:   NumPy's astype is spelled x.to(dtype) here" in text(x, "astype")
    assert "hint:   torch's range is spelled tc.arange here" in text(tc, "range")
    assert "near to it: matmul" in text(tc, "matmull")
    assert "near to it: reshape" in text(x, "reshap")
    assert "x = x.softmax(...)" in text(x, "softmax_")
    assert "hint" not in text(x, "qqzzqq")


def test_what_is_left_out_on_purpose_says_so() -> None:
    x = tc.ones(2, device="cpu")
    assert "hint:   sparse tensors are out of scope" in text(x, "to_sparse")
    assert "hint:   quantized tensors are out of scope" in text(tc, "quantize_per_tensor")
    with pytest.raises(tc.DTypeError, match="cannot be seen as another dtype"):
        x.view(tc.int32)


def test_asking_politely_still_works() -> None:
    x = tc.ones(2, device="cpu")
    assert not hasattr(x, "hardshrink")
    assert getattr(x, "hardshrink", None) is None
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


NEAR = {
    "nn": ("Lineer", "Linear"),
    "nn.functional": ("cross_entropi", "cross_entropy"),
    "nn.init": ("xavier_unifrom_", "xavier_uniform_"),
    "nn.utils": ("clip_grad_nrom_", "clip_grad_norm_"),
    "optim": ("Adamm", "Adam"),
    "optim.lr_scheduler": ("StepLr", "StepLR"),
    "linalg": ("solv", "solve"),
    "data": ("Dataloader", "DataLoader"),
    "autograd": ("Functions", "Function"),
    "amp": ("GradScale", "GradScaler"),
    "func": ("vmapp", "vmap"),
    "cuda": ("is_availabel", "is_available"),
    "special": ("erfinf", "erfinv"),
    "distributions": ("Normel", "Normal"),
}


@pytest.mark.parametrize("part", NEAR)
def test_every_part_names_the_nearest(part: str) -> None:
    owner: Any = tc
    for step in part.split("."):
        owner = getattr(owner, step)
    name, near = NEAR[part]
    hint = text(owner, name).partition("hint:")[2]
    assert near in hint.replace(",", " ").split()
    assert f"[tinygrad_cuda.{part}] there is no {name!r}" in text(owner, name)
    assert not hasattr(owner, name)
    with pytest.raises(AttributeError, match="has no attribute '_private'"):
        _ = owner._private


def test_dtypes_and_constants_under_all_their_names() -> None:
    torch = pytest.importorskip("torch")
    for name in ("half", "float", "double", "short", "int", "long"):
        assert str(getattr(torch, name)).split(".")[1] == getattr(tc, name).name
    assert (tc.pi, tc.inf) == (torch.pi, torch.inf) and math.isnan(tc.nan)
    for name in ("float16", "bfloat16", "float32", "float64"):
        ours, theirs = tc.finfo(getattr(tc, name)), torch.finfo(getattr(torch, name))
        for what in ("bits", "eps", "max", "min", "tiny", "smallest_normal", "dtype"):
            assert getattr(ours, what) == getattr(theirs, what), (name, what)
    for name in ("uint8", "int8", "int16", "int32", "int64"):
        ours, theirs = tc.iinfo(getattr(tc, name)), torch.iinfo(getattr(torch, name))
        for what in ("bits", "max", "min", "dtype"):
            assert getattr(ours, what) == getattr(theirs, what), (name, what)
    with pytest.raises(tc.DTypeError, match="not a floating dtype"):
        tc.finfo(tc.int32)
    with pytest.raises(tc.DTypeError, match="not an integer dtype"):
        tc.iinfo(tc.float32)


def test_device_is_a_type() -> None:
    device = tc.device("cuda", 1)
    assert isinstance(device, tc.device) and (device.type, device.index) == ("cuda", 1)
    assert tc.device(device) is device is tc.device("cuda:1") is copy.deepcopy(device)
    assert pickle.loads(pickle.dumps(device)) is device
    with pytest.raises(tc.DeviceError):
        tc.device("tpu")
    assert tc.Size([2, 3]).numel() == 6
    assert tc.ones(2, 3, device="cpu").shape == tc.Size([2, 3])


def test_a_missing_name_costs_nothing_until_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """`hasattr` drops the error: near names, which take long to find, are not looked for."""
    asked: list[str] = []

    def counted(owner: str, name: str, known: list[str]) -> str:
        asked.append(name)
        return "the hint"

    monkeypatch.setattr(names, "_spelling", counted)
    for owner in (tc, nn, tc.ones(1)):
        assert not hasattr(owner, "onse")
        assert getattr(owner, "onse", None) is None
    assert asked == []
    with pytest.raises(tc.UnknownNameError, match=r"(?s)there is no 'onse'.*the hint") as caught:
        _ = tc.onse
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (str(copied), type(copied)) == (str(caught.value), tc.UnknownNameError)
    assert asked == ["onse"]
    with pytest.raises(tc.UnknownNameError) as caught:
        _ = tc.onse
    caught.value.name_module("Net.body")
    assert "Net.body" in str(caught.value) and "the hint" in str(caught.value.anew())


def test_errors_can_be_pickled() -> None:
    """Each is found where it says that it is."""
    kinds = [tc.TgcError]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if kind.__module__ == "tinygrad_cuda":
            assert getattr(tc, kind.__name__) is kind and kind.__name__ in tc.__all__
