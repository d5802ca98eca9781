"""Encoder and decoder layers of the transformer (Vaswani et al., 2017), and their stacks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.nn import functional, init
from tinygrad_cuda.nn.attention import MultiheadAttention
from tinygrad_cuda.nn.container import ModuleList
from tinygrad_cuda.nn.dropout import Dropout
from tinygrad_cuda.nn.linear import Linear
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.nn.normalization import LayerNorm
from tinygrad_cuda.tensors.creation import full
from tinygrad_cuda.tensors.shaping import triu
from tinygrad_cuda.tensors.tensor import Tensor

Activation = Callable[[Tensor], Tensor]


def _activation(given: str | Activation) -> Activation:
    named: dict[str, Activation] = {"relu": functional.relu, "gelu": functional.gelu}
    if isinstance(given, str):
        if given not in named:
            raise ArgumentError(
                "Transformer", "unknown activation", expect="'relu', 'gelu' or a function",
                actual=repr(given),
            )  # fmt: skip
        return named[given]
    return given


class _TransformerLayer(Module):
    """What both layers have: parameters, self-attention and the feed-forward block."""

    _cross_attention = False

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: str | Activation = "relu", layer_norm_eps: float = 1e-5,
        batch_first: bool = False, norm_first: bool = False, bias: bool = True,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        own: dict[str, Any] = {"device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout, bias, batch_first=batch_first, **own
        )
        if self._cross_attention:
            self.multihead_attn = MultiheadAttention(
                d_model, nhead, dropout, bias, batch_first=batch_first, **own
            )
        self.linear1 = Linear(d_model, dim_feedforward, bias, **own)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, **own)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, **own)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, **own)
        if self._cross_attention:
            self.norm3 = LayerNorm(d_model, layer_norm_eps, bias=bias, **own)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        if self._cross_attention:
            self.dropout3 = Dropout(dropout)
        self.activation = _activation(activation)

    # Subclasses override the blocks, as in PyTorch.

    def _sa_block(
        self, x: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None,
        is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        mixed = self.self_attn(
            x, x, x, key_padding_mask=key_padding_mask, need_weights=False, attn_mask=attn_mask,
            is_causal=is_causal,
        )[0]  # fmt: skip
        result: Tensor = self.dropout1(mixed)
        return result

    def _ff_block(self, x: Tensor) -> Tensor:
        inner = self.dropout(self.activation(self.linear1(x)))
        last = self.dropout3 if self._cross_attention else self.dropout2
        result: Tensor = last(self.linear2(inner))
        return result


class TransformerEncoderLayer(_TransformerLayer):
    """Self-attention and two linear layers, each with a residual connection and a layer norm.

    Args:
        d_model: the width.
        nhead: how many heads.
        dim_feedforward: the width between the two linear layers.
        dropout: the probability of a zero, in the layer's four dropouts.
        activation: ``relu``, ``gelu`` or a function.
        layer_norm_eps: added to the variance.
        batch_first: (N, L, E) instead of (L, N, E).
        norm_first: normalize before, not after, each part.
        bias: whether the linear maps and norms have one.
        device, dtype: of the parameters.

    Example:
        >>> import tinygrad_cuda as tc
        >>> layer = TransformerEncoderLayer(8, 2, 16, batch_first=True, device="cpu")
        >>> layer(tc.rand(3, 5, 8, device="cpu")).shape
        Size([3, 5, 8])
    """

    def forward(
        self, src: Tensor, src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None, is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """The layer's output, of src's shape; masks as for `MultiheadAttention`."""
        masks = (src_mask, src_key_padding_mask, is_causal)
        if self.norm_first:
            src = src + self._sa_block(self.norm1(src), *masks)
            return src + self._ff_block(self.norm2(src))
        src = self.norm1(src + self._sa_block(src, *masks))
        result: Tensor = self.norm2(src + self._ff_block(src))
        return result


class TransformerDecoderLayer(_TransformerLayer):
    """Self-attention, attention to the encoder's output, and two linear layers.

    Args as for `TransformerEncoderLayer`.
    """

    _cross_attention = True

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None, tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None, tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """The layer's output, of tgt's shape; masks as for `MultiheadAttention`."""
        own = (tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        masks = (memory, memory_mask, memory_key_padding_mask, memory_is_causal)
        x = tgt
        if self.norm_first:
            x = x + self._sa_block(self.norm1(x), *own)
            x = x + self._mha_block(self.norm2(x), *masks)
            return x + self._ff_block(self.norm3(x))
        x = self.norm1(x + self._sa_block(x, *own))
        x = self.norm2(x + self._mha_block(x, *masks))
        result: Tensor = self.norm3(x + self._ff_block(x))
        return result

    def _mha_block(
        self, x: Tensor, mem: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None,
        is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        mixed = self.multihead_attn(
            x, mem, mem, attn_mask=attn_mask, is_causal=is_causal,
            key_padding_mask=key_padding_mask, need_weights=False,
        )[0]  # fmt: skip
        result: Tensor = self.dropout2(mixed)
        return result


def _copies(layer: Module, count: int) -> ModuleList:
    return ModuleList([copy.deepcopy(layer) for _ in range(count)])


class TransformerEncoder(Module):
    """`num_layers` copies of an encoder layer, and a norm at the end."""

    def __init__(
        self, encoder_layer: Module, num_layers: int, norm: Module | None = None,
        enable_nested_tensor: bool = True, mask_check: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.layers = _copies(encoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:  # fmt: skip
        """src through all layers; masks as for `MultiheadAttention`."""
        for layer in self.layers:
            src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask)
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """`num_layers` copies of a decoder layer, and a norm at the end."""

    def __init__(
        self, decoder_layer: Module, num_layers: int, norm: Module | None = None
    ) -> None:  # fmt: skip
        super().__init__()
        self.layers = _copies(decoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None, tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None, tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """tgt through all layers; masks as for `MultiheadAttention`."""
        for layer in self.layers:
            tgt = layer(
                tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
            )  # fmt: skip
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """An encoder and a decoder with PyTorch's defaults."""

    def __init__(
        self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6,
        num_decoder_layers: int = 6, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: str | Activation = "relu", custom_encoder: Any = None,
        custom_decoder: Any = None, layer_norm_eps: float = 1e-5, batch_first: bool = False,
        norm_first: bool = False, bias: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        options: dict[str, Any] = {
            "dim_feedforward": dim_feedforward, "dropout": dropout, "activation": activation,
            "layer_norm_eps": layer_norm_eps, "batch_first": batch_first,
            "norm_first": norm_first, "bias": bias, "device": device, "dtype": dtype,
        }  # fmt: skip

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype)

        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(d_model, nhead, **options), num_encoder_layers, norm()
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(d_model, nhead, **options), num_decoder_layers, norm()
        )
        self._reset_parameters()
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    def _reset_parameters(self) -> None:
        """Matrices from Xavier's uniform distribution; PyTorch's name, which models call."""
        for parameter in self.parameters():
            if parameter.ndim > 1:
                init.xavier_uniform_(parameter)

    def forward(
        self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None, tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """The decoder's output for tgt, given the encoder's for src."""
        memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask)
        result: Tensor = self.decoder(
            tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
        )  # fmt: skip
        return result

    @staticmethod
    def generate_square_subsequent_mask(
        sz: int, device: Any = None, dtype: Any = None
    ) -> Tensor:  # fmt: skip
        """A mask (sz, sz) with -inf above the diagonal and 0 elsewhere."""
        return triu(full((sz, sz), -float("inf"), device=device, dtype=dtype), 1)


_get_clones, _get_activation_fn = _copies, _activation  # PyTorch's names
_generate_square_subsequent_mask = Transformer.generate_square_subsequent_mask
