"""check_versions: gradients raise where PyTorch finds a value written in place."""

from __future__ import annotations

from tinygrad_cuda.graph.versions import versions


class check_versions:
    """Whether a gradient raises if a value that it needs was written in place since.

    By default gradients use the values as recorded, whatever was written later. With the check on
    they raise where PyTorch does: for all that an operation whose gradient is computed has saved,
    with the lines of the operation and of the write. Holds at once for all threads; in a `with`
    block until its end. Compiled functions run as they are meanwhile.

    Args:
        mode: whether to check; only what is recorded from then on is checked.

    Raises:
        GradientError: from `backward` and `grad`, a value was written between.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([1.0, 2.0], device="cpu", requires_grad=True)
        >>> with tc.autograd.check_versions(True):
        ...     y = x.exp()
        ...     loss = y.sum()
        ...     y.mul_(2)
        ...     loss.backward()
        Traceback (most recent call last):
        ...
        tinygrad_cuda.GradientError: [backward] a value that the gradient needs was modified ...
        ...
    """

    def __init__(self, mode: bool = True) -> None:
        self._before = versions.on
        _switch(mode)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        _switch(self._before)


def _switch(mode: bool) -> None:
    if mode is not versions.on:
        versions.clear()
    versions.on = mode
