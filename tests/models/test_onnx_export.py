"""tc.onnx.export: the checker accepts the files, and ONNX Runtime computes the model's values."""

from __future__ import annotations

import importlib.util
import io
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.core.trees import leaves
from tinygrad_cuda.nn import functional as F

ROOT = Path(__file__).resolve().parents[2]
BATCH = {"input": {0: "batch"}}
TIME = {"input": {0: "batch", 1: "time"}}


@pytest.fixture(autouse=True)
def on_cpu() -> Any:
    tc.manual_seed(0)
    before = tc.get_default_device()
    tc.set_default_device("cpu")
    yield
    tc.set_default_device(before)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a file of examples/."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    return load


def exported(model: Any, args: Any, **options: Any) -> onnx.ModelProto:
    file = io.BytesIO()
    tc.onnx.export(model, args, file, **options)
    return onnx.load_model_from_string(file.getvalue())


def run(model: onnx.ModelProto, *inputs: Any) -> list[np.ndarray[Any, Any]]:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [described.name for described in session.get_inputs()]
    return session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)})


def agrees(model: Any, args: Any, others: Sequence[Any] = (), **options: Any) -> onnx.ModelProto:
    """Exports a model and compares ONNX Runtime's results at its own sizes and at others."""
    if isinstance(model, nn.Module):
        model.eval()
        for parameter in model.parameters():  # layers that begin as zeros say nothing
            with tc.no_grad():
                parameter.add_(0.05 * tc.randn(parameter.shape))
    file = exported(model, args, **options)
    onnx.checker.check_model(file, full_check=True)
    for inputs in (args, *others):
        inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        with tc.no_grad():
            expected = [result.numpy() for result in leaves(model(*inputs))]
        actual = run(file, *inputs)
        assert len(actual) == len(expected)
        for got, want in zip(actual, expected):
            assert got.shape == want.shape and got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    if isinstance(model, nn.Module):
        state = model.state_dict()
        for tensor in file.graph.initializer:
            values = onnx.numpy_helper.to_array(tensor)
            np.testing.assert_array_equal(values, state[tensor.name].numpy())
    return file


def operations(file: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in file.graph.node)


# Models -------------------------------------------------------------------------------------------


