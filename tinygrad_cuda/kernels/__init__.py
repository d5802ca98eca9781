"""tc.kernels: which kernels make an operation."""

from __future__ import annotations

from functools import partial

from tinygrad_cuda.backend.cuda import driver
from tinygrad_cuda.backend.cuda.libraries.cublas import CublasLt
from tinygrad_cuda.backend.cuda.libraries.cudnn import Cudnn
from tinygrad_cuda.backend.cuda.libraries.cufft import Cufft
from tinygrad_cuda.core.config import CONVOLUTION_TIERS, MATMUL_TIERS, PROVIDERS, settings
from tinygrad_cuda.core.errors import ArgumentError, DeviceError
from tinygrad_cuda.engine.plan import decide
from tinygrad_cuda.engine.realize import realize_all
from tinygrad_cuda.kernels.restored import Restored
from tinygrad_cuda.kernels.tuning import TunedKernel, choices, tune

TIERS = {"matmul": MATMUL_TIERS, "convolution": CONVOLUTION_TIERS}
LIBRARIES = {"cublas": CublasLt, "cudnn": Cudnn, "cufft": Cufft}


def use(op: str, tier: str | None) -> Restored:
    """Forces the kernels of an operation, from here on or inside a `with` block.

    Results keep their dtype and their errors; the order of sums differs from tier to tier. What was
    recorded before is computed first, as it was chosen then. NumPy's device has no tiers. The
    variables ``TGC_MATMUL_TIER`` and ``TGC_CONVOLUTION_TIER`` set the first choices.

    Args:
        op: ``"matmul"``, or ``"convolution"`` with both of its gradients.
        tier: ``"naive"`` (a thread for each output), ``"tiled"`` (tiles in shared memory),
            ``"register_tiled"`` (8 x 8 sums of a thread), ``"mma"`` or ``"wgmma"`` (matrix units).
            These read the windows of a convolution from its images; ``"im2col"`` stores them as
            columns and multiplies these, ``"direct"`` keeps images in shared memory (few channels),
            ``"depthwise"`` sums groups of few channels tap by tap, and ``"winograd"`` multiplies
            transforms of tiles (3 x 3 windows). None leaves the choice to the model of time. What
            the tier cannot make, such as a product of float64 on matrix units, raises ArgumentError
            when it is computed.

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
    field = f"{op}_tier"
    before = getattr(settings, field)
    decide(field, tier or "")
    return Restored(partial(decide, field), before)


def provider(name: str | None) -> Restored:
    """Has a library make some operations on GPUs, from here on or inside a `with` block.

    Calls are part of a plan's CUDA graph. Those of ``"cublas"`` (cuBLASLt) take any transposition
    and batch of float16, bfloat16, float32 (as `tc.set_float32_matmul_precision` permits) and
    float64, and a bias and a ReLU or a GELU by tanh behind the product; what else follows is a
    kernel of its own. The algorithm is the library's first recommendation for the shape, so that
    results have the same bits in each run.

    Those of ``"cudnn"`` (cuDNN) make convolutions and both of their gradients, of float16, bfloat16
    and float32 (as tf32 where precision and `tc.backends.cudnn.allow_tf32` permit it), by the first
    engine of its heuristic that gives the same bits in each run; and attention of half types
    without masks or dropout, in the deterministic mode of its gradients.

    Those of ``"cufft"`` (cuFFT) make the transforms of `tc.fft` of any length, batched over the
    last axis. A factor behind them is a kernel of its own, or part of the next one.

    One library is chosen at a time; the package's kernels make all else, what it does not make
    among it, and a tier that `use` forces goes before. What was recorded before is computed
    first. The variable ``TGC_PROVIDER`` sets the first choice.

    Args:
        name: ``"cublas"``, ``"cudnn"`` or ``"cufft"``, each an extra: ``pip install
            'tinygrad_cuda[cufft]'``; None has the package's own kernels make everything, as they do
            at first.

    Raises:
        ArgumentError: there is no provider of this name, or it is not installed; later, where a
            product, a convolution or a transform is computed on ``cpu`` or ``emu``, which have no
            libraries.
        DeviceError: there is no GPU.

    Example:
        >>> import tinygrad_cuda as tc
        >>> with tc.kernels.provider(None):
        ...     (tc.ones(2, 3) @ tc.ones(3, 2)).tolist()
        [[3.0, 3.0], [3.0, 3.0]]
    """
    if name is not None:
        if name not in PROVIDERS:
            raise ArgumentError(
                "kernels.provider", "an unknown provider",
                expect=f"{', '.join(PROVIDERS)} or None", actual=repr(name),
            )  # fmt: skip
        if not driver.available():
            raise DeviceError(
                "kernels.provider", f"{name!r} does not run on the devices 'cpu' and 'emu'",
                expect="a CUDA device", actual=driver.reason(),
            )  # fmt: skip
        LIBRARIES[name].bindings()
    realize_all()
    before = settings.provider
    decide("provider", name or "")
    return Restored(partial(decide, "provider"), before)


__all__ = ["TIERS", "TunedKernel", "choices", "provider", "tune", "use"]
