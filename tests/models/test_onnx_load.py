"""tc.onnx.load: what is exported comes back, with its names, and trains."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.core.trees import leaves

BATCH = {"input": {0: "batch"}}


def again(model: Any, args: Any, **options: Any) -> Any:
    """A model that has been written and read."""
    file = io.BytesIO()
    tc.onnx.export(model, args, file, **options)
    return tc.onnx.load(io.BytesIO(file.getvalue()))


class Tied(nn.Module):
    """One weight under two names, a buffer, and a name with a number."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.layers = nn.Sequential(nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 4))
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("scale", tc.tensor([2.0, 1.0, 0.5, 3.0]))

    def forward(self, x: tc.Tensor) -> tc.Tensor:
        return self.head(self.layers(self.table(x)) * self.scale)


MODELS: dict[str, tuple[Any, Any, Any]] = {
    "tied": (Tied, lambda n: tc.randint(0, 7, (n, 3)), BATCH),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
            nn.ConvTranspose2d(4, 2, 2, 2), nn.Upsample(scale_factor=2), nn.AdaptiveAvgPool2d(2),
            nn.Flatten(), nn.Linear(8, 3), nn.LogSoftmax(1),
        ), lambda n: tc.randn(n, 1, 8, 8), BATCH),
    "LSTM": (lambda: nn.LSTM(3, 5, batch_first=True), lambda n: tc.randn(n, n + 2, 3),
             {"input": {0: "batch", 1: "time"}}),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        lambda n: tc.randn(n, n + 2, 8), {"input": {0: "batch", 1: "time"}}),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_round_trip(name: str) -> None:
    """Equal state dict but for what inference does not read, and equal outputs at other sizes."""
    tc.manual_seed(0)
    make, inputs, axes = MODELS[name]
    model = make().eval()
    loaded = again(model, inputs(2), dynamic_axes=axes)
    state, own = loaded.state_dict(), model.state_dict()
    unread = {key for key in own if key.endswith("num_batches_tracked")}
    assert state.keys() == own.keys() - unread
    for key, value in state.items():
        np.testing.assert_array_equal(value.numpy(), own[key].numpy())
    trained = {key for key, _ in model.named_parameters(remove_duplicate=False)}
    assert {key for key, _ in loaded.named_parameters(remove_duplicate=False)} == trained
    with tc.no_grad():
        for count in (2, 3):
            x = inputs(count)
            for want, got in zip(leaves(model(x)), leaves(loaded(x)), strict=True):
                np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-5)
    assert not loaded.load_state_dict(state).missing_keys


def test_a_loaded_model_trains() -> None:
    """Its gradients are those of the original; optimizers and tc.compile take it."""
    tc.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    loaded = again(model, tc.randn(1, 4), dynamic_axes=BATCH)
    x, y = tc.randn(16, 4), tc.randn(16, 1)
    for own in (model, loaded):
        nn.functional.mse_loss(own(x), y).backward()
    for (_, a), (_, b) in zip(model.named_parameters(), loaded.named_parameters(), strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-5, atol=1e-6)
    optimizer = optim.Adam(loaded.parameters(), lr=0.05)

    @tc.compile
    def step() -> tc.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(loaded(x), y)
        loss.backward()
        optimizer.step()
        return loss

    losses = [float(step()) for _ in range(30)]
    assert losses[-1] < 0.3 * losses[0]


def written(nodes: list[Any], inputs: Any, outputs: Any, **graph: Any) -> io.BytesIO:
    """A file of nodes that no exporter of ours writes."""
    made = helper.make_graph(nodes, "test", inputs, outputs, **graph)
    opsets = [helper.make_opsetid("", 20)]
    model = helper.make_model(made, opset_imports=opsets)
    onnx.checker.check_model(model)
    return io.BytesIO(model.SerializeToString())


def info(name: str, *shape: Any, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, list(shape))


def test_shape_arithmetic_reads_no_values() -> None:
    """Sizes that a graph computes are NumPy's, so that tc.compile can record it."""
    minus = helper.make_tensor("rest", TensorProto.INT64, [1], [-1])
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "zero"], ["count"]),
        helper.make_node("Concat", ["count", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    zero = helper.make_node(
        "Constant", [], ["zero"], value=helper.make_tensor("v", TensorProto.INT64, [1], [0])
    )
    one = helper.make_node("Constant", [], ["rest"], value=minus)
    file = written([zero, one, *nodes], [info("x", "n", 2, 3)], [info("y", "n", 6)])
    model = tc.onnx.load(file)
    assert tc.compile(model)(tc.ones(4, 2, 3)).shape == (4, 6)
    assert model(x=tc.ones(5, 2, 3)).shape == (5, 6)


def test_trainable_or_not() -> None:
    """Floating initializers train, running statistics and whole numbers do not."""
    vectors = [
        helper.make_tensor(name, TensorProto.FLOAT, [2], [1.0, 2.0])
        for name in ("bn.scale", "bn.shift", "bn.mean", "bn.variance")
    ]
    index = helper.make_tensor("pick", TensorProto.INT64, [1], [1])
    file = written(
        [
            helper.make_node("BatchNormalization", ["x", *(v.name for v in vectors)], ["h"]),
            helper.make_node("Gather", ["h", "pick"], ["y"], axis=1),
        ],
        [info("x", "n", 2)], [info("y", "n", 1)], initializer=[*vectors, index],
    )  # fmt: skip
    model = tc.onnx.load(file)
    assert [name for name, _ in model.named_parameters()] == ["bn.scale", "bn.shift"]
    assert sorted(name for name, _ in model.named_buffers()) == ["bn.mean", "bn.variance", "pick"]
    assert model(tc.ones(3, 2)).shape == (3, 1)


def test_refused(tmp_path: Path) -> None:
    """Unknown operators are all named before anything is computed; so is a file that is none."""
    nodes = [
        helper.make_node("StringNormalizer", ["x"], ["h"]),
        helper.make_node("StringConcat", ["h", "h"], ["y"]),
    ]
    text = TensorProto.STRING
    file = written(nodes, [info("x", 1, kind=text)], [info("y", 1, kind=text)])
    with pytest.raises(tc.ArgumentError, match="have no function here") as error:
        tc.onnx.load(file)
    assert "StringNormalizer, StringConcat" in str(error.value)
    (tmp_path / "bad.onnx").write_bytes(b"no model at all")
    with pytest.raises(tc.DataError, match="cannot be read"):
        tc.onnx.load(tmp_path / "bad.onnx")
    with pytest.raises(FileNotFoundError, match="no such file"):
        tc.onnx.load(tmp_path / "missing.onnx")
    model = again(nn.Linear(3, 2), tc.ones(1, 3))
    for inputs, named in (((), {}), ((), {"x": tc.ones(1, 3)}), ((tc.ones(1, 3),) * 2, {})):
        with pytest.raises(tc.ArgumentError, match="input"):
            model(*inputs, **named)
