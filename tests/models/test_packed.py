"""Packed sequences, and the recurrent layers on them, against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from layers import close, compare_layer, outputs, real, torch

import tinygrad_cuda as tc
from tinygrad_cuda import nn

LENGTHS = [2, 5, 1, 5, 3]
SORTED = sorted(LENGTHS, reverse=True)
SEQUENCES = real(5, 5, 6)  # (T, N, C)


@pytest.fixture(autouse=True)
def on_cpu() -> Any:
    tc.set_default_device("cpu")
    yield
    tc.set_default_device(None)


def packing(lib: Any, layer: Any, lengths: list[int], **options: Any) -> Any:
    """A module of either library that packs, calls the layer and pads again."""

    class Packing(lib.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer(lib)

        def forward(self, x: Any, *state: Any) -> Any:
            rnn = lib.utils.rnn
            packed = rnn.pack_padded_sequence(x, lengths, **options)
            result, last = self.layer(packed, *state)
            return [*rnn.pad_packed_sequence(result), last]

    return Packing()


LAYERS: dict[str, tuple[Callable[[Any], Any], list[int], dict[str, Any], tuple[Any, ...]]] = {
    "RNN": (lambda lib: lib.RNN(6, 4), SORTED, {}, ()),
    "LSTM": (lambda lib: lib.LSTM(6, 4, 2), SORTED, {"batch_first": True}, ()),
    "LSTM, two ways, unsorted": (
        lambda lib: lib.LSTM(6, 4, 2, bidirectional=True), LENGTHS, {"enforce_sorted": False}, ()),
    "LSTM, projected": (
        lambda lib: lib.LSTM(6, 4, proj_size=2), LENGTHS, {"enforce_sorted": False}, ()),
    "GRU, two ways, state, unsorted": (
        lambda lib: lib.GRU(6, 4, bidirectional=True), LENGTHS, {"enforce_sorted": False},
        (real(2, 5, 4),)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str) -> None:
    """Outputs, last states, lengths and all gradients."""
    layer, lengths, options, state = LAYERS[name]
    compare_layer(
        lambda lib: packing(lib, layer, lengths, **options), (SEQUENCES, *state), "float64"
    )


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("lengths", [SORTED, LENGTHS])
def test_packing(batch_first: bool, lengths: list[int]) -> None:
    """Data, sizes and orders are torch's, there and back."""
    found = []
    for lib, make in ((nn, tc.tensor), (torch.nn, torch.tensor)):
        rnn = lib.utils.rnn
        packed = rnn.pack_padded_sequence(
            make(SEQUENCES), make(lengths), batch_first, enforce_sorted=lengths is SORTED
        )
        back = rnn.pad_packed_sequence(packed, batch_first, -1.5, 7)
        found.append(outputs([*packed[:2], *back, *rnn.unpack_sequence(packed)]))
        assert (packed.sorted_indices is None) == (lengths is SORTED)
    for ours, theirs in zip(*found, strict=True):
        close(ours, theirs, 0.0, "packed")


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_padding(side: str, batch_first: bool) -> None:
    """Sequences to one Tensor and back, and packed at once."""
    found = []
    for lib, make in ((nn, tc.tensor), (torch.nn, torch.tensor)):
        rnn = lib.utils.rnn
        parts = [make(SEQUENCES[:n, row]) for row, n in enumerate(LENGTHS)]
        padded = rnn.pad_sequence(parts, batch_first, 0.5, side)
        packed = rnn.pack_sequence(parts, enforce_sorted=False)
        back = rnn.unpad_sequence(rnn.pad_sequence(parts, True), make(LENGTHS), True)
        found.append([padded, *packed, *back])
    for ours, theirs in zip(*found, strict=True):
        close(ours, theirs, 0.0, "padded")


def test_states_end_with_their_sequences() -> None:
    """The last state of each is that of the sequence alone."""
    layer = nn.GRU(6, 4, bidirectional=True)
    parts = [tc.tensor(SEQUENCES[:n, row]).float() for row, n in enumerate(LENGTHS)]
    _, last = layer(nn.utils.rnn.pack_sequence(parts, enforce_sorted=False))
    for row, part in enumerate(parts):
        np.testing.assert_allclose(
            last[:, row].detach().numpy(), layer(part)[1].detach().numpy(), 1e-5, 1e-6
        )


def test_refusals() -> None:
    rnn, x = nn.utils.rnn, tc.tensor(SEQUENCES)
    with pytest.raises(tc.ArgumentError, match=r"not sorted(.|\n)*enforce_sorted=False"):
        rnn.pack_padded_sequence(x, LENGTHS)
    with pytest.raises(tc.ArgumentError, match=r"out of range(.|\n)*from 1 to 5"):
        rnn.pack_padded_sequence(x, [6, 5, 4, 3, 2])
    with pytest.raises(tc.ShapeError, match="one length for each"):
        rnn.pack_padded_sequence(x, [2, 1])
    packed = rnn.pack_padded_sequence(x, SORTED)
    with pytest.raises(tc.ArgumentError, match="too short"):
        rnn.pad_packed_sequence(packed, total_length=4)
    with pytest.raises(tc.ShapeError, match="packed input does not fit"):
        nn.GRU(3, 4)(packed)
    with pytest.raises(tc.ArgumentError, match="nothing to pad"):
        rnn.pad_sequence([])
