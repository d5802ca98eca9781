"""What a `with` block puts back: the choice of kernels of before."""

from __future__ import annotations

from collections.abc import Callable

from tinygrad_cuda.engine.realize import realize_all


class Restored:
    """Makes another choice when a `with` block ends.

    Args:
        choose: makes it, after what the block recorded was computed.
        before: what is chosen then.
    """

    def __init__(self, choose: Callable[[str], None], before: str) -> None:
        self._choose, self._before = choose, before

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        realize_all()
        self._choose(self._before)
