"""Kernels of the user's own: `tc.kernel` on each device, its text, its gradient, its fusion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from execution import Batch, device_or_skip

import tinygrad_cuda as tc
from tinygrad_cuda.backend.cuda.compiler import compile_source
from tinygrad_cuda.core.dtypes import DType, bfloat16, float16, float32, float64
from tinygrad_cuda.kernels.elementwise import elementwise_row
from tinygrad_cuda.kernels.expressions import FUNCTIONS, Untranslatable, as_cuda, parsed
from tinygrad_cuda.lowering import lower
from tinygrad_cuda.lowering.target import Target


@tc.kernel("y = x * expf(-x)", gradient="g * (1 - x) * expf(-x)")
def damped(x: Any) -> Any:
    """x * exp(-x)"""


@tc.kernel(
    "t = tanhf(a); y = a > 0 ? t * b : b / (1.5f + t * t)",
    gradient={
        "a": "t = tanhf(a); d = 1 - t * t; q = 1.5f + t * t;"
        "s = a > 0 ? g * b * d : -2 * g * b * t * d / (q * q)",
        "b": "t = tanhf(a); s = a > 0 ? g * t : g / (1.5f + t * t)",
    },
)
def bent(a: Any, b: Any) -> Any: ...


def bent_numpy(a: Any, b: Any) -> Any:
    t = np.tanh(a)
    return np.where(a > 0, t * b, b / (1.5 + t * t))


DEVICES = ["cpu", "emu"]
# That the assembler takes a text is asked here, not what it makes of it.
OPTIONS = ("--ptxas-options=-O0",)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    device_or_skip(request.param, request)
    return str(request.param)


def test_values_gradients_and_broadcasting(device: str) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((5, 1)).astype("f"), rng.standard_normal(7).astype("f")
    a, b = (tc.tensor(v, device=device, requires_grad=True) for v in (x, w))
    y = bent(a, b)
    np.testing.assert_allclose(y.detach().numpy(), bent_numpy(x, w), rtol=1e-5)
    y.sum().backward()
    t, positive = np.tanh(x), x > 0
    slope = np.where(positive, t, 1 / (1.5 + t * t)) * np.ones_like(w)
    np.testing.assert_allclose(b.grad.numpy(), slope.sum(0), rtol=1e-5)
    assert a.grad.shape == (5, 1)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(float64, 1e-14), (float32, 1e-6), (float16, 0), (bfloat16, 0)]
)
def test_dtypes_round_once(device: str, dtype: DType, tolerance: float) -> None:
    """Half types are computed in float32 and rounded once, with the text's own temporaries."""
    x = np.linspace(-2, 2, 33)
    given = tc.tensor(x, device=device).to(dtype)
    result = bent(given, given)
    assert result.dtype is dtype
    wide = given.double().cpu().numpy()
    expected = bent_numpy(wide, wide)
    if dtype.is_half:
        narrow = bent_numpy(wide.astype("f"), wide.astype("f"))
        expected = tc.tensor(narrow).to(dtype).double().numpy()
    np.testing.assert_allclose(result.double().cpu().numpy(), expected, rtol=tolerance or 1e-2)


def test_integers(device: str) -> None:
    """A text without floats computes integers as C does; with them integers become floats."""

    @tc.kernel("y = a / b * 10 + a % b")
    def digits(a: Any, b: Any) -> Any: ...

    a = tc.tensor([-7, 7, 9, 0], device=device)
    assert digits(a, 2).tolist() == [-31, 31, 41, 0]
    assert digits(a, 2).dtype is tc.int64
    assert damped(tc.arange(3, device=device)).dtype is tc.float32
    small = tc.tensor([100, -100], dtype=tc.int8, device=device)

    @tc.kernel("y = a * b / 4")
    def quarter(a: Any, b: Any) -> Any: ...

    assert quarter(small, small).tolist() == np.int64([2500, 2500]).astype(np.int8).tolist()
    with pytest.raises(tc.DTypeError, match="digits"):
        digits(tc.ones(2, device=device), 2)


def test_it_fuses_with_its_neighbours(request: pytest.FixtureRequest) -> None:
    device_or_skip("emu", request)
    x = tc.tensor(np.arange(64, dtype="f"), device="emu")
    *kernels, memory = (damped(x * 2).relu() + bent(x, x)).explain().split("\n")
    assert len(kernels) == 1 and "damped" in kernels[0]
    assert "between kernels 0 bytes" in memory


def test_second_derivatives() -> None:
    """The gradient is made of Tensors: it has a gradient, too."""
    x = tc.tensor([0.3, -0.7], dtype=tc.float64, device="cpu", requires_grad=True)
    assert tc.autograd.gradgradcheck(damped, (x,))
    w = tc.tensor([1.3, 0.4], dtype=tc.float64, device="cpu", requires_grad=True)
    assert tc.autograd.gradgradcheck(bent, (x, w))


