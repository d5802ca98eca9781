"""The devices on which models are tested."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.device import as_device


def _default(request: pytest.FixtureRequest) -> Iterator[str]:
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


@pytest.fixture(params=["cpu", "emu", "cuda"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each device in turn, as the default one; skips where it is absent."""
    yield from _default(request)


@pytest.fixture(params=["emu", "cuda"])
def kernel_device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The same for devices that run generated kernels, and overwrite."""
    yield from _default(request)
