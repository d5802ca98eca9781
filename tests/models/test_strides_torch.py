"""Strides of results for inputs of every layout, against torch; no value is computed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")

Program = Callable[[Any, Any], Any]
Layout = Callable[[Any], Any]


def _line(lib: Any, *shape: int) -> Any:
    count = 1
    for size in shape:
        count *= size
    options = {"device": "cpu"} if lib is tc else {}
    return (lib.arange(float(count), **options) / count - 0.4).reshape(shape)


MATRICES: dict[str, Layout] = {
    "rows": lambda lib: _line(lib, 4, 6),
    "columns": lambda lib: _line(lib, 6, 4).t(),
    "every second": lambda lib: _line(lib, 8, 12)[::2, ::2],
    "expanded": lambda lib: _line(lib, 4, 1).expand(4, 6),
    "one row": lambda lib: _line(lib, 1, 6),
    "one column": lambda lib: _line(lib, 6, 1).t(),
}
LINES: dict[str, Layout] = {
    "rows": lambda lib: _line(lib, 2, 4, 6),
    "channels last": lambda lib: _line(lib, 2, 6, 4).transpose(1, 2),
    "reversed": lambda lib: _line(lib, 6, 4, 2).permute(2, 1, 0),
    "batch inside": lambda lib: _line(lib, 4, 2, 6).transpose(0, 1),
    "every second": lambda lib: _line(lib, 2, 8, 12)[:, ::2, ::2],
    "expanded": lambda lib: _line(lib, 2, 1, 6).expand(2, 4, 6),
    "one example": lambda lib: _line(lib, 1, 6, 4).transpose(1, 2),
}
IMAGES: dict[str, Layout] = {
    "rows": lambda lib: _line(lib, 2, 4, 6, 8),
    "channels last": lambda lib: _line(lib, 2, 6, 8, 4).permute(0, 3, 1, 2),
    "memory format": lambda lib: _line(lib, 2, 4, 6, 8).to(memory_format=lib.channels_last),
    "transposed": lambda lib: _line(lib, 2, 4, 8, 6).transpose(2, 3),
    "batch inside": lambda lib: _line(lib, 4, 2, 6, 8).transpose(0, 1),
    "reversed": lambda lib: _line(lib, 8, 6, 4, 2).permute(3, 2, 1, 0),
    "every second": lambda lib: _line(lib, 2, 8, 6, 16)[:, ::2, :, ::2],
    "part of channels last": lambda lib: _line(lib, 2, 6, 8, 8).permute(0, 3, 1, 2)[:, :4],
    "expanded": lambda lib: _line(lib, 2, 1, 6, 8).expand(2, 4, 6, 8),
    "one example": lambda lib: _line(lib, 1, 6, 8, 4).permute(0, 3, 1, 2),
    "one pixel": lambda lib: _line(lib, 2, 1, 1, 4).permute(0, 3, 1, 2),
}
VOLUMES: dict[str, Layout] = {
    "rows": lambda lib: _line(lib, 2, 4, 4, 6, 4),
    "channels last": lambda lib: _line(lib, 2, 4, 4, 6, 4).to(memory_format=lib.channels_last_3d),
    "reversed": lambda lib: _line(lib, 4, 6, 4, 4, 2).permute(4, 3, 2, 1, 0),
}


def _weight(lib: Any, *shape: int) -> Any:
    return _line(lib, *shape)


def F(lib: Any) -> Any:
    """The functional module of either library."""
    return lib.nn.functional


ANY: dict[str, Program] = {
    "relu": lambda lib, x: F(lib).relu(x),
    "relu6": lambda lib, x: F(lib).relu6(x),
    "elu": lambda lib, x: F(lib).elu(x),
    "selu": lambda lib, x: F(lib).selu(x),
    "celu": lambda lib, x: F(lib).celu(x),
    "gelu": lambda lib, x: F(lib).gelu(x),
    "gelu tanh": lambda lib, x: F(lib).gelu(x, approximate="tanh"),
    "silu": lambda lib, x: F(lib).silu(x),
    "mish": lambda lib, x: F(lib).mish(x),
    "softplus": lambda lib, x: F(lib).softplus(x),
    "softsign": lambda lib, x: F(lib).softsign(x),
    "hardtanh": lambda lib, x: F(lib).hardtanh(x),
    "hardswish": lambda lib, x: F(lib).hardswish(x),
    "hardsigmoid": lambda lib, x: F(lib).hardsigmoid(x),
    "leaky_relu": lambda lib, x: F(lib).leaky_relu(x),
    "logsigmoid": lambda lib, x: F(lib).logsigmoid(x),
    "tanhshrink": lambda lib, x: F(lib).tanhshrink(x),
    "hardshrink": lambda lib, x: F(lib).hardshrink(x),
    "softshrink": lambda lib, x: F(lib).softshrink(x),
    "threshold": lambda lib, x: F(lib).threshold(x, 0.1, 0.2),
    "glu": lambda lib, x: F(lib).glu(x, -1),
    "glu 1": lambda lib, x: F(lib).glu(x, 1) if x.shape[1] % 2 == 0 else x,
    "softmax": lambda lib, x: F(lib).softmax(x, -1),
    "softmax 1": lambda lib, x: F(lib).softmax(x, 1),
    "softmin": lambda lib, x: F(lib).softmin(x, 0),
    "log_softmax": lambda lib, x: F(lib).log_softmax(x, 1),
    "normalize": lambda lib, x: F(lib).normalize(x),
    "dropout off": lambda lib, x: F(lib).dropout(x, 0.5, False),
    "dropout": lambda lib, x: F(lib).dropout(x, 0.5, True),
    "alpha_dropout": lambda lib, x: F(lib).alpha_dropout(x, 0.5, True),
    "rms_norm": lambda lib, x: F(lib).rms_norm(x, x.shape[-1:]),
    "layer_norm": lambda lib, x: F(lib).layer_norm(x, x.shape[-1:]),
    "layer_norm weight": lambda lib, x: F(lib).layer_norm(
        x, x.shape[1:], _weight(lib, *x.shape[1:]), _weight(lib, *x.shape[1:])
    ),
    "batch_norm": lambda lib, x: F(lib).batch_norm(x, None, None, training=True),
    "batch_norm eval": lambda lib, x: F(lib).batch_norm(
        x, _weight(lib, x.shape[1]), _weight(lib, x.shape[1]) + 2
    ),
    "batch_norm affine": lambda lib, x: F(lib).batch_norm(
        x, None, None, _weight(lib, x.shape[1]), _weight(lib, x.shape[1]), training=True
    ),
    "prelu": lambda lib, x: F(lib).prelu(x, _weight(lib, x.shape[1])),
    "prelu one": lambda lib, x: F(lib).prelu(x, _weight(lib, 1)),
    "group_norm": lambda lib, x: F(lib).group_norm(x, 2) if x.shape[1] % 2 == 0 else x,
    "group_norm affine": lambda lib, x: F(lib).group_norm(
        x, x.shape[1], _weight(lib, x.shape[1]), _weight(lib, x.shape[1])
    ),
    "linear": lambda lib, x: F(lib).linear(x, _weight(lib, 3, x.shape[-1])),
    "linear bias": lambda lib, x: F(lib).linear(x, _weight(lib, 3, x.shape[-1]), _weight(lib, 3)),
    "add scalar": lambda lib, x: x + 1,
    "add itself": lambda lib, x: x + x,
    "add rows": lambda lib, x: x + _line(lib, *x.shape),
    "rows add": lambda lib, x: _line(lib, *x.shape) + x,
    "add 0-d": lambda lib, x: x + _line(lib, 1)[0],
    "add row": lambda lib, x: x + _line(lib, x.shape[-1]),
    "row add": lambda lib, x: _line(lib, x.shape[-1]) * x,
    "add keepdim": lambda lib, x: x + x.mean(1, keepdim=True),
    "keepdim sub": lambda lib, x: x.mean(0, keepdim=True) - x,
    "outer": lambda lib, x: x.unsqueeze(0) * x.unsqueeze(1),
    "with transposed": lambda lib, x: x.unsqueeze(-1) + x.unsqueeze(-2),
    "compare": lambda lib, x: x > 0,
    "where": lambda lib, x: lib.where(x > 0, x, -x),
    "where rows": lambda lib, x: lib.where(_line(lib, *x.shape) > 0, x, 0.0),
    "clamp": lambda lib, x: x.clamp(-1, 1),
    "clamp tensor": lambda lib, x: x.clamp(min=_line(lib, *x.shape)),
    "lerp": lambda lib, x: lib.lerp(x, x * 2, 0.3),
    "lerp rows": lambda lib, x: lib.lerp(x, _line(lib, *x.shape), 0.3),
    "lerp tensor": lambda lib, x: lib.lerp(x, x * 2, x),
    "lerp tensor rows": lambda lib, x: lib.lerp(_line(lib, *x.shape), x, x),
    "addcmul": lambda lib, x: lib.addcmul(x, x, x),
    "addcmul rows": lambda lib, x: lib.addcmul(_line(lib, *x.shape), x, x),
    "addcmul 0-d": lambda lib, x: lib.addcmul(_line(lib, 1)[0], x, x),
    "addcdiv": lambda lib, x: lib.addcdiv(x, x, x + 3),
    "addcdiv rows": lambda lib, x: lib.addcdiv(_line(lib, x.shape[-1]), x, x + 3),
    "pow": lambda lib, x: x**2,
    "rpow": lambda lib, x: 2**x,
    "pow tensor": lambda lib, x: lib.pow(2, x),
    "ldexp": lambda lib, x: lib.ldexp(x, x.int()),
    "atan2": lambda lib, x: lib.atan2(x, x),
    "hypot": lambda lib, x: lib.hypot(x, x),
    "floor_divide": lambda lib, x: x // 2,
    "remainder": lambda lib, x: x % 2,
    "fmod": lambda lib, x: lib.fmod(x, 2),
    "maximum": lambda lib, x: lib.maximum(x, _line(lib, *x.shape)),
    "copysign": lambda lib, x: lib.copysign(x, -1.0),
    "logaddexp": lambda lib, x: lib.logaddexp(x, x),
    "xlogy": lambda lib, x: lib.xlogy(x, x + 2),
    "nan_to_num": lambda lib, x: x.nan_to_num(),
    "isclose": lambda lib, x: lib.isclose(x, x),
    "isnan": lambda lib, x: x.isnan(),
    "sign": lambda lib, x: x.sign(),
    "erf": lambda lib, x: x.erf(),
    "to half": lambda lib, x: x.half(),
    "to long": lambda lib, x: x.long(),
    "clone": lambda lib, x: x.clone(),
    "contiguous": lambda lib, x: x.contiguous(),
    "zeros_like": lambda lib, x: lib.zeros_like(x),
    "empty_like": lambda lib, x: lib.empty_like(x),
    "full_like": lambda lib, x: lib.full_like(x, 2),
    "rand_like": lambda lib, x: lib.rand_like(x),
    "masked_fill": lambda lib, x: x.masked_fill(x > 0, 0),
    "masked_fill rows": lambda lib, x: x.masked_fill(_line(lib, *x.shape) > 0, 0),
    "masked_scatter": lambda lib, x: x.masked_scatter(x > 0, x),
    "sum": lambda lib, x: x.sum(-1),
    "sum 0": lambda lib, x: x.sum(0),
    "sum keepdim": lambda lib, x: x.sum(1, keepdim=True),
    "mean two": lambda lib, x: x.mean((0, -1)),
    "mean two keepdim": lambda lib, x: x.mean((0, 1), keepdim=True),
    "amax": lambda lib, x: x.amax(-1),
    "amax keepdim": lambda lib, x: x.amax(0, keepdim=True),
    "max": lambda lib, x: x.max(1),
    "max keepdim": lambda lib, x: x.max(0, keepdim=True),
    "min": lambda lib, x: x.min(-1),
    "argmax": lambda lib, x: x.argmax(1),
    "argmax keepdim": lambda lib, x: x.argmax(0, keepdim=True),
    "prod": lambda lib, x: x.prod(1),
    "var": lambda lib, x: x.var(1),
    "var keepdim": lambda lib, x: x.var(0, keepdim=True),
    "var_mean": lambda lib, x: lib.var_mean(x, 1),
    "std": lambda lib, x: x.std(-1),
    "norm": lambda lib, x: x.norm(dim=1),
    "norm keepdim": lambda lib, x: x.norm(dim=0, keepdim=True),
    "logsumexp": lambda lib, x: x.logsumexp(1),
    "any": lambda lib, x: (x > 0).any(1),
    "all": lambda lib, x: (x > 0).all(-1),
    "count_nonzero": lambda lib, x: x.count_nonzero(1),
    "median": lambda lib, x: x.median(1),
    "mode": lambda lib, x: x.mode(0),
    "kthvalue": lambda lib, x: x.kthvalue(1, 0),
    "quantile": lambda lib, x: x.quantile(0.5, 1),
    "cumsum": lambda lib, x: x.cumsum(1),
    "cumprod": lambda lib, x: x.cumprod(-1),
    "cummax": lambda lib, x: x.cummax(0),
    "logcumsumexp": lambda lib, x: x.logcumsumexp(1),
    "sort": lambda lib, x: x.sort(1),
    "argsort": lambda lib, x: x.argsort(0),
    "topk": lambda lib, x: x.topk(1, 1),
    "flip": lambda lib, x: x.flip(0),
    "roll": lambda lib, x: x.roll(1, 0),
    "rot90": lambda lib, x: x.rot90(),
    "tril": lambda lib, x: x.tril(),
    "diff": lambda lib, x: x.diff(dim=-1),
    "diff 0": lambda lib, x: x.diff(dim=0),
    "diff twice": lambda lib, x: x.diff(n=2, dim=-1),
    "diff none": lambda lib, x: x.diff(n=0),
    "diff bool": lambda lib, x: (x > 0).diff(dim=1),
    "cat": lambda lib, x: lib.cat([x, x], 0),
    "cat 1": lambda lib, x: lib.cat([x, x, x], 1),
    "cat with rows": lambda lib, x: lib.cat([x, _line(lib, *x.shape)], 1),
    "cat rows with": lambda lib, x: lib.cat([_line(lib, *x.shape), x], 1),
    "cat one": lambda lib, x: lib.cat([x], 0),
    "stack": lambda lib, x: lib.stack([x, x], 0),
    "stack 1": lambda lib, x: lib.stack([x, x], 1),
    "stack last": lambda lib, x: lib.stack([x, x], -1),
    "hstack": lambda lib, x: lib.hstack([x, x]),
    "vstack": lambda lib, x: lib.vstack([x, x]),
    "dstack": lambda lib, x: lib.dstack([x, x]),
    "pad": lambda lib, x: F(lib).pad(x, (1, 1)),
    "pad two": lambda lib, x: F(lib).pad(x, (1, 1, 1, 0)),
    "pad none": lambda lib, x: F(lib).pad(x, (0, 0)),
    "pad cut": lambda lib, x: F(lib).pad(x, (-1, 0)),
    "repeat": lambda lib, x: x.repeat(*[2] * x.dim()),
    "tile": lambda lib, x: x.tile((2,)),
    "repeat_interleave": lambda lib, x: x.repeat_interleave(2, 1),
    "index_select": lambda lib, x: x.index_select(1, lib.arange(2)),
    "gather": lambda lib, x: x.gather(1, lib.zeros_like(x).long()),
    "take_along_dim": lambda lib, x: lib.take_along_dim(x, x.argsort(1), 1),
    "index": lambda lib, x: x[lib.arange(x.shape[0])],
    "index 1": lambda lib, x: x[:, [0, 0]],
    "index two": lambda lib, x: x[[0, 0], [1, 0]],
    "index last": lambda lib, x: x[..., lib.tensor([0, 0])],
    "index matrix": lambda lib, x: x[:, lib.tensor([[0, 1, 0], [0, 0, 1]])],
    "indexed by": lambda lib, x: _line(lib, 9)[x.long()],
    "indexed by two": lambda lib, x: _line(lib, 9, 9)[x.long(), x.long() * 0],
    "rows indexed by": lambda lib, x: _line(lib, 9, 2)[x.long()],
    "indexed by x and rows": lambda lib, x: _line(lib, 9, 9)[_line(lib, *x.shape).long(), x.long()],
    "scatter": lambda lib, x: x.scatter(1, lib.zeros_like(x).long(), x),
    "scatter_add": lambda lib, x: x.scatter_add(1, lib.zeros_like(x).long(), x),
    "index_add": lambda lib, x: x.index_add(0, lib.arange(x.shape[0]), x),
    "index_fill": lambda lib, x: x.index_fill(1, lib.tensor([0]), 1.0),
    "index_copy": lambda lib, x: x.index_copy(0, lib.arange(x.shape[0]), x),
    "select_scatter": lambda lib, x: x.select_scatter(x[:, 0], 1, 0),
    "slice_scatter": lambda lib, x: x.slice_scatter(x[:1], 0, 0, 1),
    "diagonal_scatter": lambda lib, x: x.diagonal_scatter(x.diagonal()),
    "flatten": lambda lib, x: x.flatten(),
    "flatten 1": lambda lib, x: x.flatten(1),
    "ravel": lambda lib, x: x.ravel(),
    "reshape": lambda lib, x: x.reshape(-1, x.shape[-1]),
    "unfold": lambda lib, x: x.unfold(1, 1, 1),
    "mse_loss": lambda lib, x: F(lib).mse_loss(x, _line(lib, *x.shape), reduction="none"),
    "mse_loss itself": lambda lib, x: F(lib).mse_loss(x, x, reduction="none"),
    "l1_loss": lambda lib, x: F(lib).l1_loss(x, x, reduction="none"),
    "smooth_l1_loss": lambda lib, x: F(lib).smooth_l1_loss(x, x, reduction="none"),
    "huber_loss": lambda lib, x: F(lib).huber_loss(x, x, reduction="none"),
    "binary_cross_entropy": lambda lib, x: F(lib).binary_cross_entropy(
        x.sigmoid(), x.sigmoid(), reduction="none"
    ),
    "bce_with_logits": lambda lib, x: F(lib).binary_cross_entropy_with_logits(
        x, x.sigmoid(), reduction="none"
    ),
    "bce_with_logits of rows": lambda lib, x: F(lib).binary_cross_entropy_with_logits(
        _line(lib, *x.shape), x.sigmoid(), reduction="none"
    ),
    "bce_with_logits, targets in rows": lambda lib, x: F(lib).binary_cross_entropy_with_logits(
        x, _line(lib, *x.shape).sigmoid(), reduction="none"
    ),
    "kl_div": lambda lib, x: F(lib).kl_div(x, x.exp(), reduction="none"),
    "soft_margin_loss": lambda lib, x: F(lib).soft_margin_loss(x, x.sign(), reduction="none"),
    "soft_margin_loss rows": lambda lib, x: F(lib).soft_margin_loss(
        x, _line(lib, *x.shape), reduction="none"
    ),
    "poisson_nll_loss": lambda lib, x: F(lib).poisson_nll_loss(x, x.exp(), reduction="none"),
    "gaussian_nll_loss": lambda lib, x: F(lib).gaussian_nll_loss(x, x, x.exp(), reduction="none"),
    "hinge_embedding_loss": lambda lib, x: F(lib).hinge_embedding_loss(
        x, x.sign(), reduction="none"
    ),
    "margin_ranking_loss": lambda lib, x: F(lib).margin_ranking_loss(
        x, x, x.sign(), reduction="none"
    ),
    "cosine_similarity": lambda lib, x: F(lib).cosine_similarity(x, x, 1),
    "pairwise_distance": lambda lib, x: F(lib).pairwise_distance(x, x),
    "multilabel_soft_margin_loss": lambda lib, x: F(lib).multilabel_soft_margin_loss(
        x, x.sigmoid(), reduction="none"
    ),
    "matmul": lambda lib, x: x @ _line(lib, x.shape[-1], 3),
    "matmul left": lambda lib, x: _line(lib, 3, x.shape[-2]) @ x,
    "matmul itself": lambda lib, x: x @ x.mT,
    "one_hot": lambda lib, x: F(lib).one_hot(x.long().abs(), 4),
    "embedding": lambda lib, x: F(lib).embedding(x.long().abs(), _line(lib, 4, 3)),
    "bucketize": lambda lib, x: lib.bucketize(x, lib.tensor([0.0, 0.3])),
    "isin": lambda lib, x: lib.isin(x, lib.tensor([0.0, 0.3])),
    "frexp": lambda lib, x: lib.frexp(x),
    "gradient": lambda lib, x: lib.gradient(x, dim=0) if x.shape[0] > 2 else x,
    "renorm": lambda lib, x: x.renorm(2, 0, 1.0),
    "cdist": lambda lib, x: lib.cdist(x, x),
    "trapezoid": lambda lib, x: lib.trapezoid(x, dim=-1),
    "cumulative_trapezoid": lambda lib, x: lib.cumulative_trapezoid(x, dim=-1),
    "expit": lambda lib, x: lib.special.expit(x),
    "bernoulli": lambda lib, x: lib.bernoulli(x.sigmoid()),
    "round": lambda lib, x: x.round(decimals=1),
    "detach": lambda lib, x: x.detach(),
    "movedim": lambda lib, x: x.movedim(0, -1),
    "unflatten": lambda lib, x: x.unflatten(0, (1, -1)),
    "squeeze": lambda lib, x: x.squeeze(),
    "unsqueeze": lambda lib, x: x.unsqueeze(1),
    "chunk": lambda lib, x: x.chunk(2, 1),
    "gumbel_softmax": lambda lib, x: F(lib).gumbel_softmax(x),
    "type_as": lambda lib, x: x.type_as(x.double()),
    "new_zeros": lambda lib, x: x.new_zeros(x.shape),
    "view_as": lambda lib, x: x.view_as(x),
}

LINE: dict[str, Program] = {
    "conv1d": lambda lib, x: F(lib).conv1d(x, _weight(lib, 3, 4, 3), padding=1),
    "conv1d point": lambda lib, x: F(lib).conv1d(x, _weight(lib, 3, 4, 1)),
    "conv_transpose1d": lambda lib, x: F(lib).conv_transpose1d(x, _weight(lib, 4, 3, 3)),
    "max_pool1d": lambda lib, x: F(lib).max_pool1d(x, 2),
    "max_pool1d indices": lambda lib, x: F(lib).max_pool1d(x, 2, return_indices=True),
    "avg_pool1d": lambda lib, x: F(lib).avg_pool1d(x, 2),
    "lp_pool1d": lambda lib, x: F(lib).lp_pool1d(x, 2.0, 2),
    "adaptive_avg_pool1d": lambda lib, x: F(lib).adaptive_avg_pool1d(x, 2),
    "adaptive_max_pool1d": lambda lib, x: F(lib).adaptive_max_pool1d(x, 2),
    "instance_norm": lambda lib, x: F(lib).instance_norm(x),
    "local_response_norm": lambda lib, x: F(lib).local_response_norm(x, 2),
    "interpolate": lambda lib, x: F(lib).interpolate(x, scale_factor=2.0),
    "interpolate linear": lambda lib, x: F(lib).interpolate(
        x, scale_factor=2.0, mode="linear", align_corners=False
    ),
    "pad reflect": lambda lib, x: F(lib).pad(x, (1, 1), mode="reflect"),
    "pad replicate": lambda lib, x: F(lib).pad(x, (1, 1), mode="replicate"),
    "pad circular": lambda lib, x: F(lib).pad(x, (1, 1), mode="circular"),
    "dropout1d": lambda lib, x: F(lib).dropout1d(x, 0.5, True),
    "bmm": lambda lib, x: x.bmm(x.mT),
    "attention": lambda lib, x: F(lib).scaled_dot_product_attention(x, x, x),
    "rnn": lambda lib, x: lib.nn.RNN(6, 3)(x)[0],
    "lstm batch first": lambda lib, x: lib.nn.LSTM(6, 3, batch_first=True)(x)[0],
    "gru": lambda lib, x: lib.nn.GRU(6, 3, batch_first=True)(x)[0],
    "multihead sequence": lambda lib, x: lib.nn.MultiheadAttention(6, 2)(x, x, x),
    "multihead batch first": lambda lib, x: lib.nn.MultiheadAttention(6, 2, batch_first=True)(
        x, x, x
    ),
    "multihead without weights": lambda lib, x: lib.nn.MultiheadAttention(6, 2, batch_first=True)(
        x, x, x, need_weights=False
    )[0],
    "encoder layer": lambda lib, x: lib.nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)(x),
    "cross_entropy": lambda lib, x: F(lib).cross_entropy(
        x, lib.zeros(x.shape[0], 6).long(), reduction="none"
    ),
    "nll_loss": lambda lib, x: F(lib).nll_loss(
        x, lib.zeros(x.shape[0], 6).long(), reduction="none"
    ),
    "fold": lambda lib, x: F(lib).fold(x, (3, 2), (2, 1)) if x.shape[1] == 4 else x,
}
IMAGE: dict[str, Program] = {
    "conv2d": lambda lib, x: F(lib).conv2d(x, _weight(lib, 3, x.shape[1], 1, 1)),
    "conv2d 3": lambda lib, x: F(lib).conv2d(x, _weight(lib, 3, x.shape[1], 3, 3), padding=1),
    "conv2d stride": lambda lib, x: F(lib).conv2d(
        x, _weight(lib, 3, x.shape[1], 3, 3), _weight(lib, 3), 2, 1
    ),
    "conv2d groups": lambda lib, x: F(lib).conv2d(x, _weight(lib, 4, 1, 3, 3), padding=1, groups=4),
    "conv2d weight last": lambda lib, x: F(lib).conv2d(
        x, _weight(lib, 3, x.shape[1], 3, 3).to(memory_format=lib.channels_last), padding=1
    ),
    "conv_transpose2d": lambda lib, x: F(lib).conv_transpose2d(
        x, _weight(lib, x.shape[1], 3, 2, 2)
    ),
    "conv_transpose2d stride": lambda lib, x: F(lib).conv_transpose2d(
        x, _weight(lib, x.shape[1], 3, 2, 2), stride=2
    ),
    "max_pool2d": lambda lib, x: F(lib).max_pool2d(x, 2),
    "max_pool2d indices": lambda lib, x: F(lib).max_pool2d(x, 2, return_indices=True),
    "avg_pool2d": lambda lib, x: F(lib).avg_pool2d(x, 2),
    "lp_pool2d": lambda lib, x: F(lib).lp_pool2d(x, 2.0, 2),
    "adaptive_avg_pool2d": lambda lib, x: F(lib).adaptive_avg_pool2d(x, 2),
    "adaptive_avg_pool2d one": lambda lib, x: F(lib).adaptive_avg_pool2d(x, 1),
    "adaptive_max_pool2d": lambda lib, x: F(lib).adaptive_max_pool2d(x, 2),
    "instance_norm": lambda lib, x: F(lib).instance_norm(x),
    "local_response_norm": lambda lib, x: F(lib).local_response_norm(x, 2),
    "interpolate": lambda lib, x: F(lib).interpolate(x, scale_factor=2.0),
    "interpolate bilinear": lambda lib, x: F(lib).interpolate(
        x, scale_factor=2.0, mode="bilinear", align_corners=False
    ),
    "interpolate bicubic": lambda lib, x: F(lib).interpolate(
        x, scale_factor=2.0, mode="bicubic", align_corners=False
    ),
    "interpolate area": lambda lib, x: F(lib).interpolate(x, size=(3, 4), mode="area"),
    "interpolate same": lambda lib, x: F(lib).interpolate(x, size=tuple(x.shape[2:])),
    "pad reflect": lambda lib, x: F(lib).pad(x, (1, 1, 1, 1), mode="reflect"),
    "pad replicate": lambda lib, x: F(lib).pad(x, (1, 1, 1, 1), mode="replicate"),
    "pad circular": lambda lib, x: F(lib).pad(x, (1, 1, 1, 1), mode="circular"),
    "dropout2d": lambda lib, x: F(lib).dropout2d(x, 0.5, True),
    "pixel_shuffle": lambda lib, x: F(lib).pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda lib, x: F(lib).pixel_unshuffle(x, 2),
    "channel_shuffle": lambda lib, x: F(lib).channel_shuffle(x, 2),
    "unfold": lambda lib, x: F(lib).unfold(x, 2),
    "max_unpool2d": lambda lib, x: F(lib).max_unpool2d(
        *F(lib).max_pool2d(x, 2, return_indices=True), 2
    ),
    "affine_grid": lambda lib, x: F(lib).affine_grid(
        _line(lib, x.shape[0], 2, 3), list(x.shape), align_corners=False
    ),
    "grid_sample": lambda lib, x: F(lib).grid_sample(
        x, _line(lib, x.shape[0], 3, 4, 2), align_corners=False
    ),
    "cross_entropy": lambda lib, x: F(lib).cross_entropy(
        x, lib.zeros(x.shape[0], *x.shape[2:]).long(), reduction="none"
    ),
    "batch norm layer": lambda lib, x: lib.nn.BatchNorm2d(x.shape[1])(x),
    "conv, norm, relu": lambda lib, x: lib.nn.Sequential(
        lib.nn.Conv2d(x.shape[1], 8, 3, padding=1),
        lib.nn.BatchNorm2d(8),
        lib.nn.ReLU(),
        lib.nn.MaxPool2d(2),
        lib.nn.Conv2d(8, 4, 1),
    )(x),
    "module to format": lambda lib, x: lib.nn.Conv2d(4, 3, 3).to(memory_format=lib.channels_last)(
        x
    ),
    "to format": lambda lib, x: x.contiguous(memory_format=lib.channels_last),
    "clone to format": lambda lib, x: x.clone(memory_format=lib.channels_last),
    "zeros_like format": lambda lib, x: lib.zeros_like(x, memory_format=lib.channels_last),
}
VOLUME: dict[str, Program] = {
    "conv3d": lambda lib, x: F(lib).conv3d(x, _weight(lib, 3, 4, 2, 2, 2)),
    "conv_transpose3d": lambda lib, x: F(lib).conv_transpose3d(x, _weight(lib, 4, 3, 2, 2, 2)),
    "max_pool3d": lambda lib, x: F(lib).max_pool3d(x, 2),
    "avg_pool3d": lambda lib, x: F(lib).avg_pool3d(x, 2),
    "adaptive_avg_pool3d": lambda lib, x: F(lib).adaptive_avg_pool3d(x, 2),
    "adaptive_max_pool3d": lambda lib, x: F(lib).adaptive_max_pool3d(x, 2),
    "interpolate": lambda lib, x: F(lib).interpolate(x, scale_factor=2.0),
    "interpolate trilinear": lambda lib, x: F(lib).interpolate(
        x, scale_factor=2.0, mode="trilinear", align_corners=False
    ),
    "instance_norm": lambda lib, x: F(lib).instance_norm(x),
    "pad replicate": lambda lib, x: F(lib).pad(x, (1, 1, 1, 1, 1, 1), mode="replicate"),
    "dropout3d": lambda lib, x: F(lib).dropout3d(x, 0.5, True),
}


def _outputs(found: Any) -> list[Any]:
    if isinstance(found, tuple | list):
        return [x for part in found for x in _outputs(part)]
    return [found]


def _strides(x: Any) -> list[Any]:
    """Those that count: of dimensions of several elements."""
    return [t for n, t in zip(x.shape, x.stride()) if n > 1] if x.numel() else []


def _seen(lib: Any, program: Program, layout: Layout) -> Any:
    try:
        results = _outputs(program(lib, layout(lib)))
    except (RuntimeError, ValueError, IndexError, NotImplementedError):
        return "refused"
    return [(tuple(x.shape), _strides(x)) for x in results]


KINDS: dict[str, tuple[dict[str, Layout], dict[str, Program]]] = {
    "matrix": (MATRICES, ANY),
    "line": (LINES, {**ANY, **LINE}),
    "image": (IMAGES, {**ANY, **IMAGE}),
    "volume": (VOLUMES, {**ANY, **VOLUME}),
}


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    """Nothing is computed, so the device does not matter."""
    before = tc.get_default_device()
    tc.set_default_device("cpu")
    yield
    tc.set_default_device(before)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, (_, table) in KINDS.items() for name in table]
)
def test_strides(kind: str, name: str) -> None:
    layouts, table = KINDS[kind]
    found = {layout: _seen(tc, table[name], make) for layout, make in layouts.items()}
    assert found == {layout: _seen(torch, table[name], make) for layout, make in layouts.items()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", IMAGES)
def test_views_of_results(name: str) -> None:
    """``.view`` is refused where torch refuses it."""
    for table in (ANY, IMAGE):
        for operation, program in table.items():
            seen = []
            for lib in (tc, torch):
                try:
                    result = _outputs(program(lib, IMAGES[name](lib)))[0]
                except (RuntimeError, ValueError, IndexError, NotImplementedError):
                    continue
                try:
                    seen.append((operation, tuple(result.view(-1).shape)))
                except (RuntimeError, ValueError):
                    seen.append((operation, "refused"))
            assert seen[:1] == seen[1:], operation


SINGLE_SHAPES = (
    (2, 1, 4, 5), (2, 3, 1, 5), (2, 3, 4, 1), (2, 3, 1, 1), (1, 3, 4, 1), (2, 1, 1, 5),
    (1, 1, 4, 5), (2, 1, 1, 1),
)  # fmt: skip
SINGLE_LAYOUTS: dict[str, Program] = {
    "channels last": lambda lib, x: x.contiguous(memory_format=lib.channels_last),
    "said to be": lambda lib, x: x.to(memory_format=lib.channels_last),
    "exchanged": lambda lib, x: x.transpose(1, 3).contiguous().transpose(1, 3),
    "reversed": lambda lib, x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
}
SINGLES: dict[str, Program] = {
    "batch_norm": lambda lib, x: lib.nn.functional.batch_norm(x, None, None, training=True),
    "batch_norm by running values": lambda lib, x: lib.nn.functional.batch_norm(
        x, lib.zeros(x.shape[1]), lib.ones(x.shape[1])
    ),
    "smooth_l1_loss": lambda lib, x: lib.nn.functional.smooth_l1_loss(x, x + 1, reduction="none"),
    "smooth_l1_loss of rows": lambda lib, x: lib.nn.functional.smooth_l1_loss(
        x, x.contiguous(), reduction="none"
    ),
    "mse_loss": lambda lib, x: lib.nn.functional.mse_loss(x, x + 1, reduction="none"),
    "mse_loss of rows": lambda lib, x: lib.nn.functional.mse_loss(
        x, x.contiguous(), reduction="none"
    ),
    "hardtanh": lambda lib, x: lib.nn.functional.hardtanh(x),
    "relu6": lambda lib, x: lib.nn.functional.relu6(x),
    "hardtanh of integers": lambda lib, x: lib.nn.functional.hardtanh(x.long()),
    "prelu": lambda lib, x: lib.nn.functional.prelu(x, lib.ones(1)),
    "nan_to_num": lambda lib, x: x.nan_to_num(),
    "nan_to_num of integers": lambda lib, x: x.long().nan_to_num(),
    "pow": lambda lib, x: x**2,
    "pow of the number": lambda lib, x: 2**x,
    "as_strided": lambda lib, x: x.as_strided((1, 2, 1), (5, 1, 9)),
    "as_strided, computed with": lambda lib, x: x.as_strided((2, 1, 1), (1, 7, 9)) + 1,
    "as_strided, copied": lambda lib, x: lib.as_strided_copy(x, (1, 2, 1), (5, 1, 9)),
}


@pytest.mark.parametrize("name", SINGLES)
def test_strides_of_dimensions_of_one_element(name: str) -> None:
    for shape, layout in itertools.product(SINGLE_SHAPES, SINGLE_LAYOUTS.values()):
        found = []
        for lib in (torch, tc):
            x = layout(lib, lib.ones(shape))
            # One element a channel has no variance.
            if name != "batch_norm" or x.numel() > x.shape[1]:
                found.append((tuple(x.stride()), tuple(SINGLES[name](lib, x).stride())))
        assert found[:1] == found[1:], shape
