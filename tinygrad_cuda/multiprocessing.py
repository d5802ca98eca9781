"""tc.multiprocessing: Python's own, and `spawn`; a Tensor travels as a copy of its values."""

from __future__ import annotations

import multiprocessing as _python
from collections.abc import Callable
from multiprocessing import *  # noqa: F403
from typing import Any

__all__ = [*_python.__all__, "get_all_sharing_strategies", "get_sharing_strategy",
           "set_sharing_strategy", "spawn", "start_processes"]  # fmt: skip


class ProcessContext:
    """What `spawn` returns with ``join=False``.

    Args:
        processes: that have been started.
    """

    def __init__(self, processes: list[Any]) -> None:
        self.processes = processes

    def pids(self) -> list[int | None]:
        """The processes' ids."""
        return [process.pid for process in self.processes]

    def join(self, timeout: float | None = None) -> bool:
        """Waits; True when all have ended.

        Raises:
            RuntimeError: a process ended with another status than 0; the others are ended.
        """
        for process in self.processes:
            process.join(timeout)
        failed = [process for process in self.processes if process.exitcode]
        if failed:
            for process in self.processes:
                process.terminate()
            raise RuntimeError(
                f"process {self.processes.index(failed[0])} terminated with exit code "
                f"{failed[0].exitcode}"
            )
        return all(process.exitcode is not None for process in self.processes)


def start_processes(
    fn: Callable[..., Any], args: Any = (), nprocs: int = 1, join: bool = True,
    daemon: bool = False, start_method: str = "spawn",
) -> ProcessContext | None:  # fmt: skip
    """Calls ``fn(i, *args)`` in `nprocs` new processes, i from 0.

    Args:
        fn: at the top of a module, so that a process can import it.
        join: wait for them; else a `ProcessContext` is returned.
        daemon: end them with this process.
        start_method: ``spawn``, ``fork`` or ``forkserver``.

    Raises:
        RuntimeError: a process ended with another status than 0.
    """
    context: Any = _python.get_context(start_method)
    started = [
        context.Process(target=fn, args=(i, *args), daemon=daemon) for i in range(nprocs)
    ]  # fmt: skip
    for process in started:
        process.start()
    group = ProcessContext(started)
    if not join:
        return group
    while not group.join():
        pass
    return None


def spawn(
    fn: Callable[..., Any], args: Any = (), nprocs: int = 1, join: bool = True,
    daemon: bool = False, start_method: str = "spawn",
) -> ProcessContext | None:  # fmt: skip
    """See `start_processes`."""
    return start_processes(fn, args, nprocs, join, daemon, start_method)


def get_all_sharing_strategies() -> set[str]:
    """``{"file_system"}``: accepted as in PyTorch, no memory is shared."""
    return {"file_system"}


def get_sharing_strategy() -> str:
    """``"file_system"``."""
    return "file_system"


def set_sharing_strategy(new_strategy: str) -> None:
    """Accepted as in PyTorch: a Tensor travels as a copy of its values."""
