"""`save` and `load`: every kind of value, sharing, foreign files, and a resumed training run."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import math
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim

pytestmark = pytest.mark.usefixtures("on_cpu")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.safetensors"


def again(value: Any, path: Path) -> Any:
    tc.save(value, path)
    return tc.load(path)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 2**70, -0.1, "text \u00e9\n", [], {}, (), [1, (2, [None])],
        {"a": {"b": (1, 2.5)}, 3: "three", None: 0, (1, "x"): [False], 1.5: {}},
        {"dict": [[1, 2]], "tensor": "x", "tuple": ()},
        5e-324, 1.7976931348623157e308,
    ],
)  # fmt: skip
def test_plain_values_come_back(value: Any, path: Path) -> None:
    found = again(value, path)
    assert found == value
    assert type(found) is type(value)


def test_kinds_are_kept_apart(path: Path) -> None:
    """1, 1.0 and True are equal, a list is no tuple, and special floats are numbers too."""
    found = again([1, 1.0, True, (1,), [1], math.inf, math.nan, np.float32(0.5), np.int8(3)], path)
    kinds = [int, float, bool, tuple, list, float, float, np.float32, np.int8]
    assert [type(x) for x in found] == kinds
    assert found[5] == math.inf
    assert math.isnan(found[6])


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32",
              "int64", "bool"],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (1, 1, 5)])
def test_tensors_come_back(dtype: str, shape: tuple[int, ...], path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 100, shape)
    tensor = tc.tensor(values).to(getattr(tc, dtype))
    found = again({"x": [tensor]}, path)["x"][0]
    assert found.dtype is tensor.dtype
    assert found.shape == shape
    assert found.device == tensor.device
    assert found.tolist() == tensor.tolist()


def test_views_pending_values_and_flags(path: Path) -> None:
    base = tc.arange(12).reshape(3, 4)
    leaf = tc.ones(2, requires_grad=True)
    module = nn.Linear(2, 2)
    found = again([base.T, base[1:, ::2], leaf * 2 + 1, leaf, module.weight], path)
    assert [found[0].tolist(), found[1].tolist()] == [base.T.tolist(), base[1:, ::2].tolist()]
    assert found[2].tolist() == [3.0, 3.0]
    assert found[3].requires_grad
    assert found[3].is_leaf
    assert isinstance(found[4], nn.Parameter)
    assert found[4].requires_grad
    assert not isinstance(found[3], nn.Parameter)


def test_shared_cells_are_stored_once_and_shared_again(path: Path) -> None:
    """Tied weights: one copy in the file, and a write through one shows in the other."""
    weight = nn.Parameter(tc.ones(1000))
    tc.save(
        {"in": weight, "out": weight.detach(), "part": weight[:2], "copy": weight.clone()}, path
    )
    assert path.stat().st_size < 2 * 4000 + 1500
    found = tc.load(path)
    with tc.no_grad():
        found["in"].mul_(3)
    assert found["out"][5].item() == 3
    assert found["copy"][5].item() == 1
    assert found["part"].tolist() == [1, 1]


def test_strides_come_back(path: Path) -> None:
    """Channels-last images and transposed matrices; a slice with gaps is stored without them."""
    image = tc.rand(2, 3, 4, 5).contiguous(memory_format=tc.channels_last)
    weight = nn.Parameter(tc.rand(2, 3, 1, 5, 4).contiguous(memory_format=tc.channels_last_3d))
    matrix, gaps = tc.arange(6).reshape(2, 3).t(), tc.arange(6)[::2]
    found = again([image, weight, matrix, gaps, image], path)
    assert [x.stride() for x in found[:3]] == [(60, 1, 15, 3), (60, 1, 60, 12, 3), (1, 3)]
    assert found[0].is_contiguous(memory_format=tc.channels_last)
    assert isinstance(found[1], nn.Parameter) and found[3].stride() == (1,)
    for one, other in zip(found, (image, weight, matrix, gaps)):
        assert one.tolist() == other.tolist()
    found[0].zero_()
    assert found[4].sum().item() == 0


def test_names_that_meet(path: Path) -> None:
    value = {"a.b": tc.zeros(1), "a": {"b": tc.ones(1)}, "__metadata__": tc.full((1,), 2.0)}
    found = again(value, path)
    assert [found["a.b"].item(), found["a"]["b"].item(), found["__metadata__"].item()] == [0, 1, 2]


def test_state_dict_is_read_by_others_by_name(path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    tc.save(model.state_dict(), path)
    with safe_open(path, framework="np") as file:
        assert set(file.keys()) == set(model.state_dict())
        np.testing.assert_array_equal(file.get_tensor("0.weight"), model[0].weight.detach().numpy())


def test_files_of_others_are_dicts_of_tensors(path: Path) -> None:
    arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(4)}
    save_file(arrays, path, metadata={"format": "pt"})
    found = tc.load(path)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        "w": [[0, 1, 2], [3, 4, 5]], "n": 4,
    }  # fmt: skip
    assert tc.load(path, map_location="cpu")["w"].device == tc.device("cpu")


def test_torch_checkpoint_loads_into_a_module(path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as torch_save

    theirs = torch.nn.Linear(3, 2).to(torch.bfloat16)
    torch_save(theirs.state_dict(), path)
    ours = nn.Linear(3, 2)
    ours.load_state_dict(tc.load(path))
    assert ours.weight.tolist() == theirs.weight.float().tolist()


@pytest.mark.parametrize(
    "value",
    [object(), {"a": [np.zeros(3, complex)]}, b"bytes", 1j, {("a", b"x"): 1}, lambda x: x],
)
def test_other_kinds_are_refused_before_anything_is_written(value: Any, path: Path) -> None:
    tc.save("old", path)
    with pytest.raises(tc.ArgumentError, match="cannot be stored"):
        tc.save(value, path)
    assert tc.load(path) == "old"
    assert os.listdir(path.parent) == [path.name]


def test_container_inside_itself_is_refused(path: Path) -> None:
    value: list[Any] = [1]
    value.append({"x": value})
    with pytest.raises(tc.ArgumentError, match=r"1\.x cannot be stored(.|\n)*inside itself"):
        tc.save(value, path)
    twice = [1]
    assert again([twice, twice], path) == [[1], [1]]


def test_foreign_and_damaged_files(path: Path) -> None:
    """Cut anywhere, or of another kind: a DataError that names the file, and no crash."""
    with pytest.raises(tc.DataError, match="cannot be read"):
        tc.load(path.parent)
    with pytest.raises(FileNotFoundError, match="cannot be read"):
        tc.load(path)
    tc.save({"x": tc.arange(50), "y": [1, 2, 3]}, path)
    whole = path.read_bytes()
    for length in (0, 1, 7, 8, 20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(tc.DataError, match="no whole safetensors file"):
            tc.load(path)
    path.write_bytes(b"\x80\x04\x95" + bytes(100))
    with pytest.raises(tc.DataError, match=r"a pickle(.|\n)*torch.save"):
        tc.load(path)
    for metadata, text in (
        ({"tinygrad_cuda": "{"}, "damaged"),
        ({"tinygrad_cuda": json.dumps({"version": 1})}, "damaged"),
        (
            {"tinygrad_cuda": json.dumps({"version": 1, "structure": {"tensor": "z"}})},
            "damaged",
        ),
        ({"tinygrad_cuda": json.dumps({"version": 99})}, "another version"),
    ):
        save_file({"x": np.zeros(1)}, path, metadata=metadata)
        with pytest.raises(tc.DataError, match=text):
            tc.load(path)
    header = b'{"x":{"dtype":"F8_E5M2","shape":[1],"data_offsets":[0,1]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    with pytest.raises(tc.DataError, match="dtype that is unknown"):
        tc.load(path)


def test_a_write_that_fails_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tc.save([1], path)

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        tc.save([2], path)
    assert tc.load(path) == [1]
    assert os.listdir(path.parent) == [path.name]


class Run:
    """A small training run with everything that has state."""

    def __init__(self) -> None:
        self.model = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1)
        )
        self.optimizer = optim.AdamW(self.model.parameters(), lr=0.01, amsgrad=True)
        warmup = optim.lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=3)
        cosine = optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        self.schedule = optim.lr_scheduler.SequentialLR(self.optimizer, [warmup, cosine], [3])

    def train(self, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            x = tc.randn(16, 4)
            self.optimizer.zero_grad()
            loss = ((self.model(x) - x.sum(1, keepdim=True)) ** 2).mean()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            losses.append(loss.item())
        return losses

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "random": tc.get_rng_state(),
        }

    def resume(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        tc.set_rng_state(state["random"])


@pytest.mark.smoke("utils")
def test_training_goes_on_byte_for_byte(path: Path) -> None:
    """Model, optimizer, schedule and random numbers, before and after a change of rules."""
    tc.manual_seed(3)
    first = Run()
    first.train(7)
    tc.save(first.state(), path)
    wanted = first.train(8)
    tc.manual_seed(99)
    second = Run()
    second.train(2)
    second.resume(tc.load(path))
    assert second.train(8) == wanted
    for name, value in first.model.state_dict().items():
        other = second.model.state_dict()[name]
        assert value.detach().numpy().tobytes() == other.detach().numpy().tobytes(), name


def test_no_flipped_byte_goes_unnoticed(path: Path) -> None:
    """Every byte of a small file in turn: refused, or of no account, as the word "pt" is."""
    tc.save({"x": tc.arange(5), "y": [1, 2.5, "z"], (1, 2): None}, path)
    whole = path.read_bytes()
    accounts = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            found = tc.load(path)
        except tc.DataError:
            accounts += 1
            continue
        assert found.pop("x").tolist() == [0, 1, 2, 3, 4]
        assert found == {"y": [1, 2.5, "z"], (1, 2): None}
    assert accounts > len(whole) - 20


def test_deep_nesting_is_refused_in_words(path: Path) -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(tc.ArgumentError, match="nested too deeply"):
        tc.save(value, path)
    assert not path.exists()
    deep = '{"version": 1, "structure": ' + "[" * 5000 + "]" * 5000 + "}"
    for structure in ("[" * 100_000, deep):
        save_file({"x": np.zeros(1)}, path, metadata={"tinygrad_cuda": structure})
        with pytest.raises(tc.DataError, match="damaged"):
            tc.load(path)


def test_a_file_without_a_checksum_is_read_as_before(path: Path) -> None:
    structure = {"version": 1, "structure": {"tensor": "x", "device": "cpu"}}
    save_file({"x": np.arange(3.0)}, path, metadata={"tinygrad_cuda": json.dumps(structure)})
    assert tc.load(path).tolist() == [0.0, 1.0, 2.0]


# What programs for PyTorch save ------------------------------------------------------------------


@dataclasses.dataclass
class Sizes:
    """A configuration beside a model."""

    width: int = 3
    name: str = "small"


class Net(nn.Module):
    """A module as programs write them: values, functions and modules as attributes."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes, self.act, self.scale = sizes, nn.functional.relu, 0.5
        self.layers = nn.Sequential(nn.Linear(2, sizes.width), nn.BatchNorm1d(sizes.width))
        self.tied = self.layers[0].weight
        self.register_buffer("steps", tc.zeros((), dtype=tc.int64))

    def forward(self, x: tc.Tensor) -> tc.Tensor:
        return self.act(self.layers(x)) * self.scale