def test_vmap_and_compile(device: str) -> None:
    rng = np.random.default_rng(1)
    x, w = tc.tensor(rng.random((3, 4)), device=device), tc.tensor(rng.random(4), device=device)
    mapped = tc.vmap(bent, in_dims=(0, None))(x, w)
    np.testing.assert_allclose(mapped.numpy(), bent(x, w).numpy())

    p = tc.tensor(rng.random(4), device=device, requires_grad=True)

    @tc.compile
    def slope(x: Any) -> Any:
        (g,) = tc.autograd.grad(damped(x * p).sum(), [p])
        return g

    for scale in (1.0, 2.0, 3.0):
        z = (x[0] * scale).numpy() * p.detach().numpy()
        expected = (1 - z) * np.exp(-z) * (x[0] * scale).numpy()
        np.testing.assert_allclose(slope(x[0] * scale).numpy(), expected, rtol=1e-12)


def test_a_training_loop_learns_through_it(device: str) -> None:
    """Backward passes that come again are recorded from templates: the same slopes each time."""
    w = tc.tensor([0.1], device=device, requires_grad=True)
    expected, now = [], np.float32(0.1)
    for _ in range(6):
        expected.append(now)
        now = now - np.float32(0.2) * (1 - now) * np.exp(-now)
    seen = []
    for _ in range(6):
        seen.append(w.item())
        (g,) = tc.autograd.grad(damped(w).sum(), [w])
        with tc.no_grad():
            w -= 0.2 * g
    np.testing.assert_allclose(seen, expected, rtol=1e-5)


def test_every_function_agrees_on_the_devices(request: pytest.FixtureRequest) -> None:
    """Each function of the texts, by NumPy and by its CUDA text."""
    device_or_skip("emu", request)
    x, y = np.array([0.1, 0.35, 0.8, 0.99], "f"), np.array([0.5, -1.5, 0.3, 2.0], "f")
    results = {}
    for on in DEVICES:
        for kind in (float32, float64):
            rows = []
            for name, function in FUNCTIONS.items():
                names = "ab"[: function.arity]
                text = f"y = {name}({', '.join(names)})"
                row = elementwise_row(f"own_{name}", tuple(names), text, None, None)
                values = [x + (1 if name == "acosh" else 0), y][: len(names)]
                rows.append(row(*(tc.tensor(v, device=on).to(kind) for v in values)))
            results[on, kind] = tc.stack(rows).double().numpy()
    for kind, tolerance in ((float32, 2e-5), (float64, 1e-12)):
        for number, name in enumerate(FUNCTIONS):
            cpu, emu = (results[on, kind][number] for on in DEVICES)
            np.testing.assert_allclose(emu, cpu, rtol=tolerance, atol=tolerance, err_msg=name)


def random_text(rng: np.random.Generator, depth: int, integers: bool) -> str:
    """An expression of a and b in C, with its precedences left to the reader of the text."""

    def part() -> str:
        return random_text(rng, depth - 1, integers)

    if depth == 0:
        return str(
            rng.choice(["a", "b", "3", "7"] if integers else ["a", "b", "2", "0.75f", "1.5"])
        )
    kinds = ["sum", "sum", "choice", "paren", "neg", "cast"] + ["bits"] * 2 * integers
    kind = rng.choice(kinds if integers else [*kinds, "call", "call"])
    if kind == "sum":
        return f"{part()} {rng.choice(['+', '-', '*', '+', '*'])} {part()}"
    if kind == "bits":
        return f"{part()} {rng.choice(['&', '|', '^', '%', '/'])} ({part()} | 1)"
    if kind == "choice":
        return f"({part()} {rng.choice(['<', '>=', '==', '!='])} {part()} ? {part()} : {part()})"
    if kind == "neg":
        return f"-({part()})"
    if kind == "cast":
        return f"({rng.choice(['int', 'T'])})({'b' if integers else f'tanhf({part()}) * 9'})"
    if kind == "call":
        return f"{rng.choice(['tanhf', 'sinf', 'fabsf', 'atanf', 'erff'])}({part()})"
    return f"({part()})"


def test_random_texts_agree_on_the_devices(request: pytest.FixtureRequest) -> None:
    """Each text as NumPy reads it, and as the C++ compiler does: precedences, types, casts."""
    device_or_skip("emu", request)
    rng = np.random.default_rng(5)
    for dtype, count in ((np.int32, 40), (np.float64, 60)):
        values = rng.integers(-9, 10, (2, 16)) if dtype is np.int32 else rng.normal(0, 2, (2, 16))
        texts, results = [], {on: [] for on in DEVICES}
        while len(texts) < count:
            text = f"y = {random_text(rng, 3, dtype is np.int32)}"
            row = elementwise_row(f"text{len(texts)}", ("a", "b"), text, None, None)
            if row.floating and dtype is np.int32:
                continue
            texts.append(text)
            for on in DEVICES:
                results[on].append(row(*(tc.tensor(v.astype(dtype), device=on) for v in values)))
        cpu, emu = (tc.stack(results[on]).cpu().numpy() for on in DEVICES)
        for text, a, b in zip(texts, cpu, emu):
            np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-9, err_msg=text)


