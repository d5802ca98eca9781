"""What the bindings of all libraries share: errors, and calls that become a graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from tinygrad_cuda.backend.cuda.handles import DriverCalls
from tinygrad_cuda.core.errors import ArgumentError, CudaError
from tinygrad_cuda.core.locks import forks_wait, new_lock

SMALLEST = 256  # bytes of a workspace, also where a call asks for none


class SharedWorkspace:
    """Memory of the GPU's pool for the calls of a library, of which no two run at one time.

    Args:
        allocate: memory of so many bytes.
    """

    def __init__(self, allocate: Callable[[int], Any]) -> None:
        self._allocate, self._memory = allocate, None

    def of(self, nbytes: int) -> Any:
        """Memory for any call that needs so many bytes; what graphs hold of it stays theirs."""
        if self._memory is None or self._memory.nbytes < nbytes:
            self._memory = self._allocate(max(nbytes, SMALLEST))
        return self._memory


class Library(ABC):
    """A library on one GPU.

    Args:
        gpu: whose context and streams it uses.
        module: its bindings.
        failure: what these raise.

    Attributes:
        extra: that installs it.
        title: its name for a reader.
        file: what its bindings load, without the version.
        made: what it makes in place of kernels.
        package: that has its bindings.
    """

    extra, title, file, made = "", "", "", ""
    package = "nvmath-python"

    def __init__(self, gpu: DriverCalls, module: Any, failure: type[Exception]) -> None:
        self.gpu, self.module, self.failure = gpu, module, failure
        self.lock = new_lock()
        self._stream: Any = None  # of captures
        gpu.enter()

    @staticmethod
    @abstractmethod
    def imported() -> Any:
        """The module of its bindings, which may not be there."""

    @staticmethod
    def version_of(module: Any) -> int:
        """The version of the library, which its bindings have to load for that."""
        return int(module.get_version())

    @classmethod
    def bindings(cls, op: str = "kernels.provider") -> Any:
        """The module of its bindings, whose library has been found.

        Args:
            op: what asks for it.

        Raises:
            ArgumentError: the package or the library is not installed.
        """
        try:
            with forks_wait:
                module = cls.imported()
        except ImportError as error:
            raise cls.absent(op, f"no package {cls.package} ({error})") from None
        try:
            cls.version_of(module)
        except Exception as error:  # each version of the bindings has a class of its own for it
            text = str(error).splitlines() or [type(error).__name__]
            reason = f"{cls.package} does not load {cls.file} ({text[0]})"
            raise cls.absent(op, reason) from None
        return module

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls the library.

        Raises:
            CudaError: it reports a failure.
        """
        try:
            return getattr(self.module, name)(*arguments)
        except self.failure as error:
            raise CudaError(
                self.extra, f"a call of {self.title} failed", expect=f"{name} succeeds",
                actual=str(error), hint=self.hint(),
            ) from None  # fmt: skip

    def captured(self, start: Callable[[Any], None]) -> Any:
        """What is started on a stream as a graph of its own, which whoever asks destroys."""
        gpu = self.gpu
        gpu.enter()
        with self.lock:
            stream = self._capture_stream()
            mode = gpu.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            gpu.call("cuStreamBeginCapture", stream, mode)
            graph = None
            try:
                start(stream)
            finally:
                graph = gpu.call("cuStreamEndCapture", stream)
        return graph

    def _capture_stream(self) -> Any:
        """A stream on which nothing runs: what it is given becomes part of a graph."""
        if self._stream is None:
            kind = self.gpu.driver.CUstream_flags
            self._stream = self.gpu.call("cuStreamCreate", int(kind.CU_STREAM_NON_BLOCKING))
        return self._stream

    @classmethod
    def hint(cls) -> str:
        """How to do without it."""
        return f"tc.kernels.provider(None) has generated kernels make {cls.made}"

    @classmethod
    def absent(cls, op: str, actual: str) -> ArgumentError:
        """What to do where it is not installed."""
        return ArgumentError(
            op, f"{cls.title} is not installed",
            expect=f"pip install 'tinygrad_cuda[{cls.extra}]'", actual=actual,
            hint=f"{cls.made} need no library: tc.kernels.provider(None)",
        )  # fmt: skip


__all__ = ["Library", "SharedWorkspace"]
