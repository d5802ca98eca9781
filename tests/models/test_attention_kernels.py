"""scaled_dot_product_attention and MultiheadAttention of half types: one op where it can be."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
import tinygrad_cuda.nn.functional as F
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.lowering import lower
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.skeletons.attention import tiles
from tinygrad_cuda.nn.functional.attention import _has_kernels as attends_by_one_op

Array = np.ndarray[Any, Any]
ROUNDING = {"high": 2.0**-7, "highest": 2.0**-20}  # of the largest result, by precision
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


def test_a_training_step_stores_heads_beside_each_other(kernels: list[Kernel]) -> None:
    """As the projection reads them, and the three gradients as the first product's gradient."""
    tc.manual_seed(0)
    block, x = Block(64, 2), tc.randn(2, 97, 64, device="emu")
    with tc.autocast("emu", dtype=tc.bfloat16):
        loss = (block(x) ** 2).mean()
    loss.backward()
    assert all(np.isfinite(p.grad.numpy()).all() for p in block.parameters())
    forward, backward = (kernel for kernel in kernels if kernel.kind == "attention")
    assert [node.shape for node in forward.stores] == [(2, 97, 2, 32), (2, 2, 97)]
    assert [node.shape for node in backward.stores] == [(2, 97, 192)]
    sums = [
        kernel
        for kernel in kernels
        if kernel.kind == "row_reduce" and forward.stores[0] in kernel.reads
    ]
    assert [node.shape for kernel in sums for node in kernel.stores] == [(2, 97, 2, 1)]


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


CASES: dict[str, tuple[tuple[tuple[int, ...], ...], dict[str, Any]]] = {
    "causal": (((2, 4, 9, 32),) * 3, {"is_causal": True}),
    "mask": (
        ((2, 4, 9, 32), (2, 4, 11, 32), (2, 4, 11, 48)), {"attn_mask": MASK, "scale": 0.3}
    ),
    "grouped": (((2, 4, 9, 32), (2, 2, 11, 32), (2, 2, 11, 32)), {"enable_gqa": True}),
    "one head": (((9, 32), (11, 32), (11, 32)), {"attn_mask": MASK[0, 0]}),
}  # fmt: skip


def _both(
    dtype: str, shapes: tuple[tuple[int, ...], ...], how: dict[str, Any]
) -> tuple[list[Array], list[Array]]:
    """The value and the gradients on emu, and torch's of float64 from the same operands."""
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
    return ours, exact


@pytest.mark.parametrize("dtype", LAST)
@pytest.mark.parametrize(("shapes", "how"), CASES.values(), ids=CASES)
def test_values_and_gradients_are_torchs(
    shapes: Any, how: dict[str, Any], dtype: str, kernels: list[Kernel]
) -> None:
    ours, exact = _both(dtype, shapes, how)
    assert "attention" in {kernel.kind for kernel in kernels}
    for one, other in zip(ours, exact, strict=True):
        assert np.abs(one - other).max() <= 2 * LAST[dtype] * np.abs(other).max()


