"""Embedding, recurrent and attention layers, activations and images against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from layers import compare, compare_layer, real, torch

import tinygrad_cuda as tc
from tinygrad_cuda import nn

SEQUENCE = real(5, 2, 6)  # (L, N, C)
KINKS = np.concatenate([real(3, 4, 4) * 4, np.zeros((1, 4, 4))])
WORDS = np.random.default_rng(1).integers(0, 7, (3, 4))
IMAGES = real(2, 4, 6, 5)
Case = tuple[Callable[[Any], Any], tuple[Any, ...]]


def attention(lib: Any, **options: Any) -> Any:
    return lib.MultiheadAttention(6, 2, **options)


def encoder(lib: Any, **options: Any) -> Any:
    return lib.TransformerEncoderLayer(6, 2, 9, dropout=0.0, **options)


LAYERS: dict[str, Case] = {
    "Embedding": (lambda lib: lib.Embedding(7, 3), (WORDS,)),
    "Embedding, padding": (lambda lib: lib.Embedding(7, 3, padding_idx=-2), (WORDS,)),
    "Embedding, by frequency": (lambda lib: lib.Embedding(7, 3, scale_grad_by_freq=True), (WORDS,)),
    "Embedding, max_norm": (lambda lib: lib.Embedding(7, 3, max_norm=1.0), (WORDS,)),
    "EmbeddingBag": (lambda lib: lib.EmbeddingBag(7, 3), (WORDS,)),
    "EmbeddingBag, sum": (lambda lib: lib.EmbeddingBag(7, 3, mode="sum", padding_idx=2), (WORDS,)),
    "EmbeddingBag, max": (lambda lib: lib.EmbeddingBag(7, 3, mode="max"), (WORDS,)),
    "EmbeddingBag, offsets": (
        lambda lib: lib.EmbeddingBag(7, 3), (WORDS.reshape(-1), np.array([0, 3, 3, 8]))),
    "EmbeddingBag, ends": (
        lambda lib: lib.EmbeddingBag(7, 3, mode="max", include_last_offset=True),
        (WORDS.reshape(-1), np.array([0, 3, 3, 12]))),
    "RNN": (lambda lib: lib.RNN(6, 4), (SEQUENCE,)),
    "RNN, relu": (lambda lib: lib.RNN(6, 4, 2, nonlinearity="relu", bias=False), (SEQUENCE,)),
    "LSTM": (lambda lib: lib.LSTM(6, 4), (SEQUENCE,)),
    "LSTM, two ways": (
        lambda lib: lib.LSTM(6, 4, 2, batch_first=True, bidirectional=True), (SEQUENCE,)),
    "LSTM, projected": (lambda lib: lib.LSTM(6, 4, proj_size=2), (SEQUENCE,)),
    "LSTM, unbatched": (lambda lib: lib.LSTM(6, 4), (SEQUENCE[:, 0],)),
    "GRU": (lambda lib: lib.GRU(6, 4, bidirectional=True), (SEQUENCE,)),
    "GRU, state": (lambda lib: lib.GRU(6, 4, 2), (SEQUENCE, real(2, 2, 4))),
    "RNNCell": (lambda lib: lib.RNNCell(6, 4), (SEQUENCE[0], real(2, 4))),
    "LSTMCell": (lambda lib: lib.LSTMCell(6, 4), (SEQUENCE[0],)),
    "GRUCell": (lambda lib: lib.GRUCell(6, 4), (SEQUENCE[0], real(2, 4))),
    "Attention": (attention, (SEQUENCE, SEQUENCE + 1, SEQUENCE - 1)),
    "Attention, batch first": (
        lambda lib: attention(lib, batch_first=True), (SEQUENCE, real(5, 3, 6), real(5, 3, 6))),
    "Attention, widths": (
        lambda lib: attention(lib, kdim=4, vdim=3, bias=False),
        (SEQUENCE, real(7, 2, 4), real(7, 2, 3))),
    "Attention, extra": (
        lambda lib: attention(lib, add_bias_kv=True, add_zero_attn=True),
        (SEQUENCE, SEQUENCE, SEQUENCE)),
    "Attention, unbatched": (attention, (SEQUENCE[:, 0], SEQUENCE[:, 0], SEQUENCE[:, 0])),
    "EncoderLayer": (encoder, (SEQUENCE,)),
    "EncoderLayer, norm first": (
        lambda lib: encoder(lib, norm_first=True, activation="gelu", batch_first=True),
        (SEQUENCE,)),
    "Encoder": (
        lambda lib: lib.TransformerEncoder(
            encoder(lib), 2, lib.LayerNorm(6), enable_nested_tensor=False), (SEQUENCE,)),
    "DecoderLayer": (
        lambda lib: lib.TransformerDecoderLayer(6, 2, 9, dropout=0.0),
        (SEQUENCE, real(3, 2, 6))),
    "DecoderLayer, norm first": (
        lambda lib: lib.TransformerDecoderLayer(6, 2, 9, dropout=0.0, norm_first=True),
        (SEQUENCE, real(3, 2, 6))),
    "Transformer": (
        lambda lib: lib.Transformer(6, 2, 1, 2, 9, dropout=0.0), (SEQUENCE, real(3, 2, 6))),
    "CosineSimilarity": (lambda lib: lib.CosineSimilarity(2), (SEQUENCE, SEQUENCE**2)),
    "PairwiseDistance": (lambda lib: lib.PairwiseDistance(1.0), (SEQUENCE, SEQUENCE**2)),
    "MaxUnpool2d": (
        lambda lib: lib.MaxUnpool2d(2, 3), (real(2, 3, 2, 2), np.array([0, 3, 17, 20] * 6).reshape(
            2, 3, 2, 2))),
    "MaxUnpool1d": (
        lambda lib: lib.MaxUnpool1d(2), (real(2, 3, 2), np.array([[1, 2]] * 6).reshape(2, 3, 2))),
    "AdaptiveMaxPool3d": (
        lambda lib: lib.AdaptiveMaxPool3d((2, 3, 1), True), (real(2, 3, 5, 4, 3),)),
    "LPPool3d": (lambda lib: lib.LPPool3d(2, 2), (real(2, 3, 5, 4, 3),)),
    "ReflectionPad3d": (lambda lib: lib.ReflectionPad3d(1), (real(2, 3, 5, 4, 3),)),
    "ReplicationPad3d": (lambda lib: lib.ReplicationPad3d(2), (real(2, 3, 5, 4, 3),)),
    "CircularPad3d": (lambda lib: lib.CircularPad3d((1, 0, 2, 1, 0, 1)), (real(2, 3, 5, 4, 3),)),
    "Bilinear": (lambda lib: lib.Bilinear(4, 3, 5), (real(2, 6, 4), real(2, 6, 3))),
    "PReLU": (lambda lib: lib.PReLU(4), (KINKS,)),
    "PReLU, one": (lambda lib: lib.PReLU(init=0.1), (KINKS,)),
    "RReLU, evaluated": (lambda lib: lib.RReLU().eval(), (KINKS + 0.1,)),
    "Upsample, nearest": (lambda lib: lib.Upsample(scale_factor=2), (IMAGES,)),
    "Upsample, bilinear": (
        lambda lib: lib.Upsample(scale_factor=2, mode="bilinear"), (IMAGES,)),
    "UpsamplingBilinear2d": (lambda lib: lib.UpsamplingBilinear2d((7, 9)), (IMAGES,)),
    "PixelShuffle": (lambda lib: lib.PixelShuffle(2), (IMAGES,)),
    "PixelUnshuffle": (lambda lib: lib.PixelUnshuffle(2), (IMAGES[..., :4],)),
    "ChannelShuffle": (lambda lib: lib.ChannelShuffle(2), (IMAGES,)),
    "Unfold": (lambda lib: lib.Unfold((3, 2), 1, (1, 0), (2, 1)), (IMAGES,)),
    "Fold": (lambda lib: lib.Fold((4, 5), (2, 3), stride=(2, 1)), (real(2, 12, 6),)),
    "ReflectionPad2d": (lambda lib: lib.ReflectionPad2d((1, 2, 3, 0)), (IMAGES,)),
    "ReplicationPad1d": (lambda lib: lib.ReplicationPad1d(2), (KINKS,)),
    "CircularPad2d": (lambda lib: lib.CircularPad2d(1), (IMAGES,)),
    "ConstantPad1d": (lambda lib: lib.ConstantPad1d((1, 2), 3.5), (KINKS,)),
    "ZeroPad2d": (lambda lib: lib.ZeroPad2d((1, -1, 2, 0)), (IMAGES,)),
    **{
        name: ((lambda lib, name=name: getattr(lib, name)()), (KINKS,))
        for name in (
            "ReLU", "ReLU6", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Sigmoid", "Tanh",
            "Hardtanh", "Hardsigmoid", "Hardswish", "Hardshrink", "Softshrink", "Softsign",
            "Softplus", "Tanhshrink", "LogSigmoid", "LeakyReLU", "GLU",
        )
    },
    "Softmax": (lambda lib: lib.Softmax(1), (KINKS,)),
    "Softmin": (lambda lib: lib.Softmin(1), (KINKS,)),
    "Softmax2d": (lambda lib: lib.Softmax2d(), (IMAGES,)),
    "LogSoftmax": (lambda lib: lib.LogSoftmax(-1), (KINKS,)),
    "Threshold": (lambda lib: lib.Threshold(0.5, -2.0), (KINKS,)),
    "CELU, alpha": (lambda lib: lib.CELU(2.5), (KINKS,)),
}  # fmt: skip


# torch's gradient of Hardsigmoid takes a sixth in float32, in float64 too.
ONLY_FLOAT32 = {"Hardsigmoid"}
# What torch says about its own fast paths.
QUIET = ("ignore:LSTM with projections", "ignore:enable_nested_tensor is True")


@pytest.mark.filterwarnings(*QUIET)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name in LAYERS
        for dtype in ("float32", "float64")
        if dtype == "float32" or name not in ONLY_FLOAT32
    ],
)
def test_layer(name: str, dtype: str) -> None:
    make, arrays = LAYERS[name]
    compare_layer(make, arrays, dtype)


@pytest.mark.parametrize(
    "name", ["Embedding, padding", "EmbeddingBag, ends", "LSTM", "Attention, extra", "Mish"]
)
def test_layer_on_devices(name: str, device: str) -> None:
    """Generated kernels give the same."""
    make, arrays = LAYERS[name]
    compare_layer(make, arrays, "float32", device)


MASK = np.triu(np.ones((5, 5), bool), 1)
PADDED = np.array([[False] * 5, [False, False, False, True, True]])


@pytest.mark.parametrize("average", [True, False])
def test_masked_attention(average: bool) -> None:
    """Hidden pairs and padded keys, bool or added."""
    for mask in (MASK, np.where(MASK, -np.inf, 0.0)):
        layer = nn.MultiheadAttention(6, 2, device="cpu", dtype=tc.float64)
        twin = torch.nn.MultiheadAttention(6, 2, dtype=torch.float64)
        twin.load_state_dict(
            {k: torch.tensor(v.numpy().copy()) for k, v in layer.state_dict().items()}
        )
        padding = PADDED if mask.dtype == bool else np.where(PADDED, -np.inf, 0.0)
        found = []
        for module, make in ((layer, lambda a: tc.tensor(a, device="cpu")), (twin, torch.tensor)):
            x = make(SEQUENCE)
            output, weights = module(
                x, x, x, attn_mask=make(mask), key_padding_mask=make(padding),
                average_attn_weights=average,
            )  # fmt: skip
            found.append((output.detach().numpy(), weights.detach().numpy()))
        for ours, theirs in zip(*found):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


QUERY, KEY, VALUE = real(2, 4, 5, 3), real(2, 4, 7, 3), real(2, 4, 7, 6)
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "attention": (lambda F, q, k, v: F.scaled_dot_product_attention(q, k, v), (QUERY, KEY, VALUE)),
    "attention, causal": (
        lambda F, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (QUERY, KEY, VALUE)),
    "attention, added": (
        lambda F, q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, scale=0.3),
        (QUERY, KEY, VALUE, real(5, 7))),
    "attention, seen": (
        lambda F, q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        (QUERY, KEY, VALUE, np.arange(35).reshape(5, 7) % 3 > 0)),
    "attention, fewer keys": (
        lambda F, q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (QUERY, KEY[:, :2], VALUE[:, :2])),
    **{
        f"grid_sample, {mode}, {padding}, {aligned}": (
            lambda F, x, g, m=mode, p=padding, a=aligned: F.grid_sample(
                x, g, m, p, align_corners=a),
            (IMAGES, real(2, 5, 3, 2) * 0.8))
        for mode in ("bilinear", "nearest")
        for padding in ("zeros", "border")
        for aligned in (False, True)
    },
    "affine_grid": (
        lambda F, t: F.affine_grid(t, (2, 3, 4, 5), align_corners=False), (real(2, 2, 3),)),
    "affine_grid, aligned": (
        lambda F, t: F.affine_grid(t, (2, 3, 4, 3), align_corners=True), (real(2, 2, 3),)),
    **{
        f"{name}": (lambda F, x, n=name, r=rest: getattr(F, n)(x * 1.5, *r), (KINKS,))
        for name, rest in (
            ("relu_", ()), ("leaky_relu_", (0.3,)), ("elu_", ()), ("selu_", ()), ("celu_", (1.5,)),
            ("hardtanh_", ()), ("threshold_", (0.5, 2.0)),
        )
    },
    "cosine_similarity": (
        lambda F, a, b: F.cosine_similarity(a, b), (real(4, 5), real(4, 5, seed=1))),
    "pairwise_distance": (
        lambda F, a, b: F.pairwise_distance(a, b, keepdim=True), (real(4, 5), real(4, 5, seed=1))),
    "normalize": (lambda F, a: F.normalize(a, p=3.0), (real(4, 5),)),
    "embedding_bag, weights": (
        lambda F, i, w, s: F.embedding_bag(i, w, mode="sum", per_sample_weights=s),
        (WORDS, real(7, 3), real(3, 4))),
    **{
        f"interpolate, {mode}, {size or factor}, {aligned}": (
            lambda F, x, m=mode, s=size, f=factor, a=aligned: F.interpolate(
                x, s, f, m, align_corners=a),
            (real(2, 3, *{"linear": (6,), "trilinear": (3, 4, 5)}.get(mode, (6, 5))),))
        for mode, size, factor, aligned in [
            ("nearest", (9, 13), None, None), ("nearest", (4, 3), None, None),
            ("nearest", None, 1.7, None), ("nearest", None, 3, None),
            ("nearest-exact", (9, 13), None, None), ("nearest-exact", (4, 3), None, None),
            ("area", (3, 4), None, None), ("linear", 11, None, False), ("linear", 4, None, True),
            ("bilinear", (9, 13), None, False), ("bilinear", (9, 13), None, True),
            ("bilinear", (4, 3), None, False), ("bilinear", None, (1.7, 0.6), False),
            ("bilinear", (1, 1), None, True), ("bicubic", (9, 13), None, False),
            ("bicubic", (4, 3), None, True), ("bicubic", None, 1.7, False),
            ("trilinear", (5, 2, 9), None, False),
        ]
    },
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str, dtype: str) -> None:
    function, arrays = FUNCTIONS[name]
    compare(function, arrays, dtype)


@pytest.mark.parametrize(
    "make",
    [lambda: nn.Dropout2d(0.3), lambda: nn.Dropout1d(0.3), lambda: nn.AlphaDropout(0.3)],
    ids=["Dropout2d", "Dropout1d", "AlphaDropout"],
)
def test_dropout(make: Callable[[], Any]) -> None:
    """Mean and variance stay; channels are dropped whole; evaluation changes nothing."""
    layer = make()
    shape = (200, 100, 3, 3) if isinstance(layer, nn.Dropout2d) else (200, 100, 9)
    x = tc.randn(*shape, device="cpu")
    y = layer(x)
    assert abs(y.mean().item() - x.mean().item()) < 0.02
    if isinstance(layer, nn.AlphaDropout):
        assert abs(y.var().item() - 1.0) < 0.03
    else:
        zeros = (y == 0).reshape(200, 100, 9).to(tc.float32).mean(2)
        assert set(zeros.unique().tolist()) == {0.0, 1.0}
        assert abs(zeros.mean().item() - 0.3) < 0.01
        kept = y[(y != 0)] / x[(y != 0)]
        np.testing.assert_allclose(kept.numpy(), 1 / 0.7, rtol=1e-5)
    assert layer.eval()(x) is x


def test_rrelu_and_gumbel_draw() -> None:
    x = tc.full((1000,), -1.0, device="cpu")
    slopes = -nn.functional.rrelu(x, 0.2, 0.6, training=True)
    assert 0.2 <= slopes.min().item() < slopes.max().item() <= 0.6
    logits = tc.tensor([[0.0, 1.0, 2.0]], device="cpu").log_softmax(-1).repeat(20000, 1)
    drawn = nn.functional.gumbel_softmax(logits, hard=True)
    np.testing.assert_allclose(
        drawn.mean(0).numpy(), logits[0].exp().numpy(), atol=0.015
    )  # fmt: skip
