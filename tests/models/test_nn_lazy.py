"""Lazy layers, buffers, and names that torch's own samples do not reach."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import numpy as np
import pytest
from layers import close, compare, compare_layer, real, torch

import tinygrad_cuda as tc
from tinygrad_cuda import nn


@pytest.fixture(autouse=True)
def _on_cpu() -> Iterator[None]:
    tc.set_default_device("cpu")
    yield
    tc.set_default_device(None)


def test_a_lazy_layer_becomes_the_ordinary_one() -> None:
    """The same draws, the same Parameters that an optimizer already holds."""
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2))
    optimizer = tc.optim.SGD(model.parameters(), lr=0.1)
    held = list(model.parameters())
    assert all(nn.parameter.is_lazy(p) for p in held)
    tc.manual_seed(5)
    x = tc.ones(2, 3, 5, 5)
    first = model(x).square().sum()
    tc.manual_seed(5)
    eager = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(36, 2))
    assert repr(model) == repr(eager)
    assert [type(m) for m in model] == [type(m) for m in eager]
    assert first.item() == eager(x).square().sum().item()
    first.backward()
    before = held[0].tolist()
    optimizer.step()
    assert all(a is b for a, b in zip(held, model.parameters()))
    assert not any(nn.parameter.is_lazy(p) for p in held)
    assert held[0].tolist() != before


def test_a_lazy_layer_takes_shapes_from_a_state() -> None:
    """Loading gives a size; a copy made before waits still, and none keeps the hook."""
    lazy = nn.LazyConvTranspose1d(4, 3, groups=2)
    waiting = copy.deepcopy(lazy)
    eager = nn.ConvTranspose1d(6, 4, 3, groups=2)
    lazy.load_state_dict(eager.state_dict())
    assert not lazy.has_uninitialized_params() and waiting.has_uninitialized_params()
    x = tc.tensor(real(2, 6, 5)).float()
    assert lazy(x).tolist() == eager(x).tolist()
    assert waiting(x).shape == lazy(x).shape
    assert type(waiting) is type(lazy) is nn.ConvTranspose1d
    assert not lazy._state_hooks["load_pre"] and not waiting._state_hooks["load_pre"]


def test_a_lazy_layer_moves_before_its_first_input() -> None:
    layer = nn.LazyInstanceNorm1d().double()
    layer(tc.ones(2, 3, 4, dtype=tc.float64))
    assert {value.dtype for value in layer.parameters()} == {tc.float64}
    assert layer.running_mean is not None and tuple(layer.running_mean.shape) == (3,)
    with pytest.raises(tc.ShapeError, match="3 or 4"):
        nn.LazyConv2d(2, 3)(tc.ones(3, 4))
    with pytest.raises(tc.ArgumentError, match="divide the channels"):
        nn.LazyConv1d(2, 1, groups=2)(tc.ones(1, 3, 4))


def test_buffers_register_themselves() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen = nn.Buffer(tc.zeros(2))
            self.scratch = nn.Buffer(tc.zeros(2), persistent=False)

    module = Counter()
    assert list(module.state_dict()) == ["seen"]
    assert [name for name, _ in module.named_buffers()] == ["seen", "scratch"]
    assert not list(module.parameters())
    again = pickle.loads(pickle.dumps(copy.deepcopy(module.seen)))
    assert isinstance(again, nn.Buffer) and again.persistent and again.tolist() == [0.0, 0.0]
    with pytest.raises(tc.ArgumentError, match="needs a Tensor"):
        nn.Buffer([1.0])  # type: ignore[arg-type]


@pytest.mark.parametrize("head_bias", [False, True])
def test_adaptive_log_softmax(head_bias: bool) -> None:
    """Log-probabilities, loss, prediction and gradients; each row adds up to 1."""
    options = {"div_value": 2.0, "head_bias": head_bias}
    torchs = torch.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [4, 10], **options).double()
    ours = nn.AdaptiveLogSoftmaxWithLoss(8, 20, [4, 10], **options).double()
    ours.load_state_dict({k: tc.tensor(v.numpy()) for k, v in torchs.state_dict().items()})
    x, labels = real(6, 8), np.array([0, 3, 4, 9, 10, 19])
    found = ours(tc.tensor(x), tc.tensor(labels))
    wanted = torchs(torch.tensor(x), torch.tensor(labels))
    close(found.output, wanted.output, 1e-10, "output")
    found.loss.backward()
    wanted.loss.backward()
    inner = dict(ours.named_parameters())
    for name, parameter in torchs.named_parameters():
        close(inner[name].grad, parameter.grad, 1e-8, name)
    rows = ours.log_prob(tc.tensor(x))
    close(rows, torchs.log_prob(torch.tensor(x)), 1e-10, "log_prob")
    np.testing.assert_allclose(rows.exp().sum(-1).detach().numpy(), 1.0)
    assert ours.predict(tc.tensor(x)).tolist() == torchs.predict(torch.tensor(x)).tolist()
    with pytest.raises(tc.ArgumentError, match="cutoffs"):
        nn.AdaptiveLogSoftmaxWithLoss(8, 20, [4, 4])


def test_pooling_with_indices() -> None:
    image = (real(2, 3, 7, 6),)
    compare(lambda F, x: F.max_pool2d_with_indices(x, 3, 2), image, "float64")
    compare(lambda F, x: F.adaptive_max_pool2d_with_indices(x, (3, 4)), image, "float64")
    compare(lambda F, x: F.max_pool1d_with_indices(x[0], 2), image, "float64")
    compare(lambda F, x: F.adaptive_max_pool3d_with_indices(x, 2), image, "float64")
    values, places = nn.functional.fractional_max_pool2d_with_indices(
        tc.tensor(image[0]), 2, output_size=3
    )
    flat = tc.tensor(image[0]).flatten(2).gather(2, places.flatten(2))
    assert flat.reshape(values.shape).tolist() == values.tolist()


def test_feature_alpha_dropout_drops_channels() -> None:
    """Whole channels get one value; mean 0 and variance 1 stay."""
    tc.manual_seed(0)
    x = tc.randn(200, 50, 4)
    y = nn.FeatureAlphaDropout(0.3)(x).numpy()
    dropped = np.ptp(y, axis=2) == 0
    assert dropped.mean() == pytest.approx(0.3, abs=0.02)
    assert np.unique(y[dropped].round(5)).size == 1
    assert y.mean() == pytest.approx(0, abs=0.05)
    assert y.std() == pytest.approx(1, abs=0.05)
    assert nn.FeatureAlphaDropout().eval()(x) is x


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_the_gradient_of_an_infinite_ctc_loss(zero_infinity: bool) -> None:
    """NaN while the input lasts, as in torch, and 0 behind; all 0 with zero_infinity."""
    x, labels = real(5, 2, 4), np.array([[1, 1], [2, 3]])
    found = []
    for library in (torch, tc):
        leaf = library.tensor(x, requires_grad=True)
        losses = library.nn.functional.ctc_loss(
            leaf.log_softmax(2), library.tensor(labels), (2, 5), (2, 2), reduction="none",
            zero_infinity=zero_infinity,
        )  # fmt: skip
        losses.sum().backward()
        found.append((losses.detach().numpy(), leaf.grad.numpy()))
    for wanted, got in zip(*found):
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)
    assert np.isnan(found[1][1]).any() != zero_infinity


def test_bases_and_reprs() -> None:
    assert isinstance(nn.GRU(2, 3), nn.RNNBase) and isinstance(nn.GRUCell(2, 3), nn.RNNCellBase)
    for library in (torch.nn, nn):
        layers = [library.Linear(2, 2), library.Linear(2, 2), library.ReLU()]
        text = repr(library.ModuleList(layers))
        assert "(0-1): 2 x Linear" in text and "\n  (2): ReLU()\n" in text


def test_new_functions_on_each_device(device: str) -> None:
    """Unpooling, a fused linear cross-entropy and attention, with second derivatives."""
    tc.set_default_device(device)
    x = tc.tensor(real(1, 1, 2, 2, 2), requires_grad=True)
    places = tc.tensor(np.array([0, 2, 8, 10, 32, 34, 40, 42]).reshape(1, 1, 2, 2, 2))
    weight = tc.tensor(real(3, 8), requires_grad=True)
    wide = nn.MaxUnpool3d(2)(x, places)
    loss = nn.functional.linear_cross_entropy(x.reshape(1, 8), weight, tc.tensor([1]))
    total = (wide * wide).sum() * 0.5 + loss
    (first,) = tc.autograd.grad(total, [x], create_graph=True)
    (second,) = tc.autograd.grad((first * first).sum(), [weight])
    p = np.exp(weight.detach().cpu().numpy() @ real(1, 1, 2, 2, 2).reshape(8))
    p = p / p.sum() - np.eye(3)[1]
    wanted = real(1, 1, 2, 2, 2).reshape(8) + p @ real(3, 8)
    np.testing.assert_allclose(first.detach().cpu().numpy().reshape(8), wanted, rtol=1e-12)
    assert float(second.abs().sum()) > 0


def test_linear_cross_entropy_as_a_layer() -> None:
    if not hasattr(pytest.importorskip("torch").nn, "LinearCrossEntropyLoss"):
        pytest.skip("this torch has no LinearCrossEntropyLoss")
    compare_layer(
        lambda library: library.LinearCrossEntropyLoss(4, 3, bias=True, label_smoothing=0.1),
        (real(5, 4), np.array([0, 2, 1, 1, 0])), "float64",
    )  # fmt: skip
