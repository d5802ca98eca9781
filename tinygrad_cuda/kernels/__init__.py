"""tc.kernels: which kernels make an operation."""

from __future__ import annotations

from tinygrad_cuda.core.config import MATMUL_TIERS, settings
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.engine.plan import use_matmul_tier
from tinygrad_cuda.engine.realize import realize_all

TIERS = {"matmul": MATMUL_TIERS}


class _Restored:
    """Puts back the tier of before when a `with` block ends."""

    def __init__(self, before: str) -> None:
        self._before = before

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        realize_all()
        use_matmul_tier(self._before)


def use(op: str, tier: str | None) -> _Restored:
    """Forces the kernels of an operation, from here on or inside a `with` block.

    Results keep their dtype and their errors; the order of sums differs from tier to tier. What was
    recorded before is computed first, as it was chosen then. NumPy's device has no tiers. The
    variable ``TGC_MATMUL_TIER`` sets the first choice.

    Args:
        op: ``"matmul"``.
        tier: ``"naive"`` (a thread for each output), ``"tiled"`` (tiles in shared memory),
            ``"register_tiled"`` (8 x 8 sums of a thread), ``"mma"`` or ``"wgmma"`` (matrix units);
            None leaves the choice to the model of time. A product that the tier cannot make, such
            as one of float64 on matrix units, raises ArgumentError when it is computed.

    Raises:
        ArgumentError: the operation has no tiers, or none of this name.

    Example:
        >>> import tinygrad_cuda as tc
        >>> with tc.kernels.use("matmul", "tiled"):
        ...     (tc.ones(2, 3) @ tc.ones(3, 2)).tolist()
        [[3.0, 3.0], [3.0, 3.0]]
    """
    if op not in TIERS:
        raise ArgumentError(
            "kernels.use", "an operation without tiers", expect=", ".join(TIERS), actual=repr(op)
        )
    if tier is not None and tier not in TIERS[op]:
        raise ArgumentError(
            "kernels.use", "an unknown tier", expect=f"{', '.join(TIERS[op])} or None",
            actual=repr(tier),
        )  # fmt: skip
    realize_all()
    before = settings.matmul_tier
    use_matmul_tier(tier or "")
    return _Restored(before)


__all__ = ["TIERS", "use"]
