"""Tests whose module lists them as PRETENDED run on a pretended GPU where there is no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pretended_gpu import pretended_gpu

from tinygrad_cuda.backend.cuda import driver as runtime
from tinygrad_cuda.backend.emu.compiler import toolchain
from tinygrad_cuda.core.errors import DeviceError


@pytest.fixture
def some_gpu(request: pytest.FixtureRequest) -> Iterator[str]:
    listed = request.function.__name__ in request.module.PRETENDED
    if not listed or runtime.available() or request.config.getoption("--require-cuda"):
        yield request.getfixturevalue("cuda_device")
        return
    try:
        toolchain()
    except DeviceError as error:
        pytest.skip(str(error))
    with pretended_gpu():
        yield "cuda"
