"""Classes and settings of the rooms above that guards treat by themselves; `capture` names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Kind = type[Any] | tuple[()]


class Kinds:
    """Without one of these its objects count as any others.

    Attributes:
        tensor: values that a replay reads again.
        module: its parameters, buffers and hooks are followed.
        optimizer, scheduler: replays step them.
        scaler: what it holds is read as Python numbers.
        dataset: the package's read all that they hold.
        settings: functions that return a setting, by the names that code has for them.
    """

    tensor: Kind = ()
    module: Kind = ()
    optimizer: Kind = ()
    scheduler: Kind = ()
    scaler: Kind = ()
    dataset: Kind = ()
    settings: dict[str, Callable[[], Any]] = {}


kinds = Kinds()
