"""tc.version: of this package and of CUDA's run-time compiler."""

from __future__ import annotations

from importlib import metadata

from tinygrad_cuda.core import version as __version__

__all__ = ["__version__", "cuda", "debug", "git_version", "hip"]

debug = False
git_version = "unknown"
hip = None


def _release(package: str) -> str | None:
    """Major and minor number of an installed package."""
    try:
        return ".".join(metadata.version(package).split(".")[:2])
    except metadata.PackageNotFoundError:
        return None


cuda = _release("nvidia-cuda-nvrtc")
