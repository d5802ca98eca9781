"""What a module's state is called by name, and hooks around saving and loading it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError, DTypeError
from tinygrad_cuda.nn.hooks import add_hook
from tinygrad_cuda.nn.state import IncompatibleKeys, load, of_other_shapes
from tinygrad_cuda.tensors.tensor import RemovableHandle, Tensor

Hook = Callable[..., Any]
EXTRA = "_extra_state"
KINDS = ("save_pre", "save_post", "load_pre", "load_post")


class StateHooks:
    """The part of `Module` that has to do with names in the state and hooks on it."""

    # The version of what the class's state contains; PyTorch's name, which subclasses set.
    _version: int = 1
    _state_hooks: dict[str, dict[int, Hook]]
    _buffers: dict[str, Any]
    _modules: dict[str, Any]
    _parameters: dict[str, Any]
    _temporary: set[str]

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

    def set_submodule(self, target: str, module: Any, strict: bool = False) -> None:
        """Puts a module under the dotted name `target`.

        Args:
            target: such as ``features.0``.
            module: the new one.
            strict: refuse a name that there is not yet.

        Raises:
            ArgumentError: `target` is empty, or `module` is no Module.
            AttributeError: there is nothing above it; or not it, and strict is true.
        """
        if not target or not isinstance(module, StateHooks):
            raise ArgumentError(
                "set_submodule", "a Module needs a name", expect="a dotted name and a Module",
                actual=f"{target!r} and {type(module).__name__}",
            )  # fmt: skip
        path, _, name = target.rpartition(".")
        if strict:
            self.get_submodule(target)
        setattr(self.get_submodule(path), name, module)

    def get_parameter(self, target: str) -> Any:
        """The Parameter with the dotted name `target`.

        Raises:
            AttributeError: there is none.
        """
        return self._entry("_parameters", "parameter", target)

    def get_buffer(self, target: str) -> Tensor:
        """The buffer with the dotted name `target`.

        Raises:
            AttributeError: there is none.

        Example:
            >>> import tinygrad_cuda as tc
            >>> tc.nn.BatchNorm1d(2, device="cpu").get_buffer("running_mean").tolist()
            [0.0, 0.0]
        """
        buffer: Tensor = self._entry("_buffers", "buffer", target)
        return buffer

    def _entry(self, table: str, what: str, target: str) -> Any:
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

    def _register_load_state_dict_pre_hook(
        self, hook: Hook, with_module: bool = False
    ) -> RemovableHandle:
        """The older name of `register_load_state_dict_pre_hook`; the hook gets no module."""
        without = hook if with_module else (lambda module, *others: hook(*others))
        return self._add("load_pre", without)

    def _register_state_dict_hook(self, hook: Hook) -> RemovableHandle:
        """The older name of `register_state_dict_post_hook`."""
        return self._add("save_post", hook)

    def _add(self, kind: str, hook: Hook) -> RemovableHandle:
        return add_hook(self._state_hooks[kind], hook)

    # Use -----------------------------------------------------------------------------------

    def get_extra_state(self) -> Any:
        """What `state_dict` contains besides Tensors; subclasses write it with `set_extra_state`.

        Raises:
            NotImplementedError: the class has none.
        """
        raise NotImplementedError(f"{type(self).__name__} has no get_extra_state")

    def set_extra_state(self, state: Any) -> None:
        """Takes what `get_extra_state` gave, when a state is loaded.

        Raises:
            NotImplementedError: the class has none.
        """
        raise NotImplementedError(f"{type(self).__name__} has no set_extra_state")

    def _persistent(self) -> list[tuple[str, Tensor]]:
        """What belongs to the state of this module alone."""
        buffers = [pair for pair in self._buffers.items() if pair[0] not in self._temporary]
        return [(name, v) for name, v in (*self._parameters.items(), *buffers) if v is not None]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Enters the state of this module alone; subclasses override it, as in PyTorch."""
        for name, value in self._persistent():
            destination[prefix + name] = value if keep_vars else value.detach()
        if type(self).get_extra_state is not StateHooks.get_extra_state:
            destination[prefix + EXTRA] = self.get_extra_state()

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        """Writes the values of this module alone at once, for overrides that call it.

        Args:
            state_dict: values by name.
            prefix: of this module's names.
            local_metadata: as hooks get it.
            strict: whether names of no use are reported.
            missing_keys, unexpected_keys, error_msgs: what is wrong is appended to them.
        """
        own = {prefix + name: value for name, value in self._persistent()}
        assign = bool(local_metadata.get("assign_to_params_buffers", False))
        given = {name: state_dict[name] for name in own if name in state_dict}
        wrong = of_other_shapes(own, given)
        error_msgs += [
            f"{name}: {tuple(given[name].shape)} instead of {tuple(own[name].shape)}"
            for name in wrong
        ]
        fitting = {name: value for name, value in given.items() if name not in wrong}
        replace = (
            (lambda name, value: setattr(self, name[len(prefix) :], value)) if assign else None
        )
        load({name: own[name] for name in fitting}, fitting, True, replace=replace)
        missing_keys += [name for name in own if name not in given]
        if strict:
            unexpected_keys += self._of_nobody(state_dict, prefix)

    def _complete_state(self, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        """Adds to a state of an older version what it lacks; subclasses override it."""

    def _of_nobody(self, state_dict: Any, prefix: str) -> list[str]:
        """Names below `prefix` that neither this module nor one below it can have."""
        own = {name for name, _ in self._persistent()} | {EXTRA, *self._modules}
        names = [name for name in state_dict if name.startswith(prefix)]
        return [name for name in names if name[len(prefix) :].split(".")[0] not in own]

    def _before_saving(self, state: Any, prefix: str, keep_vars: bool) -> None:
        if hasattr(state, "_metadata"):
            state._metadata[prefix[:-1]] = {"version": self._version}
        for hook in list(self._state_hooks["save_pre"].values()):
            hook(self, prefix, keep_vars)

    def _after_saving(self, state: Any, prefix: str) -> None:
        metadata = getattr(state, "_metadata", {}).get(prefix[:-1], {"version": self._version})
        for hook in list(self._state_hooks["save_post"].values()):
            _check_nothing("state_dict", hook(self, state, prefix, metadata))

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
        return _Loading(self, state_dict, strict, assign).run()


class _Loading:
    """One call of `load_state_dict`.

    A class that overrides `_load_from_state_dict` loads its own names, and what it appends to the
    lists is reported; the others' values are written together, when all of them fit.
    """

    def __init__(
        self, module: StateHooks, state: Mapping[str, Any], strict: bool, assign: bool
    ) -> None:
        self.module, self.strict, self.assign = module, strict, assign
        self.given, self.keys = dict(state), IncompatibleKeys([], [])
        # By the names of modules: the versions of what they saved. A state may have none.
        self.metadata: Mapping[str, Any] = getattr(state, "_metadata", None) or {}
        self.errors: list[str] = []
        self.after: list[tuple[StateHooks, Hook]] = []
        self.own: dict[str, Tensor] = {}
        self.homes: dict[str, tuple[StateHooks, str]] = {}  # module and attribute of each of them
        self.extra: list[tuple[StateHooks, str]] = []

    def run(self) -> IncompatibleKeys:
        modules = self.module.named_modules(remove_duplicate=False)  # type: ignore[attr-defined]
        for name, module in modules:
            self._enter(module, f"{name}." if name else "")
        if self.errors:
            raise ArgumentError(
                "load_state_dict", "a module or its hook refused the state",
                expect="a state that it accepts", actual="\n".join(self.errors),
            )  # fmt: skip
        states = [(module, key, self.given.pop(key)) for module, key in self.extra]
        reported = bool(self.after or any(self.keys))
        result = load(
            self.own, self.given, self.strict, self._report if reported else None,
            self._replace if self.assign else None,
        )  # fmt: skip
        for module, _, state in states:
            module.set_extra_state(state)
        return result

    def _enter(self, module: StateHooks, prefix: str) -> None:
        metadata = dict(self.metadata.get(prefix[:-1], {}))
        if hooks_before := list(module._state_hooks["load_pre"].values()):
            # A hook sees the names of its module alone.
            part = {name: v for name, v in self.given.items() if name.startswith(prefix)}
            self.given = {name: v for name, v in self.given.items() if name not in part}
            for hook in hooks_before:
                hook(module, part, prefix, metadata, self.strict, *self.keys, self.errors)
            self.given.update(part)
        module._complete_state(self.given, prefix, metadata)
        # A module's hook comes after those of the modules below it.
        hooks = [(module, hook) for hook in module._state_hooks["load_post"].values()]
        self.after = hooks + self.after
        if type(module)._load_from_state_dict is StateHooks._load_from_state_dict:
            for name, value in module._persistent():
                self.own[prefix + name], self.homes[prefix + name] = value, (module, name)
        else:
            self._by_module(module, prefix, metadata)
        if type(module).set_extra_state is not StateHooks.set_extra_state:
            given = prefix + EXTRA in self.given
            self.extra += [(module, prefix + EXTRA)] if given else []
            self.keys.missing_keys.extend([] if given else [prefix + EXTRA])

    def _replace(self, name: str, value: Tensor) -> None:
        module, attribute = self.homes[name]
        setattr(module, attribute, value)

    def _by_module(self, module: StateHooks, prefix: str, metadata: dict[str, Any]) -> None:
        """Calls a class's own `_load_from_state_dict`; its names are done with afterwards."""
        metadata = {**metadata, "assign_to_params_buffers": self.assign}
        # Names that differ are always collected: `strict` decides what is done with them.
        module._load_from_state_dict(self.given, prefix, metadata, True, *self.keys, self.errors)
        own = {prefix + name for name, _ in module._persistent()}
        for name in own.union(module._of_nobody(self.given, prefix)):
            self.given.pop(name, None)

    def _report(self, incompatible: IncompatibleKeys) -> None:
        for ours, theirs in zip(incompatible, self.keys):
            ours.extend(name for name in theirs if name not in ours)
        for module, hook in self.after:
            _check_nothing("load_state_dict", hook(module, incompatible))


def _check_nothing(op: str, returned: Any) -> None:
    if returned is not None:
        raise ArgumentError(
            op, "a hook returned something", expect="None; it changes what it is given in place",
            actual=type(returned).__name__,
        )  # fmt: skip
