"""Hooks of optimizers: functions called before and after steps, and around states.

A step that a compiled function repeats calls none, so one with hooks is not compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import chain
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.tensors.tensor import RemovableHandle

Hook = Callable[..., Any]
KINDS = ("step_pre", "step_post", "state_pre", "state_post", "load_pre", "load_post")
# Of all optimizers.
_everywhere: dict[str, list[Hook]] = {"step_pre": [], "step_post": []}


class Hooked:
    """What an optimizer has for its hooks; `step` of a subclass calls them as well."""

    # An optimizer around another one may leave out `__init__`: it has no hooks, as in PyTorch.
    _stepping = True

    def __init__(self) -> None:
        self._hooks: dict[str, list[Hook]] = {kind: [] for kind in KINDS}
        self._stepping = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "step" in cls.__dict__:
            cls.step = _calling(cls.__dict__["step"])  # type: ignore[attr-defined]

    def has_step_hooks(self) -> bool:
        """Whether a step calls any, of its own or of all optimizers."""
        own = self._hooks["step_pre"] or self._hooks["step_post"]
        return bool(own or _everywhere["step_pre"] or _everywhere["step_post"])

    def register_step_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Has ``hook(optimizer, args, kwargs)`` called before each step.

        What it returns, unless None, replaces ``(args, kwargs)`` of `step`; args begin
        with the optimizer.
        """
        return _added(self._hooks["step_pre"], hook)

    def register_step_post_hook(self, hook: Hook) -> RemovableHandle:
        """Has ``hook(optimizer, args, kwargs)`` called after each step."""
        return _added(self._hooks["step_post"], hook)

    def register_state_dict_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Has ``hook(optimizer)`` called before `state_dict`; `prepend`: before other hooks."""
        return _added(self._hooks["state_pre"], hook, prepend)

    def register_state_dict_post_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Has ``hook(optimizer, state_dict)`` called; it may change or return another one."""
        return _added(self._hooks["state_post"], hook, prepend)

    def register_load_state_dict_pre_hook(
        self, hook: Hook, prepend: bool = False
    ) -> RemovableHandle:
        """Has ``hook(optimizer, state_dict)`` called before loading; it may return another."""
        return _added(self._hooks["load_pre"], hook, prepend)

    def register_load_state_dict_post_hook(
        self, hook: Hook, prepend: bool = False
    ) -> RemovableHandle:
        """Has ``hook(optimizer)`` called after loading."""
        return _added(self._hooks["load_post"], hook, prepend)

    def through_hooks(self, kind: str, state: dict[str, Any]) -> dict[str, Any]:
        """The state after all hooks of a kind, each of which may replace it."""
        for hook in list(self._hooks[kind]):
            replaced = hook(self, state)
            state = state if replaced is None else replaced
        return state

    def call_hooks(self, kind: str) -> None:
        """Calls all hooks of a kind with the optimizer alone."""
        for hook in list(self._hooks[kind]):
            hook(self)


def register_optimizer_step_pre_hook(hook: Hook) -> RemovableHandle:
    """Has ``hook(optimizer, args, kwargs)`` called before each step of every optimizer."""
    return _added(_everywhere["step_pre"], hook)


def register_optimizer_step_post_hook(hook: Hook) -> RemovableHandle:
    """Has ``hook(optimizer, args, kwargs)`` called after each step of every optimizer."""
    return _added(_everywhere["step_post"], hook)


def _added(hooks: list[Hook], hook: Hook, first: bool = False) -> RemovableHandle:
    # A hook may be registered twice: each handle takes its own away.
    def own(*arguments: Any) -> Any:
        return hook(*arguments)

    hooks.insert(0 if first else len(hooks), own)
    return RemovableHandle(lambda: hooks.remove(own))


def _calling(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step with the hooks around it; one that calls its parent's calls them once."""

    @functools.wraps(step)
    def hooked(self: Hooked, *given: Any, **kwargs: Any) -> Any:
        args = (self, *given)
        if self._stepping or not self.has_step_hooks():
            return step(*args, **kwargs)
        self._stepping = True
        try:
            for hook in chain(_everywhere["step_pre"][:], self._hooks["step_pre"][:]):
                args, kwargs = _replaced(hook(self, args, kwargs), args, kwargs)
            result = step(*args, **kwargs)
            for hook in chain(self._hooks["step_post"][:], _everywhere["step_post"][:]):
                hook(self, args, kwargs)
        finally:
            self._stepping = False
        return result

    return hooked


def _replaced(given: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    if given is None:
        return args, kwargs
    if not isinstance(given, tuple) or len(given) != 2:
        raise ArgumentError(
            "step", "a hook before it returned something else", expect="None or (args, kwargs)",
            actual=type(given).__name__,
        )  # fmt: skip
    return given
