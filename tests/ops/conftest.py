"""What tests of operations share."""

from __future__ import annotations

import pytest
from bench import Bench
from execution import device_or_skip


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(device_or_skip("emu", request))
