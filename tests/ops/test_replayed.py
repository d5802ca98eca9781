"""Every row's kernels replayed as a graph, and launched in other legal orders: the same bits."""

from __future__ import annotations

import pytest
import samples
from execution import Results, collected, device_or_skip

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.launch.executable import LoweredExecutable
from tinygrad_cuda.core.config import settings

CHUNKS = samples.chunks(300)
BY_CHUNK = pytest.mark.parametrize("chunk", list(CHUNKS))


def different(first: Results, again: Results) -> list[str]:
    """The samples whose bytes differ."""
    return [
        label
        for label, results in first.items()
        if [value.tobytes() for value in results] != [value.tobytes() for value in again[label]]
    ]


@BY_CHUNK
def test_replay_gives_the_bits_of_single_launches(
    chunk: str, request: pytest.FixtureRequest
) -> None:
    """The first run launches singly, the next builds the graph, the last replays it."""
    batch = collected(CHUNKS[chunk], device_or_skip("cuda", request))
    executable = registry.get(batch.device).compile(batch.program())
    run = batch.runner(executable)
    first = run(batch.arrays)
    for _ in range(3):
        assert not different(first, run(batch.arrays))
    assert isinstance(executable, LoweredExecutable)
    assert executable.replays


@BY_CHUNK
def test_any_order_of_launches_gives_the_same_bits(
    chunk: str, request: pytest.FixtureRequest
) -> None:
    """What the edges between launches allow, the emulator does."""
    batch = collected(CHUNKS[chunk], device_or_skip("emu", request))
    run = batch.runner(registry.get(batch.device).compile(batch.program()))
    first = run(batch.arrays)
    for seed in (1, 2):
        with settings.override(emu_launches=seed):
            assert not different(first, run(batch.arrays))
