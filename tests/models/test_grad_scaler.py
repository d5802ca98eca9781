"""GradScaler: the same scales, skips and weights as torch's, and the same two plans each step."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.engine.plan import cache

X = np.random.default_rng(2).standard_normal((5, 3)).astype(np.float32)
# What the inputs of each step are multiplied by: the third and the sixth overflow.
FACTORS = (1.0, 0.5, math.inf, 1.0, 2.0, math.nan, 1.0, 1.0, 0.25, 1.0)


def train(t: Any, device: str, optimizer_name: str, clip: bool) -> tuple[list[Any], np.ndarray]:
    """Scale, good steps, and whether a step was made, after each step; the last weights."""
    w = t.tensor([0.5, -1.0, 2.0], device=device, requires_grad=True)
    options: dict[str, Any] = {"lr": 0.05}
    optimizer = getattr(t.optim, optimizer_name)([w], **options)
    kind = "cpu" if t is not tc else device
    scaler = t.amp.GradScaler(kind, init_scale=64.0, growth_interval=2)
    found = []
    for factor in FACTORS:
        optimizer.zero_grad()
        x = t.tensor(X * np.float32(factor), device=device)
        before = w.detach().cpu().numpy().copy()
        scaler.scale((x @ w).square().mean()).backward()
        if clip:
            scaler.unscale_(optimizer)
            t.nn.utils.clip_grad_norm_([w], 1.0)
        scaler.step(optimizer)
        scaler.update()
        moved = bool((w.detach().cpu().numpy() != before).any())
        found.append((scaler.get_scale(), scaler.state_dict()["_growth_tracker"], moved))
    return found, w.detach().cpu().numpy()


@pytest.mark.parametrize(("name", "clip"), [("SGD", False), ("SGD", True), ("Adam", False)])
def test_as_torch(name: str, clip: bool) -> None:
    torch = pytest.importorskip("torch")
    (ours, weights), (theirs, expected) = (
        train(t, "cpu", name, clip) for t in (tc, torch)
    )  # fmt: skip
    assert ours == theirs
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


def test_what_happens_at_an_overflow() -> None:
    """Without torch: the bad steps change no weight, halve the scale, and the count begins anew."""
    found, weights = train(tc, "cpu", "SGD", False)
    assert [moved for _, _, moved in found] == [math.isfinite(factor) for factor in FACTORS]
    assert [scale for scale, _, _ in found] == [64, 128, 64, 64, 128, 64, 64, 128, 128, 256]
    assert np.isfinite(weights).all()


def test_emulator_and_cpu_agree() -> None:
    on_emulator, weights = train(tc, "emu", "SGD", False)
    on_cpu, expected = train(tc, "cpu", "SGD", False)
    assert on_emulator == on_cpu
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


def test_scales_are_arguments() -> None:
    """A second run, whose scales differ throughout, finds every plan of the first."""
    w = tc.ones(3, device="cpu", requires_grad=True)
    optimizer = tc.optim.SGD([w], lr=0.1)
    scaler = tc.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    x = tc.tensor(X, device="cpu")
    made = []
    for _ in range(6):
        optimizer.zero_grad()
        scaler.scale((x @ w).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        made.append(cache.made)
    assert scaler.get_scale() == 4.0 * 2**6
    assert made[1:] == [made[0]] * 5


def test_several_outputs_and_half_gradients() -> None:
    scaler = tc.amp.GradScaler("cpu", init_scale=8.0)
    a, b = tc.ones(2, device="cpu"), tc.ones((), device="cpu", dtype=tc.bfloat16)
    first, (second,) = scaler.scale((a, [b]))
    assert first.tolist() == [8.0, 8.0]
    assert second.item() == 8.0
    assert isinstance(scaler.scale([a]), list)
    assert [out.tolist() for out in scaler.scale(iter([a]))] == [[8.0, 8.0]]
    half = tc.ones(2, device="cpu", dtype=tc.float16, requires_grad=True)
    optimizer = tc.optim.SGD([half], lr=0.1)
    scaler.scale(half.sum()).backward()
    with pytest.raises(tc.DTypeError, match="a gradient is float16"):
        scaler.unscale_(optimizer)


def test_order_is_checked() -> None:
    w = tc.ones(2, device="cpu", requires_grad=True)
    optimizer = tc.optim.SGD([w], lr=0.1)
    scaler = tc.amp.GradScaler("cpu")
    with pytest.raises(tc.ArgumentError, match="no parameter has a gradient"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="neither step"):
        tc.amp.GradScaler("cpu").update()
    scaler.update(2.0)
    scaler.scale(w.sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) was called already"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\) was called already"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\) was called already"):
        scaler.unscale_(optimizer)
    with pytest.raises(tc.ArgumentError, match="takes no closure"):
        scaler.step(optimizer, closure=lambda: w.sum())
    scaler.update()
    assert w.tolist() == pytest.approx([0.9, 0.9])


def test_two_optimizers_share_the_scale() -> None:
    """Each skips for itself; the scale shrinks if one of them found an overflow."""
    a, b = (tc.ones(2, device="cpu", requires_grad=True) for _ in range(2))
    first, second = tc.optim.SGD([a], lr=0.5), tc.optim.SGD([b], lr=0.5)
    scaler = tc.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(a.sum() + (b * math.inf).sum()).backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    assert a.tolist() == [0.5, 0.5]
    assert b.tolist() == [1.0, 1.0]
    assert scaler.get_scale() == 2.0


def test_state_goes_to_torch_and_back() -> None:
    torch = pytest.importorskip("torch")
    ours = tc.amp.GradScaler("cpu", init_scale=32.0, growth_factor=3.0, growth_interval=7)
    w = tc.ones(2, device="cpu", requires_grad=True)
    optimizer = tc.optim.SGD([w], lr=0.5)
    ours.scale(w.sum()).backward()
    ours.step(optimizer)
    ours.update()
    theirs = torch.amp.GradScaler("cpu")
    theirs.load_state_dict(ours.state_dict())
    assert theirs.state_dict() == ours.state_dict()
    again = tc.amp.GradScaler("cpu")
    again.load_state_dict(theirs.state_dict())
    assert again.state_dict() == ours.state_dict() == copy.deepcopy(ours).state_dict()


def test_disabled() -> None:
    scaler = tc.amp.GradScaler("cpu", enabled=False)
    w = tc.ones(2, device="cpu", requires_grad=True)
    optimizer = tc.optim.SGD([w], lr=0.5)
    loss = w.sum()
    assert scaler.scale(loss) is loss
    loss.backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert w.tolist() == [0.5, 0.5]
    assert not scaler.is_enabled() and scaler.get_scale() == 1.0 and scaler.state_dict() == {}
    with pytest.raises(tc.ArgumentError, match="the state is empty"):
        tc.amp.GradScaler("cpu").load_state_dict(scaler.state_dict())


def test_bad_factors_and_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(tc.ArgumentError, match="wrong side of 1"):
        tc.amp.GradScaler("cpu", growth_factor=0.5)
    monkeypatch.setattr("tinygrad_cuda.amp.grad_scaler.driver.available", lambda: False)
    with pytest.warns(UserWarning, match="no usable GPU"):
        assert not tc.cuda.amp.GradScaler().is_enabled()