@pytest.mark.parametrize(
    ("width", "by_tma"), [(32, False), (64, False), (64, True), (256, False)],
    ids=["mma", "wgmma", "tma", "keys and values apart"],
)  # fmt: skip
@pytest.mark.parametrize("p", [0.3, 1.0])
def test_dropped_weights_are_those_of_the_composition(
    p: float, width: int, by_tma: bool, kernels: list[Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients beside float64 on cpu with the same seed; no matrix of scores lies in
    memory."""
    if by_tma:
        monkeypatch.setattr(tiles, "LONG", 0)
    random = np.random.default_rng(6)
    queries, keys = 37, 61
    arrays = [random.standard_normal((2, 2, n, width)) for n in (queries, keys, keys)]
    arrays = [np.asarray(array, np.float16).astype(float) for array in arrays]

    def results(device: str, dtype: Any) -> list[Array]:
        tc.manual_seed(11)
        make = partial(tc.tensor, device=device, dtype=dtype)
        return _run(F.scaled_dot_product_attention, make, arrays, dropout_p=p, is_causal=width > 32)

    ours, exact = results("emu", tc.float16), results("cpu", tc.float64)
    assert not [shape for shape in whole(kernels, queries, keys) if queries in shape]
    for one, other in zip(ours, exact, strict=True):
        assert np.abs(one - other).max() <= 4 * LAST["float16"] * np.abs(other).max()
    if p < 1:
        alone = _run(
            F.scaled_dot_product_attention, partial(tc.tensor, device="cpu", dtype=tc.float64),
            arrays, is_causal=width > 32,
        )  # fmt: skip
        assert all(np.abs(one - other).max() > 0.1 for one, other in zip(exact, alone))


def test_a_layer_in_training_drops_weights_in_its_kernels(kernels: list[Kernel]) -> None:
    """The same weights in evaluation's composition and in the op; both gradients agree."""
    random = np.random.default_rng(8)
    array = random.standard_normal((2, 9, 64)).astype(np.float32)

    def run(need_weights: bool) -> tuple[Array, Array]:
        tc.manual_seed(3)
        layer = tc.nn.MultiheadAttention(64, 2, dropout=0.4, batch_first=True, device="emu")
        layer = layer.half()
        x = tc.tensor(array, device="emu").half().requires_grad_()
        tc.manual_seed(4)
        mixed, _ = layer(x, x, x, need_weights=need_weights)
        (mixed * mixed).sum().backward()
        assert x.grad is not None
        return mixed.detach().float().numpy(), x.grad.float().numpy()

    composed = run(True)
    assert "attention" not in {kernel.kind for kernel in kernels}
    whole_op = run(False)
    assert "attention" in {kernel.kind for kernel in kernels}
    for one, other in zip(whole_op, composed, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-2 * np.abs(other).max())


@pytest.fixture(params=ROUNDING)
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """That of float32 products."""
    tc.set_float32_matmul_precision(request.param)
    yield request.param
    tc.set_float32_matmul_precision("highest")


def test_a_step_of_float32_stores_no_matrix_of_scores(
    precision: str, kernels: list[Kernel]
) -> None:
    tc.manual_seed(0)
    tokens = 97  # in no other shape
    block, x = Block(64, 2), tc.randn(2, tokens, 64, device="emu")
    (block(x) ** 2).mean().backward()
    assert all(np.isfinite(p.grad.numpy()).all() for p in block.parameters())
    assert [kernel.kind for kernel in kernels].count("attention") == 2
    assert not [shape for shape in whole(kernels, 1, tokens) if shape.count(tokens) > 1]


@pytest.mark.parametrize(("shapes", "how"), CASES.values(), ids=CASES)
def test_values_and_gradients_of_float32_are_torchs(
    shapes: Any, how: dict[str, Any], precision: str, kernels: list[Kernel]
) -> None:
    ours, exact = _both("float32", shapes, how)
    assert "attention" in {kernel.kind for kernel in kernels}
    for one, other in zip(ours, exact, strict=True):
        assert np.abs(one - other).max() <= ROUNDING[precision] * np.abs(other).max()


def test_float32_drops_the_weights_of_the_composition(precision: str) -> None:
    """Beside float64 on cpu with the same seed."""
    random = np.random.default_rng(6)
    arrays = [random.standard_normal((2, n, 32)).astype(np.float32) for n in (37, 61, 61)]

    def results(device: str, dtype: Any) -> list[Array]:
        tc.manual_seed(11)
        make = partial(tc.tensor, device=device, dtype=dtype)
        return _run(F.scaled_dot_product_attention, make, arrays, dropout_p=0.3, is_causal=True)

    for one, other in zip(results("emu", tc.float32), results("cpu", tc.float64), strict=True):
        assert np.abs(one - other).max() <= 2 * ROUNDING[precision] * np.abs(other).max()


def test_the_precision_decides_what_attends(kernels: list[Kernel]) -> None:
    """Of calls that are repeated, and of compiled functions."""
    tc.manual_seed(3)
    x = tc.randn(2, 4, 37, 32, device="emu")

    def attend(x: tc.Tensor) -> tc.Tensor:
        result: tc.Tensor = F.scaled_dot_product_attention(x, x, x, is_causal=True)
        return result

    compiled = tc.compile(attend)
    values = []
    try:
        for precision in ("ieee", "high", "ieee", "highest"):
            tc.set_float32_matmul_precision(precision)
            for function in (attend, attend, compiled):
                kernels.clear()
                cache.clear()
                values.append(function(x).numpy())
                kinds = {kernel.kind for kernel in kernels}
                assert ("attention" in kinds) == (precision != "ieee"), precision
    finally:
        tc.set_float32_matmul_precision("highest")
    exact, *others = values
    for other in others:
        np.testing.assert_allclose(other, exact, atol=4e-3)


@pytest.mark.parametrize("kind", ["cuda", "emu", "cpu"])
@pytest.mark.parametrize("change", ["none", "all keys", "short", "wide", "split", "half"])
def test_float32_units_attend_where_that_takes_less_time(kind: str, change: str) -> None:
    """Of long causal rows on a GPU; what matrix units multiply is one on every machine."""
    tokens, width = 512 if change == "short" else 1024, 192 if change == "wide" else 64
    x: Any = SimpleNamespace(
        device=SimpleNamespace(kind=kind), shape=(8, 12, tokens, width), ndim=4,
        dtype=tc.float16 if change == "half" else tc.float32,
    )  # fmt: skip
    precision = "highest" if change == "split" else "ieee"
    with settings.override(matmul_precision=precision):
        one_op = attends_by_one_op(x, x, x, None, change != "all keys")
    wanted = {"none": kind == "cuda", "split": kind != "cpu", "half": kind != "cpu"}
    assert one_op == wanted.get(change, False)


@pytest.mark.parametrize("reason", ["float32 units", "width", "trained mask", "cpu"])
def test_what_the_op_does_not_take_is_composed(reason: str, kernels: list[Kernel]) -> None:
    tc.manual_seed(1)
    device = "cpu" if reason == "cpu" else "emu"
    dtype = tc.float32 if reason == "float32 units" else tc.float16
    tc.set_float32_matmul_precision("ieee" if reason == "float32 units" else "highest")
    q, k, v = (
        tc.randn(2, 6, 24 if reason == "width" else 32, device=device).to(dtype) for _ in range(3)
    )
    mask = tc.zeros(6, 6, device=device, dtype=dtype)
    mask.requires_grad_(reason == "trained mask")
    try:
        assert F.scaled_dot_product_attention(q, k, v, attn_mask=mask).isfinite().all()
    finally:
        tc.set_float32_matmul_precision("highest")
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


@pytest.mark.parametrize("heads", [(2, 2), (4, 2)], ids=["each its own", "grouped"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_decoding_with_a_cache_of_keys(
    compiled: bool, dtype: str, heads: tuple[int, int], kernels: list[Kernel]
) -> None:
    """Token by token: the rows of one causal pass, and no new plan after the third token."""
    tokens, at = 9, {"enable_gqa": heads[0] != heads[1]}
    drawn = np.random.default_rng(4).standard_normal((3, 2, heads[0], tokens, 64))
    q, k, v = (tc.tensor(x, device="emu").to(getattr(tc, dtype)) for x in drawn)
    k, v = (x[:, : heads[1]].contiguous() for x in (k, v))
    want = F.scaled_dot_product_attention(q, k, v, is_causal=True, **at).float().numpy()
    keys, values = (tc.zeros_like(x) for x in (k, v))
    numbers = tc.arange(tokens, device="emu")

    def step(query: Any, key: Any, value: Any, at_token: Any) -> Any:
        keys.index_copy_(2, at_token, key)
        values.index_copy_(2, at_token, value)
        seen = numbers <= at_token
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=seen, **at)

    run = tc.compile(step) if compiled else step
    made = []
    with tc.no_grad():
        for t in range(tokens):
            one = slice(t, t + 1)
            found = run(q[:, :, one], k[:, :, one], v[:, :, one], numbers[one].contiguous())
            error = np.abs(found.float().numpy() - want[:, :, one]).max()
            assert error <= (2.0**-7 if dtype == "bfloat16" else 2e-6) * np.abs(want).max()
            made.append(cache.made)
    assert made[-1] == made[3]
    assert "attention" in {kernel.kind for kernel in kernels}


def _second(device: str, dtype: Any, arrays: list[Array]) -> list[Array]:
    q, k, v = (tc.tensor(a, device=device).to(dtype).requires_grad_() for a in arrays)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    (first,) = tc.autograd.grad((out * out).sum(), [q], create_graph=True)
    found = tc.autograd.grad((first * first).sum(), [q, k, v])
    return [one.to("cpu").double().numpy() for one in found]


def test_second_derivatives_of_float32(precision: str) -> None:
    """Products of the second order are those of compositions, at the precision."""
    random = np.random.default_rng(5)
    arrays = [random.standard_normal((2, 5, 32)) for _ in range(3)]
    wanted = _second("cpu", tc.float64, arrays)
    for one, other in zip(_second("emu", tc.float32, arrays), wanted, strict=True):
        assert np.abs(one - other).max() <= 2 * ROUNDING[precision] * np.abs(other).max()


def test_second_derivatives_and_vmap() -> None:
    """Of float16 beside float64 on cpu, whose rows are the reference."""
    random = np.random.default_rng(5)
    arrays = [random.standard_normal((2, 5, 32)) for _ in range(3)]
    wanted = _second("cpu", tc.float64, arrays)
    for one, other in zip(_second("emu", tc.float16, arrays), wanted, strict=True):
        assert np.abs(one - other).max() <= 2e-2 * np.abs(other).max()

    def alone(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    given = [tc.tensor(a, device="emu").half() for a in arrays]
    both = tc.vmap(alone)(*given).float().numpy()
    apart = [alone(*(x[n] for x in given)).float().numpy() for n in range(2)]
    np.testing.assert_array_equal(both, np.stack(apart))


def test_the_debug_level_says_what_attends_and_why(capfd: pytest.CaptureFixture[str]) -> None:
    """And what multiplies in recurrent layers: the tier of each kernel that has one."""

    def printed(make: Callable[[], Any]) -> str:
        with settings.override(debug=3):
            make().detach().float().numpy()
        text = capfd.readouterr()
        return text.out + text.err

    for width, dtype, want in (
        (64, tc.bfloat16, r"forward by wgmma, 128 x \d+, \d slots \(not wgmma tma: 40 columns\)"),
        (32, tc.bfloat16, r"forward by mma, .* \(not wgmma: heads are no multiples of 64\)"),
        (64, tc.float32, r"forward by mma tf32x3, .* \(not wgmma: float32 at 'highest'\)"),
    ):
        q = tc.ones(2, 2, 40, width, device="emu", dtype=dtype)
        text = printed(partial(F.scaled_dot_product_attention, q, q, q, is_causal=True))
        assert re.search(f"  tier:  {want}", text), text
    layer, x = tc.nn.LSTM(8, 16, device="emu"), tc.ones(3, 2, 8, device="emu")
    text = printed(lambda: layer(x)[0])
    assert re.search(r"  tier:  float32 units, \d+ of 16 units a block", text), text


def test_the_debug_level_says_why_products_and_a_softmax_attend(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Once for a line and a reason; nothing where the op attends, on cpu, or below 3."""
    half = partial(tc.ones, device="emu", dtype=tc.float16)

    def said(level: int = 3, precision: str = "highest", **given: Any) -> str:
        x = given.pop("x")
        with settings.override(debug=level, matmul_precision=precision):
            F.scaled_dot_product_attention(x, x, given.pop("value", x), **given)
        lines = capfd.readouterr().err.splitlines()
        assert len(lines) < 2
        return lines[0] if lines else ""

    x = half(1, 2, 41, 24)
    text = said(x=x)
    assert text.startswith("attention by products and softmax: test_attention_kernels.py:")
    assert text.endswith(": heads of 24, not of a multiple of 16 from 32 to 256")
    for dropout in (0.0, 0.5, 0.5):  # a call that draws is recorded anew each time
        assert said(x=x, dropout_p=dropout) == ""
    mask = half(41, 41).requires_grad_()
    for words, options in {
        "float32 at 'ieee' has no matrix units": {
            "x": tc.ones(1, 2, 41, 32, device="emu"), "precision": "ieee"
        },
        "float64 has no kernels": {"x": tc.ones(1, 2, 41, 32, device="emu", dtype=tc.float64)},
        "the mask requires grad": {"x": half(1, 2, 41, 32), "attn_mask": mask},
        "more dimensions": {
            "x": half(2, 41, 32), "attn_mask": tc.ones(1, 1, 41, 41, device="emu") > 0
        },
        "a dimension of size 0": {"x": half(0, 2, 41, 32)},
        "heads of 40": {"x": half(1, 2, 41, 32), "value": half(1, 2, 41, 40)},
    }.items():  # fmt: skip
        assert words in said(**options), words  # type: ignore[arg-type]
    assert said(x=half(1, 2, 41, 32)) == ""
    assert said(x=half(1, 2, 43, 24), level=2) == ""
    assert said(x=tc.ones(1, 2, 41, 24, device="cpu")) == ""
    layer = tc.nn.MultiheadAttention(48, 2, batch_first=True, device="emu", dtype=tc.float16)
    with settings.override(debug=3):
        layer(*[half(1, 7, 48)] * 3, need_weights=False)
    assert "heads of 24" in capfd.readouterr().err
