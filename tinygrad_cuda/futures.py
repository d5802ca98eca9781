"""tc.futures: results that another thread or a callback gives later, by PyTorch's names."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from tinygrad_cuda.core.errors import ArgumentError

__all__ = ["Future", "collect_all", "wait_all"]

T = TypeVar("T")
S = TypeVar("S")


class Future(Generic[T]):
    """A result that is not there yet.

    Args:
        devices: accepted as in PyTorch; a Tensor here is waited for when it is looked at.

    Example:
        >>> future = Future()
        >>> later = future.then(lambda done: done.value() + 1)
        >>> future.set_result(2)
        >>> later.wait()
        3
    """

    def __init__(self, *, devices: Any = None) -> None:
        self._inner: concurrent.futures.Future[T] = concurrent.futures.Future()

    def done(self) -> bool:
        """Whether there is a result or an exception."""
        return self._inner.done()

    def wait(self) -> T:
        """The result, as soon as it is there; an exception is raised."""
        return self._inner.result()

    def value(self) -> T:
        """The result, which must be there.

        Raises:
            ArgumentError: it is not.
        """
        if not self.done():
            raise ArgumentError(
                "Future.value", "there is no result yet", expect="a future that is done",
                actual="one that is not", hint="wait() waits for it",
            )  # fmt: skip
        return self._inner.result()

    def then(self, callback: Callable[[Future[T]], S]) -> Future[S]:
        """What ``callback(self)`` returns once this one is done, or the exception it raises."""
        later: Future[S] = Future()

        def call(_: Any) -> None:
            try:
                result = callback(self)
            except Exception as error:
                later._inner.set_exception(error)
            else:
                later._inner.set_result(result)

        self._inner.add_done_callback(call)
        return later

    def add_done_callback(self, callback: Callable[[Future[T]], None]) -> None:
        """Has ``callback(self)`` called once this one is done, at once if it is."""
        self._inner.add_done_callback(lambda _: callback(self))

    def set_result(self, result: T) -> None:
        """Gives the result, once.

        Raises:
            ArgumentError: there is one already.
        """
        self._check_open()
        self._inner.set_result(result)

    def set_exception(self, result: BaseException) -> None:
        """Has `wait` and `value` raise an exception.

        Raises:
            ArgumentError: it is none, or there is a result already.
        """
        if not isinstance(result, BaseException):
            raise ArgumentError(
                "Future.set_exception", "not an exception", expect="an exception",
                actual=type(result).__name__,
            )  # fmt: skip
        self._check_open()
        self._inner.set_exception(result)

    def _check_open(self) -> None:
        if self.done():
            raise ArgumentError(
                "Future", "there is a result already", expect="one result", actual="a second one"
            )


def collect_all(futures: Sequence[Future[Any]]) -> Future[list[Future[Any]]]:
    """A future of the list of these, done when all of them are; none of them raises there.

    Example:
        >>> a, b = Future(), Future()
        >>> both = collect_all([a, b])
        >>> a.set_result(1)
        >>> b.set_result(2)
        >>> [future.value() for future in both.wait()]
        [1, 2]
    """
    every: Future[list[Future[Any]]] = Future()
    open_ones = set(range(len(futures)))

    def close(number: int, _: Any) -> None:
        open_ones.discard(number)
        if not open_ones and not every.done():
            every.set_result(list(futures))

    if not futures:
        every.set_result([])
    for number, future in enumerate(futures):
        future._inner.add_done_callback(partial(close, number))
    return every


def wait_all(futures: Sequence[Future[Any]]) -> list[Any]:
    """The results of all, in order, waited for; the first exception is raised."""
    return [future.wait() for future in collect_all(futures).wait()]
