"""tc.tune: kernels of products and convolutions by measurement, and what was chosen."""

from __future__ import annotations

from typing import NamedTuple

from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.config import TUNING, settings
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.engine.plan import decide
from tinygrad_cuda.engine.realize import realize_all
from tinygrad_cuda.kernels.restored import Restored


def _switch(mode: str) -> None:
    """Chooses kernels by the model of time or by measurements from here on, on all devices."""
    decide("tune", mode)
    for backend in registry.used():
        backend.tune(mode)


def tune(mode: bool | str = True) -> Restored:
    """Measures the kernels that can make a product or a convolution, and takes the quickest.

    From here on, or inside a `with` block, each product and convolution of a new plan is run by
    all kernels that may be quickest: once for its shapes, dtype, layout, epilogue and GPU. Products
    by cuBLASLt are among them where the extra ``cublas`` is installed. The choice is remembered in
    the cache folder, where later processes find it; with the same folder, results have the same
    bits. A kernel whose values are not those of the usual one is refused with a warning. What
    `kernels.use` and `kernels.provider` force is not measured.

    A block ends the measurements, not the use of what they chose. What was recorded before is
    computed first, as it was chosen then. NumPy's device has no kernels to choose from. The
    variable ``TGC_TUNE`` sets the first mode.

    Args:
        mode: ``"on"`` or True; ``"cached"``: what was measured before is used, and nothing is
            measured; ``"off"`` or False: the model of time chooses, as where this was never called.

    Raises:
        ArgumentError: the mode is another word.

    Example:
        >>> import tinygrad_cuda as tc
        >>> with tc.tune():
        ...     (tc.ones(2, 3, device="cpu") @ tc.ones(3, 2, device="cpu")).tolist()
        [[3.0, 3.0], [3.0, 3.0]]
        >>> _ = tc.tune(False)
    """
    chosen = {True: "on", False: "off"}.get(mode, mode) if isinstance(mode, bool) else mode
    if chosen not in TUNING:
        raise ArgumentError(
            "tune", "an unknown mode", expect=f"{', '.join(TUNING)}, True or False",
            actual=repr(mode),
        )  # fmt: skip
    realize_all()
    before = settings.tune
    _switch(chosen)
    after = "cached" if (before, chosen) == ("off", "on") else before
    return Restored(_switch, after)


class TunedKernel(NamedTuple):
    """A measured choice.

    Attributes:
        device: on which it was measured.
        problem: the operation, its operands' shapes, and what is computed behind it.
        kernel: tier and tile of the one that was chosen.
        microseconds: its time, with nothing in the L2 cache.
        model: the kernel that the model of time would take.
        model_microseconds: its time.
        times: all kernels that were measured, with their microseconds, the quickest first.
        refused: kernels that failed or gave other values, and how.
    """

    device: str
    problem: str
    kernel: str
    microseconds: float
    model: str
    model_microseconds: float
    times: tuple[tuple[str, float], ...]
    refused: tuple[str, ...]

    def __str__(self) -> str:
        line = f"{self.problem} on {self.device}: {self.kernel}, {self.microseconds:.2f} us"
        if self.kernel != self.model:
            line += f"; the model: {self.model}, {self.model_microseconds:.2f} us"
        return "\n".join([line, *(f"  refused: {text}" for text in self.refused)])


def choices() -> list[TunedKernel]:
    """The measured choices that plans are made with, of all devices used so far; see `tune`.

    Returns:
        A row for each product or convolution; `print` shows the choice and the times behind it.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.kernels.choices()  # nothing was measured
        []
    """
    return [
        TunedKernel(
            str(backend.device), one.problem, one.name, one.microseconds, one.model,
            one.model_microseconds, one.times, one.refused,
        )
        for backend in registry.used()
        for one in backend.tuned()
    ]  # fmt: skip
