"""tc.utils.cpp_extension: extensions of PyTorch in C++ and CUDA, which are refused by name.

They are linked to PyTorch's own library. A kernel of one's own is `tc.kernels.RawKernel`, from the
same CUDA C++.
"""

from __future__ import annotations

from typing import Any, NoReturn

from tinygrad_cuda.core.errors import ArgumentError

__all__ = [
    "BuildExtension", "CUDAExtension", "CUDA_HOME", "CppExtension", "include_paths", "load",
    "load_inline",
]  # fmt: skip

CUDA_HOME: str | None = None  # programs build their extension only where it says a folder


def _refuse(name: str) -> NoReturn:
    raise ArgumentError(
        name, "an extension of PyTorch cannot be built: it is linked to PyTorch's library",
        expect="a kernel as CUDA C++ text", actual=f"cpp_extension.{name}",
        hint="tc.kernels.RawKernel(source, name) launches a __global__ function of such a file; "
        "tc.kernels.custom_op gives it a gradient",
    )  # fmt: skip


def load(*args: Any, **options: Any) -> NoReturn:
    """Refused: see `tc.kernels.RawKernel`.

    Raises:
        ArgumentError: always.
    """
    _refuse("load")


def load_inline(*args: Any, **options: Any) -> NoReturn:
    """Refused: see `tc.kernels.RawKernel`.

    Raises:
        ArgumentError: always.
    """
    _refuse("load_inline")


def CppExtension(*args: Any, **options: Any) -> NoReturn:
    """Refused: see `tc.kernels.RawKernel`.

    Raises:
        ArgumentError: always.
    """
    _refuse("CppExtension")


def CUDAExtension(*args: Any, **options: Any) -> NoReturn:
    """Refused: see `tc.kernels.RawKernel`.

    Raises:
        ArgumentError: always.
    """
    _refuse("CUDAExtension")


def include_paths(*args: Any, **options: Any) -> NoReturn:
    """Refused: there are no headers.

    Raises:
        ArgumentError: always.
    """
    _refuse("include_paths")


class BuildExtension:
    """Refused: see `tc.kernels.RawKernel`.

    Raises:
        ArgumentError: always.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        _refuse("BuildExtension")

    @classmethod
    def with_options(cls, **options: Any) -> NoReturn:
        """Refused, as the class is."""
        _refuse("BuildExtension")
