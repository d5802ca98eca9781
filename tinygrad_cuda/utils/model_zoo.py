"""tc.utils.model_zoo: the older name of `tc.hub`'s weights from an address."""

from __future__ import annotations

from tinygrad_cuda.hub import load_state_dict_from_url

__all__ = ["load_url"]

load_url = load_state_dict_from_url
