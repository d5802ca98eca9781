"""tc.backends.cuda: how precise products are, and which attention kernels may be taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tinygrad_cuda.backend.cuda import driver
from tinygrad_cuda.core.config import PRECISIONS, ROUNDED, settings
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.engine.plan import decide
from tinygrad_cuda.engine.realize import realize_all

_attention = {"flash": True, "mem_efficient": True, "math": True, "cudnn": True}


def set_float32_matmul_precision(precision: str) -> None:
    """How exact products, convolutions and attention of float32 are.

    With ``highest``, the default, errors against exact results are not above those of a float32
    sum: from sm_80 on large ones split each operand in two numbers of 10 mantissa bits (tf32) and
    sum three products on matrix units, as do the steps of large recurrent layers on sm_90;
    ``tf32x3`` has all recurrent steps do so there. Of convolutions those with one tap do, and the
    products of 3 x 3 ones by tiles; float32 units sum the others. With ``high`` and ``medium``
    large ones multiply such numbers once, where a GPU has wgmma (sm_90), and attention from sm_80
    on: a result errs by about 1e-3 of the largest; ``backends.cudnn.allow_tf32 = False`` excepts
    convolutions from it. With ``ieee`` none uses matrix units. What was recorded before is
    computed first, as it was permitted then.

    Args:
        precision: ``highest``, ``high``, ``medium``, ``ieee`` or ``tf32x3``;
            ``TGC_MATMUL_PRECISION`` at first.

    Raises:
        ArgumentError: the word is another one.
    """
    if precision not in PRECISIONS:
        raise ArgumentError(
            "set_float32_matmul_precision", "unknown precision", expect=", ".join(PRECISIONS),
            actual=repr(precision),
        )  # fmt: skip
    realize_all()
    decide("matmul_precision", precision)


def get_float32_matmul_precision() -> str:
    """What `set_float32_matmul_precision` was given; ``highest`` at first."""
    return settings.matmul_precision


class _Matmul:
    """``tc.backends.cuda.matmul``.

    Attributes:
        allow_tf32: whether less than float32 is permitted, see `set_float32_matmul_precision`.
        allow_fp16_reduced_precision_reduction: accepted; sums of half products are float32.
        allow_bf16_reduced_precision_reduction: the same.
    """

    allow_fp16_reduced_precision_reduction = False
    allow_bf16_reduced_precision_reduction = False

    @property
    def allow_tf32(self) -> bool:
        return settings.matmul_precision in ROUNDED

    @allow_tf32.setter
    def allow_tf32(self, value: bool) -> None:
        if value or self.allow_tf32:
            set_float32_matmul_precision("high" if value else "highest")


matmul = _Matmul()


def is_built() -> bool:
    """Whether there is a usable GPU: kernels are compiled at run time, not when this is built."""
    return driver.available()


def flash_sdp_enabled() -> bool:
    """What `enable_flash_sdp` was given; True at first."""
    return _attention["flash"]


def mem_efficient_sdp_enabled() -> bool:
    """What `enable_mem_efficient_sdp` was given; True at first."""
    return _attention["mem_efficient"]


def math_sdp_enabled() -> bool:
    """What `enable_math_sdp` was given; True at first."""
    return _attention["math"]


def cudnn_sdp_enabled() -> bool:
    """What `enable_cudnn_sdp` was given; True at first."""
    return _attention["cudnn"]


def enable_flash_sdp(enabled: bool) -> None:
    """Accepted as in PyTorch: attention is one kernel, whatever is permitted."""
    _attention["flash"] = enabled


def enable_mem_efficient_sdp(enabled: bool) -> None:
    """Accepted as in PyTorch: attention is one kernel, whatever is permitted."""
    _attention["mem_efficient"] = enabled


def enable_math_sdp(enabled: bool) -> None:
    """Accepted as in PyTorch: attention is one kernel, whatever is permitted."""
    _attention["math"] = enabled


def enable_cudnn_sdp(enabled: bool) -> None:
    """Accepted as in PyTorch: attention is one kernel, whatever is permitted."""
    _attention["cudnn"] = enabled


@contextmanager
def sdp_kernel(
    enable_flash: bool = True,
    enable_math: bool = True,
    enable_mem_efficient: bool = True,
    enable_cudnn: bool = True,
) -> Iterator[None]:
    """Gives the permissions for a block; no result depends on them."""
    before = dict(_attention)
    _attention.update(
        flash=enable_flash, math=enable_math, mem_efficient=enable_mem_efficient,
        cudnn=enable_cudnn,
    )  # fmt: skip
    try:
        yield
    finally:
        _attention.update(before)
