"""tc.cuda.amp: autocast and GradScaler under the names they had before `tc.amp`."""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.amp.grad_scaler import GradScaler as _GradScaler
from tinygrad_cuda.tensor.autocast import autocast as _autocast


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


__all__ = ["GradScaler", "autocast"]
