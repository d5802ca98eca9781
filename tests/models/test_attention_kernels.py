"""scaled_dot_product_attention and MultiheadAttention of half types: one op where it can be."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
import tinygrad_cuda.nn.functional as F
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.lowering import lower
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel

Array = np.ndarray[Any, Any]
LAST = {"float16": 2.0**-10, "bfloat16": 2.0**-7}  # the share of a number's last place


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """Those of all programs of a test; none that was compiled before is taken."""
    cache.clear()
    made: list[Kernel] = []
    scheduled = lower.scheduled

    def spy(*arguments: Any) -> Any:
        schedule = scheduled(*arguments)
        made.extend(schedule.kernels)
        return schedule

    monkeypatch.setattr(lower, "scheduled", spy)
    return made


def whole(kernels: list[Kernel], queries: int, keys: int) -> list[tuple[int, ...]]:
    """Shapes of stored values that hold a number for each pair of a query and a key."""
    stores = [node.shape for kernel in kernels for node in kernel.stores]
    return [shape for shape in stores if prod(shape) >= queries * keys and keys in shape]


class Block(tc.nn.Module):
    """The attention of a GPT's block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = tc.nn.LayerNorm(width, device="emu")
        self.inner = tc.nn.Linear(width, 3 * width, device="emu")
        self.outer = tc.nn.Linear(width, width, device="emu")

    def forward(self, x: tc.Tensor) -> tc.Tensor:
        n, t, c = x.shape
        parts = self.inner(self.norm(x)).split(c, -1)
        q, k, v = (part.view(n, t, self.heads, -1).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: tc.Tensor = x + self.outer(y.transpose(1, 2).reshape(n, t, c))
        return result


def test_a_training_step_stores_no_matrix_of_scores(kernels: list[Kernel]) -> None:
    """Under autocast, forward and backward: neither scores nor probabilities nor a mask."""
    tc.manual_seed(0)
    tokens = 97  # in no other shape
    block, x = Block(64, 2), tc.randn(2, tokens, 64, device="emu")
    with tc.autocast("emu", dtype=tc.bfloat16):
        loss = (block(x) ** 2).mean()
    loss.backward()
    assert all(np.isfinite(p.grad.numpy()).all() for p in block.parameters())
    assert [kernel.kind for kernel in kernels].count("attention") == 2
    assert not [shape for shape in whole(kernels, 1, tokens) if shape.count(tokens) > 1]


def _run(
    attend: Callable[..., Any], make: Callable[[Array], Any], arrays: list[Array], **how: Any
) -> list[Array]:
    leaves = [make(array).requires_grad_() for array in arrays]
    result = attend(*leaves, **how)
    (result * result).sum().backward()
    found = [result.detach(), *(leaf.grad for leaf in leaves)]
    return [one.to("cpu").float().numpy() for one in found]


MASK = np.random.default_rng(0).random((2, 1, 9, 11)) > 0.3
MASK[1, 0, 4] = False


@pytest.mark.parametrize("dtype", LAST)
@pytest.mark.parametrize(
    ("shapes", "how"),
    [
        (((2, 4, 9, 32),) * 3, {"is_causal": True}),
        (((2, 4, 9, 32), (2, 4, 11, 32), (2, 4, 11, 48)), {"attn_mask": MASK, "scale": 0.3}),
        (((2, 4, 9, 32), (2, 2, 11, 32), (2, 2, 11, 32)), {"enable_gqa": True}),
        (((9, 32), (11, 32), (11, 32)), {"attn_mask": MASK[0, 0]}),
    ],
    ids=["causal", "mask", "grouped", "one head"],
)
def test_values_and_gradients_are_torchs(
    shapes: Any, how: dict[str, Any], dtype: str, kernels: list[Kernel]
) -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(3)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    rounded = [torch.tensor(array).to(getattr(torch, dtype)) for array in arrays]
    mask = {"attn_mask": how["attn_mask"]} if "attn_mask" in how else {}
    ours = _run(
        F.scaled_dot_product_attention,
        lambda x: tc.tensor(x, device="emu").to(getattr(tc, dtype)),
        arrays,
        **{**how, **{name: tc.tensor(x, device="emu") for name, x in mask.items()}},
    )
    exact = _run(
        torch.nn.functional.scaled_dot_product_attention,
        torch.tensor,
        [x.double().numpy() for x in rounded],
        **{**how, **{name: torch.tensor(x) for name, x in mask.items()}},
    )
    assert "attention" in {kernel.kind for kernel in kernels}
    for one, other in zip(ours, exact, strict=True):
        assert np.abs(one - other).max() <= 2 * LAST[dtype] * np.abs(other).max()


@pytest.mark.parametrize("reason", ["float32", "width", "dropout", "trained mask", "cpu"])
def test_what_the_op_does_not_take_is_composed(reason: str, kernels: list[Kernel]) -> None:
    tc.manual_seed(1)
    device = "cpu" if reason == "cpu" else "emu"
    dtype = tc.float32 if reason == "float32" else tc.float16
    q, k, v = (
        tc.randn(2, 6, 24 if reason == "width" else 32, device=device).to(dtype) for _ in range(3)
    )
    mask = tc.zeros(6, 6, device=device, dtype=dtype)
    mask.requires_grad_(reason == "trained mask")
    result = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=0.5 if reason == "dropout" else 0.0
    )
    assert result.isfinite().all()
    assert "attention" not in {kernel.kind for kernel in kernels}


def test_a_layer_without_weights_has_the_same_values(kernels: list[Kernel]) -> None:
    """Padded keys, a mask of hidden pairs, and both; weights are made where they are asked for."""
    tc.manual_seed(2)
    layer = tc.nn.MultiheadAttention(64, 2, batch_first=True, device="emu", dtype=tc.float16)
    x = tc.randn(2, 7, 64, device="emu").half()
    hidden = tc.tensor([[False] * 7, [False] * 4 + [True] * 3], device="emu")
    causal = tc.ones(7, 7, dtype=tc.bool, device="emu").triu(1)
    for padding, mask in ((hidden, None), (None, causal), (hidden, causal)):
        at = {"key_padding_mask": padding, "attn_mask": mask}
        kernels.clear()
        plain, none = layer(x, x, x, need_weights=False, **at)
        values = plain.detach().float().numpy()
        assert "attention" in {kernel.kind for kernel in kernels}
        other, weights = layer(x, x, x, **at)
        assert none is None and weights is not None
        np.testing.assert_allclose(values, other.detach().float().numpy(), atol=2e-3)


def test_second_derivatives_and_vmap() -> None:
    """Of float16 beside float64 on cpu, whose rows are the reference."""
    random = np.random.default_rng(5)
    arrays = [random.standard_normal((2, 5, 32)) for _ in range(3)]

    def second(device: str, dtype: Any) -> list[Array]:
        q, k, v = (tc.tensor(a, device=device).to(dtype).requires_grad_() for a in arrays)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        (first,) = tc.autograd.grad((out * out).sum(), [q], create_graph=True)
        found = tc.autograd.grad((first * first).sum(), [q, k, v])
        return [one.to("cpu").double().numpy() for one in found]

    for one, other in zip(second("emu", tc.float16), second("cpu", tc.float64), strict=True):
        assert np.abs(one - other).max() <= 2e-2 * np.abs(other).max()

    def alone(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    given = [tc.tensor(a, device="emu").half() for a in arrays]
    both = tc.vmap(alone)(*given).float().numpy()
    apart = [alone(*(x[n] for x in given)).float().numpy() for n in range(2)]
    np.testing.assert_array_equal(both, np.stack(apart))
