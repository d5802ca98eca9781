"""tc.cuda.amp: autocast and GradScaler under the names they had before `tc.amp`."""

from __future__ import annotations

from functools import partial
from typing import Any

from tinygrad_cuda.amp.custom_function import custom_bwd as _custom_bwd
from tinygrad_cuda.amp.custom_function import custom_fwd as _custom_fwd
from tinygrad_cuda.amp.grad_scaler import GradScaler as _GradScaler
from tinygrad_cuda.tensors.autocast import autocast as _autocast


class autocast(_autocast):
    """`tc.autocast` for ``cuda``: ``autocast("cuda", ...)``."""

    def __init__(self, enabled: bool = True, dtype: Any = None, cache_enabled: bool = True) -> None:
        super().__init__("cuda", dtype, enabled, cache_enabled)


class GradScaler(_GradScaler):
    """`tc.amp.GradScaler` for ``cuda``."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__(
            "cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )


custom_fwd = partial(_custom_fwd, device_type="cuda")
custom_bwd = partial(_custom_bwd, device_type="cuda")

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]
