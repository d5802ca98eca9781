"""What a module's state is called by name, and hooks around saving and loading it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError, DTypeError
from tinygrad_cuda.nn.hooks import add_hook
from tinygrad_cuda.nn.state import IncompatibleKeys, load
from tinygrad_cuda.tensors.tensor import RemovableHandle, Tensor

Hook = Callable[..., Any]
KINDS = ("save_pre", "save_post", "load_pre", "load_post")
# The layout's version that PyTorch passes to hooks.
METADATA = {"version": 1}


class StateHooks:
    """The part of `Module` that has to do with names in the state and hooks on it."""

    _state_hooks: dict[str, dict[int, Hook]]
    _buffers: dict[str, Any]
    _modules: dict[str, Any]
    _parameters: dict[str, Any]

    def get_submodule(self, target: str) -> Any:
        """The module below that has the dotted name `target`; "" is this one.

        Raises:
            AttributeError: there is none.
        """
        module: Any = self
        for name in target.split(".") if target else ():
            module = getattr(module, name)
            if not isinstance(module, StateHooks):
                raise AttributeError(f"{name!r} in {target!r} is not a Module")
        return module

    def get_parameter(self, target: str) -> Any:
        """The Parameter with the dotted name `target`.

        Raises:
            AttributeError: there is none.
        """
        return self._found("_parameters", "parameter", target)

    def get_buffer(self, target: str) -> Tensor:
        """The buffer with the dotted name `target`.

        Raises:
            AttributeError: there is none.

        Example:
            >>> import tinygrad_cuda as tc
            >>> tc.nn.BatchNorm1d(2, device="cpu").get_buffer("running_mean").tolist()
            [0.0, 0.0]
        """
        buffer: Tensor = self._found("_buffers", "buffer", target)
        return buffer

    def _found(self, table: str, what: str, target: str) -> Any:
        path, _, name = target.rpartition(".")
        value = getattr(self.get_submodule(path), table).get(name)
        if value is None:
            raise AttributeError(f"there is no {what} {target!r}")
        return value

    # Registration --------------------------------------------------------------------------

    def register_state_dict_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Calls ``hook(module, prefix, keep_vars)`` before `state_dict` collects this module.

        Returns:
            A handle whose `remove()` takes the hook away.
        """
        return self._add("save_pre", hook)

    def register_state_dict_post_hook(self, hook: Hook) -> RemovableHandle:
        """Calls ``hook(module, state_dict, prefix, local_metadata)`` when this module is collected.

        It may change the dict in place, and returns nothing.

        Returns:
            A handle whose `remove()` takes the hook away.
        """
        return self._add("save_post", hook)

    def register_load_state_dict_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Calls a hook before values are looked up for this module.

        The hook gets ``(module, state_dict, prefix, local_metadata, strict, missing_keys,
        unexpected_keys, error_msgs)`` and may change the dict, a copy, in place: rename old names.

        Returns:
            A handle whose `remove()` takes the hook away.
        """
        return self._add("load_pre", hook)

    def register_load_state_dict_post_hook(self, hook: Hook) -> RemovableHandle:
        """Calls ``hook(module, incompatible_keys)`` when values are loaded.

        It may change the two lists of names in place before `strict` looks at them, and returns
        nothing. Where there is such a hook, what fits is written before that.

        Returns:
            A handle whose `remove()` takes the hook away.
        """
        return self._add("load_post", hook)

    def _add(self, kind: str, hook: Hook) -> RemovableHandle:
        return add_hook(self._state_hooks[kind], hook)

    # Use -----------------------------------------------------------------------------------

    def _before_saving(self, prefix: str, keep_vars: bool) -> None:
        for hook in list(self._state_hooks["save_pre"].values()):
            hook(self, prefix, keep_vars)

    def _after_saving(self, state: dict[str, Any], prefix: str) -> None:
        for hook in list(self._state_hooks["save_post"].values()):
            _check_nothing("state_dict", hook(self, state, prefix, dict(METADATA)))

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Copies values by name into parameters and buffers; nothing is written if one is wrong.

        Args:
            state_dict: Tensors or NumPy arrays by the names that `state_dict` gives.
            strict: refuse names that are missing or unknown.
            assign: take the given Tensors themselves, with their dtype and device.

        Returns:
            missing_keys and unexpected_keys.

        Raises:
            ArgumentError: names are missing or unknown, and strict is true.
            ShapeError: a value has another shape.
        """
        if not isinstance(state_dict, Mapping):
            raise DTypeError(
                "load_state_dict", "the state is no dict", expect="names and Tensors",
                actual=type(state_dict).__name__,
                hint="other.state_dict()" if hasattr(state_dict, "state_dict") else None,
            )  # fmt: skip
        hooks: list[tuple[str, StateHooks, Hook]] = []
        given, keys = dict(state_dict), IncompatibleKeys([], [])
        errors: list[str] = []
        modules = list(self.named_modules())  # type: ignore[attr-defined]
        for name, module in modules:
            prefix = f"{name}." if name else ""
            for hook in list(module._state_hooks["load_pre"].values()):
                hook(module, given, prefix, dict(METADATA), strict, *keys, errors)
            # A module's hook comes after those of the modules below it.
            after = [(name, module, hook) for hook in module._state_hooks["load_post"].values()]
            hooks = after + hooks
        if errors:
            raise ArgumentError(
                "load_state_dict", "a hook refused the state", expect="a state that it accepts",
                actual="\n".join(errors),
            )  # fmt: skip

        def report(incompatible: IncompatibleKeys) -> None:
            for ours, theirs in zip(incompatible, keys):
                ours.extend(name for name in theirs if name not in ours)
            for _, module, hook in hooks:
                _check_nothing("load_state_dict", hook(module, incompatible))

        own = self.state_dict(keep_vars=True)  # type: ignore[attr-defined]
        return load(own, given, strict, assign, report if hooks or any(keys) else None)


def _check_nothing(op: str, returned: Any) -> None:
    if returned is not None:
        raise ArgumentError(
            op, "a hook returned something", expect="None; it changes what it is given in place",
            actual=type(returned).__name__,
        )  # fmt: skip
