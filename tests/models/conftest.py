"""The devices on which models are tested."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.device import as_device


@pytest.fixture(params=["cpu", "emu", "cuda"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each device in turn, as the default one; skips where it is absent."""
    name = request.param
    if name == "cuda":
        name = request.getfixturevalue("cuda_device")
    try:
        registry.get(as_device(name))
    except tc.DeviceError as error:
        pytest.skip(str(error))
    tc.set_default_device(name)
    tc.manual_seed(0)
    yield name
    tc.set_default_device(None)