def test_streams() -> None:
    stream = io.BytesIO()
    tc.save({"a": tc.ones(2)}, stream)
    stream.seek(0)
    assert tc.load(stream)["a"].tolist() == [1.0, 1.0]


def test_values_of_numpy_and_namespaces(path: Path) -> None:
    given = {
        "array": np.arange(6.0).reshape(2, 3).T, "number": np.float64(2.5), "count": np.int32(3),
        "args": argparse.Namespace(lr=0.1, sizes=[1, 2], inner=types.SimpleNamespace(x=None)),
        "set": {3, 1}, "dtype": tc.float16, "device": tc.device("cpu"), "size": tc.ones(2, 3).shape,
    }  # fmt: skip
    found = again(given, path)
    assert found["array"].tolist() == given["array"].tolist()
    assert type(found["number"]) is np.float64 and type(found["count"]) is np.int32
    for name in ("number", "count", "args", "set", "dtype", "device", "size"):
        assert found[name] == given[name] and type(found[name]) is type(given[name])


def test_whole_modules_where_the_file_is_trusted(path: Path) -> None:
    model = Net(Sizes(4))
    model(tc.rand(5, 2))
    tc.save({"model": model, "epoch": 3}, path)
    with pytest.raises(tc.DataError, match=r"needs(.|\n)*weights_only=False"):
        tc.load(path)
    found = tc.load(path, weights_only=False)["model"]
    x = tc.rand(3, 2)
    assert found.eval()(x).tolist() == model.eval()(x).tolist()
    assert found.tied is found.layers[0].weight or found.tied.cell is found.layers[0].weight.cell
    assert found.sizes == Sizes(4) and repr(found) == repr(model)
    found.train()(x).sum().backward()
    assert found.layers[0].weight.grad is not None


def test_names_in_a_file_are_not_called(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that is no Module, or is gone, is refused even where the file is trusted."""
    tc.save(Sizes(), path)
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "Sizes", Path)
    with pytest.raises(tc.DataError, match="is no module"):
        tc.load(path, weights_only=False)
    monkeypatch.delattr(module, "Sizes")
    with pytest.raises(tc.DataError, match="is no module"):
        tc.load(path, weights_only=False)


def test_places(path: Path) -> None:
    tc.save({"a": tc.ones(2)}, path)
    for where in ("cpu", tc.device("cpu"), lambda storage, name: storage, {"cpu": "cpu"}):
        assert tc.load(path, map_location=where)["a"].device == "cpu"
    assert tc.load(path, map_location={"cpu": "meta"})["a"].is_meta
    assert tc.load(path, lambda storage, name: storage.to("meta"))["a"].is_meta
