"""tc.onnx.export: files run on a GPU by ONNX Runtime, where it has the provider."""

from __future__ import annotations

import io

import numpy as np
import onnxruntime
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn


@pytest.mark.parametrize("provider", ["CUDAExecutionProvider", "TensorrtExecutionProvider"])
def test_provider(provider: str) -> None:
    """Convolutions, batch norm and a linear layer, to a tolerance of tf32."""
    if provider not in onnxruntime.get_available_providers():
        pytest.skip(f"this onnxruntime has no {provider}: install onnxruntime-gpu")
    tc.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 3),
    ).cpu().eval()  # fmt: skip
    x = tc.randn(5, 1, 8, 8, device="cpu")
    file = io.BytesIO()
    tc.onnx.export(model, x, file, dynamic_axes={"input": {0: "batch"}})
    session = onnxruntime.InferenceSession(file.getvalue(), providers=[provider])
    assert session.get_providers()[0] == provider
    (y,) = session.run(None, {"input": x.numpy()})
    np.testing.assert_allclose(y, model(x).detach().numpy(), rtol=1e-2, atol=1e-2)