def test_generated_text_compiles_for_gpus(architectures: list[str]) -> None:
    """The rows' text in a generated kernel, by NVRTC, with half types and doubles."""
    pytest.importorskip("cuda.bindings.nvrtc")
    calls = [f"{f}({', '.join('ab'[: row.arity])})" for f, row in FUNCTIONS.items()]
    whole = elementwise_row("whole", ("a", "b"), f"y = {' + '.join(calls)}", None, None)
    rows = [whole, elementwise_row("steps", ("a", "b"), "t = a * b; y = t / (1 + t)", None, None)]
    rows.append(elementwise_row(
        "looped", ("a", "b"), "T s = 0; for(int i = 0; i < 3; i++){ s += a; } y = max(s, b)",
        np.maximum, None,
    ))  # fmt: skip
    for arch in architectures:
        capability = divmod(int(arch.removeprefix("sm_")), 10)
        target = replace(Target.h200(), architecture=capability)
        batch = Batch(tc.device("cuda"))
        for dtype in (float32, float64, float16, bfloat16):
            a, b = (batch.input(np.zeros(8, dtype.numpy)) for _ in "ab")
            for row in rows if dtype is float32 else rows[1:]:
                batch.outputs.append(row.op(a, b))
        made = lower.lower(batch.program(), target)
        assert "whole" in made.source
        assert compile_source(made.source, arch, OPTIONS).cubin.startswith(b"\x7fELF")


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("y = x * expf(-x)", "{0} * tgc_exp(-{0})"),
        ("y = (x + 1) * 0.5", "({0} + 1) * 0.5f"),
        ("y = x - (x - 1.f)", "{0} - ({0} - 1.0f)"),
        ("y = -(-x) / fmaxf(x, 2)", "-(-{0}) / fmaxf ({0}, (float)(2))"),
        (
            "y = x > 0 && x < 1 ? (int)x : (float)1 / 2",
            "{0} > 0 && {0} < 1 ? (int){0} : (float)1 / 2",
        ),
    ],
)
def test_texts(text: str, cuda: str) -> None:
    assert as_cuda(parsed(text, ["x"]), ["x"], "float") == cuda


def test_c_meaning_of_numbers() -> None:
    """Integers without a point divide as in C, on every device."""
    row = elementwise_row("halves", ("x",), "y = 1 / 2 + 1 / 2.0f + (int)(x / 2) + x * (x > 1)",
                          None, None)  # fmt: skip
    for on in DEVICES:
        assert row(tc.tensor([3.0, -3.0], device=on)).tolist() == [4.5, -0.5]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("y = x[0]", "'[0]' is no part"),
        ("y = frob(x)", "'frob' has no counterpart"),
        ("y = z + 1", "'z' is neither an input"),
        ("y += x", "begins no assignment"),
        ("y = pow(x)", "takes 2 operands"),
        ("y = x *", "missing before the end"),
        ("", "no assignment"),
    ],
)
def test_what_cannot_be_translated_is_named(text: str, reason: str) -> None:
    with pytest.raises(Untranslatable, match=reason.replace("[", r"\[")):
        parsed(text, ["x"])
    with pytest.raises(tc.ArgumentError, match="give numpy="):
        tc.kernel(text)(lambda x: x)


def test_a_text_as_it_stands(device: str) -> None:
    """With `numpy=` a loop serves, too."""

    @tc.kernel(
        "float s = 0; for (int i = 0; i < 4; i++) { s = s * x + 1; } y = s",
        numpy=lambda x: 1 + x + x**2 + x**3,
        gradient=lambda g, y, x: g * (1 + 2 * x + 3 * x * x),
    )
    def geometric(x: Any) -> Any: ...

    x = tc.tensor([0.5, 2.0], device=device, requires_grad=True)
    y = geometric(x)
    y.sum().backward()
    assert y.tolist() == [1.875, 15.0] and x.grad.tolist() == [2.75, 17.0]


def test_wrong_gradients_are_refused_at_the_definition() -> None:
    with pytest.raises(tc.GradientError, match="input 'b' is wrong") as caught:

        @tc.kernel("y = a * b", gradient={"a": "g * b", "b": "g * b"})
        def product(a: Any, b: Any) -> Any: ...

    assert "by central differences" in str(caught.value)
    with pytest.raises(tc.GradientError, match="domain="):
        tc.kernel("y = logf(x)", gradient="g / x")(lambda x: x)
    tc.kernel("y = logf(x)", gradient="g / x", domain=(0.5, 3))(lambda x: x)
    with pytest.raises(tc.ArgumentError, match="c is no input"):
        tc.kernel("y = a * b", gradient={"c": "g"})(lambda a, b: a)
    with pytest.raises(tc.ArgumentError, match="not understood"):
        tc.kernel("y = a * 2", gradient="g * w")(lambda a: a)


def test_without_a_gradient_it_is_said_who_wants_one() -> None:
    @tc.kernel("y = x * 2")
    def doubled(x: Any) -> Any: ...

    x = tc.ones(2, requires_grad=True, device="cpu")
    with pytest.raises(tc.GradientError, match="doubled"):
        doubled(x).sum().backward()
    with pytest.raises(tc.ArgumentError, match="2 inputs"):
        doubled(x, x)
    assert doubled(x=x.detach()).tolist() == [2, 2] and doubled.__name__ == "doubled"
