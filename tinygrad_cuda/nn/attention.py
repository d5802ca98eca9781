"""MultiheadAttention, as a layer with PyTorch's parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.nn import init
from tinygrad_cuda.nn.functional import attention as F
from tinygrad_cuda.nn.linear import Linear
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.nn.parameter import Parameter
from tinygrad_cuda.tensors.creation import empty
from tinygrad_cuda.tensors.layout import fresh, sequence_first_strides
from tinygrad_cuda.tensors.tensor import Tensor


class SDPBackend(Enum):
    """PyTorch's ways to compute attention, by name; here a shape has one kernel."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


@contextmanager
def sdpa_kernel(
    backends: SDPBackend | list[SDPBackend], set_priority: bool = False
) -> Iterator[None]:
    """A block in which some ways are permitted, as in PyTorch; no result depends on it.

    Args:
        backends: one or several.
        set_priority: accepted.

    Raises:
        ArgumentError: something else is given.
    """
    given = backends if isinstance(backends, list | tuple) else [backends]
    if not given or not all(isinstance(backend, SDPBackend) for backend in given):
        raise ArgumentError(
            "sdpa_kernel", "not a way to compute attention", expect="SDPBackend, one or several",
            actual=repr(backends),
        )  # fmt: skip
    yield


class MultiheadAttention(Module):
    """Attention by several heads, each on its own projection of queries, keys and values.

    Args:
        embed_dim: E, the width of queries and of the output.
        num_heads: must divide embed_dim.
        dropout: the probability with which a weight is dropped while training.
        bias: whether the projections have one.
        add_bias_kv: one trained key and value more.
        add_zero_attn: one key and value of zeros more.
        kdim, vdim: widths of keys and values; E when left out.
        batch_first: (N, L, E) instead of (L, N, E).
        device, dtype: of the parameters.

    Raises:
        ArgumentError: num_heads does not divide embed_dim.

    Example:
        >>> import tinygrad_cuda as tc
        >>> layer = MultiheadAttention(8, 2, batch_first=True, device="cpu")
        >>> x = tc.rand(3, 5, 8, device="cpu")
        >>> output, weights = layer(x, x, x)
        >>> output.shape, weights.shape
        (Size([3, 5, 8]), Size([3, 5, 5]))
    """

    in_proj_weight: Parameter | None
    q_proj_weight: Parameter | None
    k_proj_weight: Parameter | None
    v_proj_weight: Parameter | None
    in_proj_bias: Parameter | None
    bias_k: Parameter | None
    bias_v: Parameter | None
    out_proj: Linear

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
        add_bias_kv: bool = False, add_zero_attn: bool = False, kdim: int | None = None,
        vdim: int | None = None, batch_first: bool = False, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ArgumentError(
                "MultiheadAttention", "num_heads must divide embed_dim",
                expect=f"a divisor of {embed_dim}", actual=str(num_heads),
            )  # fmt: skip
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.head_dim = embed_dim // num_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.dropout, self.batch_first, self.add_zero_attn = dropout, batch_first, add_zero_attn
        same = self.kdim == embed_dim and self.vdim == embed_dim
        own = {"device": device, "dtype": dtype}

        def parameter(name: str, wanted: bool, *shape: int) -> None:
            self.register_parameter(name, Parameter(empty(*shape, **own)) if wanted else None)

        if not same:
            parameter("q_proj_weight", True, embed_dim, embed_dim)
            parameter("k_proj_weight", True, embed_dim, self.kdim)
            parameter("v_proj_weight", True, embed_dim, self.vdim)
            parameter("in_proj_weight", False)
        else:
            parameter("in_proj_weight", True, 3 * embed_dim, embed_dim)
            for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
                parameter(name, False)
        parameter("in_proj_bias", bias, 3 * embed_dim)
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        parameter("bias_k", add_bias_kv, 1, 1, embed_dim)
        parameter("bias_v", add_bias_kv, 1, 1, embed_dim)
        self.reset_parameters()

    @property
    def _qkv_same_embed_dim(self) -> bool:
        return self.kdim == self.embed_dim and self.vdim == self.embed_dim

    def reset_parameters(self) -> None:
        """Projections from Xavier's uniform distribution, biases zero."""
        for weight in (
            self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        ):  # fmt: skip
            if weight is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)
        for extra in (self.bias_k, self.bias_v):
            if extra is not None:
                init.xavier_normal_(extra)

    _reset_parameters = reset_parameters  # PyTorch's name, which models call

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
        need_weights: bool = True, attn_mask: Tensor | None = None,
        average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """The attended values and, if asked for, the weights.

        Args:
            query, key, value: shapes (L, N, E), (S, N, kdim), (S, N, vdim), or batch first, or
                without N.
            key_padding_mask: (N, S), True (or -inf, added) at keys that no query sees.
            need_weights: also return the weights, (N, L, S).
            attn_mask: (L, S) or (N * heads, L, S), True (or -inf, added) at hidden pairs.
            average_attn_weights: the mean over heads; otherwise weights are (N, heads, L, S).
            is_causal: a hint that attn_mask is causal; it must be given too.
        """
        if is_causal and attn_mask is None:
            raise ArgumentError(
                "MultiheadAttention", "is_causal is a hint about attn_mask",
                expect="attn_mask too", actual="None",
            )  # fmt: skip
        same = query is key and key is value
        single = query.ndim == 2
        query, key, value = (self._arranged(x, single) for x in (query, key, value))
        if same:
            key = value = query
        if single and key_padding_mask is not None:
            key_padding_mask = key_padding_mask.unsqueeze(0)
        weights = (
            self.in_proj_weight if self.in_proj_weight is not None
            else (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        )  # fmt: skip
        mixed, shares = F.attend_heads(
            query, key, value, self.num_heads, weights, self.in_proj_bias,
            (self.bias_k, self.bias_v), self.add_zero_attn, attn_mask, key_padding_mask,
            self.dropout, self.training, need_weights,
        )  # fmt: skip
        output: Tensor = self.out_proj(mixed)
        if single:
            output = output.squeeze(0)
        elif self.batch_first:
            output = sequence_first_strides(output)
        else:
            output = fresh(output.transpose(0, 1))
        if not need_weights or shares is None:
            return output, None
        shares = shares.squeeze(0) if single else shares
        return output, shares.mean(-3) if average_attn_weights else shares

    def _arranged(self, x: Tensor, single: bool) -> Tensor:
        if single:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)
