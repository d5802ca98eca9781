"""tc.summary: paths, shapes, parameters, FLOPs and bytes, by hand; nothing is changed or run."""

from __future__ import annotations

from typing import Any

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn


@pytest.fixture(autouse=True)
def on_cpu() -> Any:
    with tc.device("cpu"):
        yield


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.act = nn.ReLU()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 2)])
        self.unused = nn.Linear(3, 3)

    def forward(self, x: tc.Tensor) -> tc.Tensor:
        x = self.act(self.norm(self.conv(x))).mean((2, 3))
        return self.layers[1](self.act(self.layers[0](x)))


def test_rows() -> None:
    """A row for each module that is called, in order, with numbers by hand."""
    model = Net()
    model.layers[0].weight.requires_grad_(False)
    result = tc.summary(model, tc.zeros(2, 1, 8, 8))
    rows = {row.path: row for row in result.rows}
    assert list(rows) == [
        "Net", "Net.conv", "Net.norm", "Net.act", "Net.layers.0", "Net.layers.1",
    ]  # fmt: skip
    conv = rows["Net.conv"]
    assert conv.output_shapes == [(2, 4, 8, 8)] and conv.parameters == 36 and conv.depth == 1
    assert conv.flops == 2 * 2 * 4 * 64 * 9
    assert conv.nbytes == 4 * (2 * 64 + 36 + 2 * 4 * 64)
    assert rows["Net.layers.1"].flops == 2 * 2 * 4 * 2 + 2 * 2
    assert rows["Net.layers.1"].nbytes == 4 * (8 + 10 + 4)
    assert rows["Net.act"].calls == 2
    assert rows["Net"].flops == result.total_flops > sum(r.flops for r in result.rows[1:])
    own = 36 + 8 + 20 + 10 + 12
    assert (result.total_parameters, result.trainable_parameters) == (own, own - 16)
    assert result.parameter_bytes == 4 * own and result.input_bytes == 4 * 128
    assert rows["Net"].output_shapes == [(2, 2)]


def test_text() -> None:
    """Columns are aligned, names indented, totals below; depth cuts the table alone."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    result = tc.summary(model, input_size=(32, 1, 28, 28))
    lines = str(result).splitlines()
    assert lines[0].split() == ["module", "output", "shape", "parameters", "FLOPs", "bytes"]
    assert "  1 (Linear)" in str(result) and "100,480" in str(result)
    assert len({len(line) for line in lines[:7] if line[0] != "-"}) == 1
    assert "parameters: 101,770 (101,770 trainable, 0 not), 407,080 bytes" in str(result)
    shallow = str(tc.summary(model, input_size=(32, 1, 28, 28), depth=0))
    assert "(Linear)" not in shallow and "101,770" in shallow


def test_inputs() -> None:
    """Several inputs by size and dtype, arguments by name, on the device of the model."""
    result = tc.summary(nn.Embedding(10, 4), input_size=(3, 5), dtypes=[tc.int64])
    assert result.rows[0].output_shapes == [(3, 5, 4)]
    result = tc.summary(nn.Bilinear(3, 4, 2), input_size=[(6, 3), (6, 4)])
    assert result.rows[0].output_shapes == [(6, 2)]
    result = tc.summary(nn.Linear(3, 2), {"input": tc.zeros(1, 3)})
    assert result.rows[0].output_shapes == [(1, 2)]
    result = tc.summary(nn.LSTM(3, 4), input_size=(5, 2, 3))
    assert result.rows[0].output_shapes == [(5, 2, 4), (1, 2, 4), (1, 2, 4)]
    assert result.total_flops > 0


def test_nothing_changes() -> None:
    """Modes, statistics, hooks, gradients and the random numbers that follow are as before."""
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5))
    model[1].eval()
    tc.manual_seed(3)
    expected = tc.rand(2).tolist()
    tc.manual_seed(3)
    tc.summary(model, input_size=(6, 4))
    assert tc.rand(2).tolist() == expected
    assert model.training and model[0].training and not model[1].training
    assert model[0].running_mean.tolist() == [0.0] * 4
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_what_it_refuses() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(tc.ArgumentError, match="one of input_data and input_size"):
        tc.summary(model)
    with pytest.raises(tc.ArgumentError, match="a dtype for each input"):
        tc.summary(model, input_size=(1, 2), dtypes=[tc.float32, tc.float32])
    with pytest.raises(tc.ShapeError, match="linear"):
        tc.summary(model, input_size=(1, 3))
    assert not model._forward_hooks and model.training


def test_a_forward_pass_that_looks_at_a_value() -> None:
    """What is computed for the look loses its sources, and is counted all the same."""

    class Looks(nn.Module):
        def __init__(self, look: bool) -> None:
            super().__init__()
            self.first, self.second, self.look = nn.Linear(4, 3), nn.Linear(3, 2), look

        def forward(self, x: tc.Tensor) -> tc.Tensor:
            hidden = self.first(x).sum(0, keepdim=True)
            if self.look and hidden.sum().item() > 1e9:
                hidden = hidden * 2
            return self.second(hidden)

    plain, looks = (tc.summary(Looks(look), tc.ones(5, 4)) for look in (False, True))
    flops = {row.path: row.flops for row in looks.rows}
    assert flops["Looks.first"] == plain.rows[1].flops > 0
    assert flops["Looks.second"] == plain.rows[2].flops > 0
    # The look itself: a sum of three.
    assert plain.total_flops < looks.total_flops <= plain.total_flops + 3


def test_work_that_waits_is_not_the_models() -> None:
    """A look computes all that is pending, also calls of the model from before the summary."""

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: tc.Tensor) -> tc.Tensor:
            h: tc.Tensor = self.layer(x)
            return h if h.sum() > 1e9 else h * 2

    class Plain(Looks):
        def forward(self, x: tc.Tensor) -> tc.Tensor:
            h: tc.Tensor = self.layer(x)
            return h.sum() * h

    model, plain, x = Looks(), Plain(), tc.ones(5, 4)
    alone, whole = tc.summary(model, x), tc.summary(plain, x)
    with tc.record_modules(), tc.record_modules():
        waits = model.layer(x).exp()
        again = tc.summary(model, waits @ tc.ones(3, 4))
        held = plain(x)
        after = tc.summary(plain, held @ tc.ones(3, 4))
    assert [row.flops for row in again.rows] == [row.flops for row in alone.rows]
    assert [row.flops for row in after.rows] == [row.flops for row in whole.rows]
    assert waits.shape == held.shape