@pytest.mark.smoke("onnx")
def test_mlp() -> None:
    """A linear layer is one Gemm, a ReLU and a softmax are what ONNX calls so."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(-1))
    file = agrees(model, tc.randn(2, 4), [tc.randn(1, 4), tc.randn(7, 4)], dynamic_axes=BATCH)
    assert operations(file) == {"Gemm": 2, "Relu": 1, "Softmax": 1, "Identity": 1}
    assert [tensor.name for tensor in file.graph.initializer] == list(model.state_dict())
    assert file.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert [opset.version for opset in file.opset_import] == [20]


def test_lenet(example: Any) -> None:
    images = tc.randn(2, 1, 28, 28)
    file = agrees(example("lenet").LeNet(), images, [tc.randn(5, 1, 28, 28)], dynamic_axes=BATCH)
    assert operations(file)["Conv"] == 2 and operations(file)["Gemm"] == 3


def test_resnet(example: Any) -> None:
    """Also what the benchmarks train: pools with padding and overlapping windows."""
    images = tc.randn(2, 1, 28, 28)
    model = example("resnet_mnist").ResNet(8)
    agrees(model, images, [tc.randn(3, 1, 28, 28)], dynamic_axes=BATCH)


def test_unet(example: Any) -> None:
    model = example("ddpm").UNet(8, 100)
    times = {"input_names": ["image", "t"]}
    both = {"image": {0: "batch"}, "t": {0: "batch"}}
    args = tc.randn(2, 1, 28, 28), tc.tensor([3, 50])
    other = tc.randn(3, 1, 28, 28), tc.tensor([3, 50, 7])
    agrees(model, args, [other], dynamic_axes=both, **times)


def test_gpt(example: Any) -> None:
    """Two dynamic axes; a weight that is used twice is one initializer."""
    model = example("gpt").GPT(11, 24, 16, 2, 2, 0.1)
    text, other = tc.randint(0, 11, (2, 8)), tc.randint(0, 11, (3, 5))
    file = agrees(model, text, [other], dynamic_axes=TIME)
    names = [tensor.name for tensor in file.graph.initializer]
    assert "symbols.weight" in names and "head.weight" not in names


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrences(kind: Any) -> None:
    """Layers in both directions; the length is dynamic, since the loop is a Scan."""
    model = kind(3, 5, 2, batch_first=True, bidirectional=True)
    file = agrees(model, tc.randn(2, 6, 3), [tc.randn(4, 9, 3)], dynamic_axes=TIME)
    assert operations(file)["Scan"] == 4


def test_transformer() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
    agrees(model, tc.randn(2, 5, 8), [tc.randn(4, 9, 8)], dynamic_axes=TIME)


def test_models_of_the_benchmarks() -> None:
    """With their losses: a mean over a dynamic batch divides by its size."""
    from benchmarks.workloads import lstm, resnet18

    names = ["x", "labels"]
    batch = {"x": {0: "batch"}, "labels": {0: "batch"}}
    images = resnet18.model(4, tc)
    args = tc.randn(2, 3, 32, 32), tc.tensor([1, 7])
    other = tc.randn(3, 3, 32, 32), tc.tensor([0, 9, 4])
    agrees(images, args, [other], input_names=names, dynamic_axes=batch)
    text = lstm.model(11, 6, tc)
    both = {name: {0: "time", 1: "batch"} for name in names}
    args = tc.randint(0, 11, (4, 3)), tc.randint(0, 11, (4, 3))
    other = tc.randint(0, 11, (5, 2)), tc.randint(0, 11, (5, 2))
    agrees(text, args, [other], input_names=names, dynamic_axes=both)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "pool with padding": (
        lambda x: F.max_pool2d(x, 3, stride=2, padding=1), (2, 3, 9, 9), (3, 3, 9, 9)),
    "mean pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), (2, 3, 9, 9), (5, 3, 9, 9)),
    "transposed convolution": (
        lambda x: F.conv_transpose2d(x, tc.ones(3, 4, 3, 3), stride=2, padding=1,
                                     output_padding=1), (2, 3, 5, 5), (4, 3, 5, 5)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), (2, 3, 4, 4), (3, 3, 4, 4)),
    "bilinear": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (2, 3, 4, 4), (3, 3, 4, 4)),
    "variance over the batch": (lambda x: x.var(0) + x.mean(), (4, 3), (7, 3)),
    "sum by batch": (lambda x: x / x.shape[0] + x.shape[0] * 2, (2, 3), (5, 3)),
    "all but the last": (lambda x: x[:-1] - x[1:], (4, 3), (7, 3)),
    "turned": (lambda x: x.flip(0, 1), (4, 3), (7, 3)),
    "joined": (lambda x: tc.cat([x, x * 2, tc.zeros(x.shape[0], 1)], 1), (4, 3), (7, 3)),
    "positions": (lambda x: x + tc.arange(x.shape[0]).float().unsqueeze(1), (4, 3), (7, 3)),
    "sorted": (lambda x: x.sort(1).values + x.argmax(1, keepdim=True), (4, 3), (7, 3)),
    "running": (lambda x: x.cumsum(0), (4, 3), (7, 3)),
    "masked": (
        lambda x: F.scaled_dot_product_attention(x, x, x, tc.ones(4, 4).tril() > 0),
        (2, 4, 8), (3, 4, 8)),
    "logarithms": (lambda x: x.log_softmax(1) + x.logsumexp(1, keepdim=True), (4, 3), (7, 3)),
    "booleans": (
        lambda x: ((x > 0).any(1), (x > 0).all(1), (x > 0) ^ (x < 1), ~(x > 0)), (4, 3), (7, 3)),
    "largest of all": (lambda x: (x.argmax(), x.amax((0, 1)), x.prod(1)), (4, 3), (7, 3)),
    "every second": (lambda x: x[:, 1::2].repeat(1, 2), (4, 5), (6, 5)),
    "by table": (lambda x: tc.ones(5, 2)[(x > 0).long()], (4, 3), (7, 3)),
    "whole numbers": (
        lambda x: ((x * 9).int() // 4, (x * 9).int() % 4, tc.fmod(x, 0.3), tc.remainder(x, -0.3)),
        (4, 3), (7, 3)),
    "angles": (lambda x: tc.atan2(x, x.flip(0)) + tc.hypot(x, x) + x.trunc(), (4, 3), (8, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    """A function of Tensors with a dynamic batch, at the recorded size and another."""
    function, shape, other = FUNCTIONS[name]
    agrees(function, tc.randn(shape), [tc.randn(other)], dynamic_axes=BATCH)


# What is written ----------------------------------------------------------------------------------


def test_options_of_pytorch(tmp_path: Path) -> None:
    """Its tutorial names the dynamic axes of results, too, and writes weights into the file."""
    model, x = nn.Linear(3, 2), tc.ones(4, 3)
    file = tmp_path / "model.onnx"
    tutorial = {
        "export_params": True, "opset_version": 20, "do_constant_folding": True, "verbose": False,
        "input_names": ["x"], "output_names": ["y"],
        "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}},
    }  # fmt: skip
    for options in (tutorial, {"dynamic_shapes": ({0: "batch"},), "external_data": True}):
        tc.onnx.export(model, x, file, **options)
        assert tc.onnx.load(file)(tc.ones(7, 3)).shape == (7, 2)
    others = {path.name for path in tmp_path.iterdir()} - {"model.onnx"}
    assert len(others) == 1  # the weights of the second file
    for options in ({"export_params": False}, {"keep_initializers_as_inputs": True}):
        with pytest.raises(tc.ArgumentError, match="weights are initializers"):
            tc.onnx.export(model, x, tmp_path / "none.onnx", **options)
    with pytest.raises(tc.ArgumentError, match="name no input"):
        tc.onnx.export(model, x, tmp_path / "none.onnx", dynamic_axes={"z": {0: "batch"}})
    assert not (tmp_path / "none.onnx").exists()


def test_training_is_left_as_it_is(tmp_path: Path) -> None:
    """Dropout is not in the file, running values are; the model trains on as before."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    model[0].eval()
    tc.onnx.export(model, tc.randn(2, 4), tmp_path / "a.onnx")
    assert model.training and model[1].training and not model[0].training
    assert not tc.onnx.is_in_onnx_export()
    names = [tensor.name for tensor in onnx.load(tmp_path / "a.onnx").graph.initializer]
    assert names == ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean",
                     "1.running_var"]  # fmt: skip


def test_names_and_structures() -> None:
    """Tensors in dicts are inputs in their order; results of a dict are outputs."""

    def model(pair: dict[str, Any], scale: float, bias: Any) -> dict[str, Any]:
        assert tc.onnx.is_in_onnx_export()
        return {"sum": pair["a"] + pair["b"] * scale, "bias": bias}

    a, b, bias = tc.ones(2), tc.arange(2.0), tc.tensor([7])
    file = exported(model, ({"a": a, "b": b}, 3.0), kwargs={"bias": bias},
                    input_names=["a", "b", "bias"], output_names=["y", "same"])  # fmt: skip
    y, same = run(file, a, b, bias)
    assert y.tolist() == [1, 4] and same.tolist() == [7]
    assert [result.name for result in file.graph.output] == ["y", "same"]


@pytest.mark.parametrize("opset", [18, 21, 23])
def test_opsets(opset: int) -> None:
    file = exported(nn.Linear(3, 2), tc.ones(1, 3), opset_version=opset)
    assert file.opset_import[0].version == opset
    assert run(file, tc.ones(1, 3))[0].shape == (1, 2)


# Refusals -----------------------------------------------------------------------------------------


def _looks(x: tc.Tensor) -> tc.Tensor:
    return x * 2 if x.sum() > 0 else x


def _branches(x: tc.Tensor) -> tc.Tensor:
    return x * 2 if x.shape[0] > 5 else x + x.sum()


def _root(x: tc.Tensor) -> tc.Tensor:
    return x * x.shape[0] ** 0.5


REFUSED = {
    "a value was looked at": (_looks, "looked at inside"),
    "another graph": (_branches, "other operations are recorded at another size"),
    "no formula": (_root, "depends on a dynamic axis in no simple way"),
    "rounded up": (lambda x: x[::2], "depends on a dynamic axis in no simple way"),
    "random": (lambda x: x + tc.randn(3), "a random function was called inside"),
    "no counterpart": (tc.lgamma, "lgamma has no counterpart in ONNX"),
    "no Tensor": (lambda x: (x, 3), "something other than Tensors"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    """Nothing is written, and the error names the user's line."""
    function, message = REFUSED[name]
    path = tmp_path / "a.onnx"
    with pytest.raises(tc.ArgumentError, match=message) as error:
        tc.onnx.export(function, tc.ones(2, 3), path, dynamic_axes=BATCH)
    assert not path.exists() and "test_onnx_export.py:" in str(error.value)


def test_refused_arguments() -> None:
    file = io.BytesIO()
    for options, message in (
        ({"opset_version": 9}, "no export to this opset"),
        ({"input_names": ["a", "b"]}, "input_names do not fit"),
        ({"dynamic_axes": {"y": {0: "batch"}}}, "name no input"),
        ({"dynamic_axes": {"input": {4: "batch"}}}, "no dimension 4"),
    ):
        with pytest.raises(tc.ArgumentError, match=message):
            tc.onnx.export(nn.Linear(3, 2), tc.ones(1, 3), file, **options)  # type: ignore[arg-type]
    assert not file.getvalue()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(tc.ArgumentError, match="onnx is not installed"):
        tc.onnx.export(nn.Linear(3, 2), tc.ones(1, 3), io.BytesIO())
