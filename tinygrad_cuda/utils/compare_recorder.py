"""Runs a training script in one framework and records what it computes: a process of `compare`.

Random numbers are the reference's: the first run records each draw, the second one writes them
over its own. So initial values, the order of data and dropout masks are the same in both. Each step
begins with the parameters of the reference, so that rounding does not add up from step to step.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import random
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import numpy as np

from tinygrad_cuda.core.errors import PACKAGE_FOLDER, Site, is_internal

Array = np.ndarray[Any, Any]
Record = dict[str, Any]
NAMES = ("torch", "tinygrad_cuda")
# Functions that give or write random numbers when the script calls them.
FUNCTIONS = (
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal",
    "bernoulli", "multinomial", "poisson",
)  # fmt: skip
METHODS = (
    "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_", "geometric_",
    "log_normal_", "bernoulli", "multinomial",
)  # fmt: skip
DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d")
SAMPLERS = ("RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler")
CONTAINERS = ("Module", "Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict")


class Enough(BaseException):
    """Ends the script after the last step; no `except Exception` of the script stops it."""


class DrawsPart(Exception):
    """The second script drew other random numbers than the first."""


class _Alias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports of one package give another one's modules."""

    def __init__(self, name: str, other: str) -> None:
        self.name, self.other = name, other
        self._specs: dict[str, Any] = {}

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self.name and not fullname.startswith(self.name + "."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec: Any) -> ModuleType:
        module = importlib.import_module(self.other + spec.name[len(self.name) :])
        self._specs[spec.name] = module.__spec__
        self._also_named()
        return module

    def _also_named(self) -> None:
        """Modules that are no files, or have the name of a function, are there before a search."""
        for name, module in list(sys.modules.items()):
            if name.startswith(self.other + "."):
                sys.modules.setdefault(self.name + name[len(self.other) :], module)

    def exec_module(self, module: ModuleType) -> None:
        # The import system has written the alias's own into it.
        assert module.__spec__ is not None
        module.__spec__ = self._specs[module.__spec__.name]


@contextmanager
def aliased(framework: str) -> Iterator[None]:
    """Inside, imports of either framework give this one; modules imported since are dropped."""
    (other,) = set(NAMES) - {framework}
    finders = [_Alias(other, framework)]
    if framework == "tinygrad_cuda":
        finders.append(_Alias("einops.layers.torch", "einops.layers.tinygrad_cuda"))
    importlib.import_module(framework)
    before = dict(sys.modules)
    # What completes einops for this package would look for itself in torch.
    hooks = [finder for finder in sys.meta_path if type(finder).__module__.startswith(f"{other}.")]
    for hook in hooks:
        sys.meta_path.remove(hook)
    for name in before:
        if name.split(".")[0] == other:
            del sys.modules[name]
    sys.meta_path[:0] = finders
    try:
        yield
    finally:
        for finder in finders:
            sys.meta_path.remove(finder)
        sys.meta_path[:0] = hooks
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None) or ""
            own = is_internal(file) or "site-packages" in file or not file
            family = name.split(".")[0]
            if family == other or (name not in before and (family == "einops" or not own)):
                del sys.modules[name]
        sys.modules.update(before)


class ScriptRecorder:
    """What one run of a script computes.

    Args:
        name: of the framework.
        steps: how many optimizer steps the script may take.
        reference: draws and events of the first run, or None if this run is the first.

    Attributes:
        draws: random numbers with what drew them, in order.
        events: what was computed, in order: step, kind, name, line and value.
    """

    def __init__(self, name: str, steps: int, reference: Record | None = None) -> None:
        self.module = importlib.import_module(name)
        self.nn = importlib.import_module(f"{name}.nn")
        self.functional = importlib.import_module(f"{name}.nn.functional")
        self.optim = importlib.import_module(f"{name}.optim")
        self.data = importlib.import_module(f"{name}.utils.data")
        self.folder = os.path.dirname(str(self.module.__file__)) + os.sep
        self.steps, self.step = steps, 1
        self.reference = reference is None
        self.draws: list[dict[str, Any]] = [] if reference is None else reference["draws"]
        self.targets = {
            (event["step"], event["name"]): event["value"]
            for event in ([] if reference is None else reference["events"])
            if event["kind"] in ("parameter", "buffer")
        }
        self.drawn = 0
        self.events: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self._roots: list[tuple[Any, str]] = []
        self._paths: dict[int, str] = {}
        self._depth = 0
        self._optimizers: list[Any] = []
        self._undo: list[Callable[[], None]] = []

    # The script's lines -----------------------------------------------------------------------

    def internal(self, filename: str) -> bool:
        """Whether code is a framework's or the standard library's."""
        inside = filename.startswith((self.folder, PACKAGE_FOLDER))
        return inside or is_internal(filename)

    def by_script(self) -> bool:
        """Whether the script called what a wrapper replaces, or a container that it made did."""
        filename = sys._getframe(2).f_code.co_filename
        inside = filename.startswith(self.folder)
        return not self.internal(filename) or (inside and filename.endswith("container.py"))

    def line(self) -> str:
        """The innermost line of the script, with its text."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and self.internal(frame.f_code.co_filename):
            frame = frame.f_back
        return "" if frame is None else str(Site(frame.f_code, frame.f_lasti))

    # Random numbers ---------------------------------------------------------------------------

    def align(self, what: str, tensors: Sequence[Any]) -> None:
        """Records drawn values, or replaces them by the reference's.

        Raises:
            DrawsPart: the reference drew something else here.
        """
        arrays = [self.array(t) for t in tensors]
        for array, old in zip(arrays, self.align_arrays(what, arrays)):
            array[...] = old
        if not self.reference:
            for t, array in zip(tensors, arrays):
                t.detach().copy_(self.module.from_numpy(array).to(t.device))

    def align_arrays(self, what: str, arrays: list[Array]) -> list[Array]:
        """As `align`, of arrays; gives the reference's."""
        if self.reference:
            self.draws.append({"what": what, "line": self.line(), "values": arrays})
            return arrays
        if self.drawn >= len(self.draws):
            raise DrawsPart(f"{what} is drawn here, nothing more in the reference")
        old = self.draws[self.drawn]
        self.drawn += 1
        shapes = [array.shape for array in arrays], [array.shape for array in old["values"]]
        if old["what"] != what or shapes[0] != shapes[1]:
            raise DrawsPart(
                f"{what} of shapes {shapes[0]} is drawn here, in the reference {old['what']} of "
                f"shapes {shapes[1]} at {old['line']}"
            )
        values: list[Array] = old["values"]
        return values

    def array(self, t: Any) -> Array:
        """A Tensor's value; half types as float32."""
        t = t.detach().cpu()
        if str(t.dtype).endswith("float16"):
            t = t.float()
        return np.array(t.numpy())

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    # What is compared -------------------------------------------------------------------------

    def record(self, kind: str, name: str, value: Any) -> None:
        """Records the Tensors of a value, which are read at the end of the step."""
        for suffix, t in _tensors(value, self.module.Tensor):
            self.events.append({
                "step": self.step, "kind": kind, "name": name + suffix, "line": self.line(),
                "value": t.detach().clone(),
            })  # fmt: skip

    def path_of(self, module: Any) -> str:
        """A module's path from the one that the script called."""
        if id(module) not in self._paths or self._depth == 0:
            if self._depth == 0 and all(module is not root for root, _ in self._roots):
                kind = type(module).__name__
                count = sum(type(root).__name__ == kind for root, _ in self._roots)
                name = f"{kind}#{count + 1}" if count else kind
                self._roots.append((module, name))
                for path, value in module.state_dict().items():
                    self.record("initial", f"{name}.{path}", value)
            for root, name in self._roots:
                for path, inner in root.named_modules():
                    self._paths.setdefault(id(inner), f"{name}.{path}" if path else name)
        return self._paths.get(id(module), type(module).__name__)

    def parameters(self) -> dict[str, Any]:
        """Parameters of the modules that were called, then those that optimizers have beside."""
        named: dict[str, Any] = {}
        seen: set[int] = set()
        for root, name in self._roots:
            for path, parameter in root.named_parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    named[f"{name}.{path}"] = parameter
        for optimizer in self._optimizers:
            parts = [p for group in optimizer.param_groups for p in group["params"]]
            for number, parameter in enumerate(parts):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    named[f"{type(optimizer).__name__}.params[{number}]"] = parameter
        return named

    def record_gradients(self) -> None:
        for name, parameter in self.parameters().items():
            if parameter.grad is not None:
                self.record("gradient", name, parameter.grad)

    def stepped(self, optimizer: Any, *unused: Any) -> None:
        """After each step of an optimizer: its parameters, and the buffers of all modules."""
        mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
        state = {name: p for name, p in self.parameters().items() if id(p) in mine}
        for name, parameter in state.items():
            self.record("parameter", name, parameter)
        for root, name in self._roots:
            for path, buffer in root.named_buffers():
                state[f"{name}.{path}"] = buffer
                self.record("buffer", f"{name}.{path}", buffer)
        self.settle()
        for name, t in state.items():
            target = self.targets.get((self.step, name))
            if target is not None and target.shape == tuple(t.shape):
                t.detach().copy_(self.module.from_numpy(target).to(t.device))
        self.step += 1
        if self.step > self.steps:
            raise Enough

    def settle(self) -> None:
        """Reads what was recorded."""
        for event in self.events:
            if not isinstance(event["value"], np.ndarray):
                event["value"] = self.array(event["value"])

    # Wrappers ---------------------------------------------------------------------------------

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Puts what `make` makes of an attribute in its place, until the end."""
        original = getattr(owner, name, None)
        if original is None:
            return
        own = name in vars(owner)  # not inherited
        wrapper = functools.wraps(original)(make(original))
        setattr(owner, name, wrapper)
        undo = functools.partial(setattr, owner, name, original)
        self._undo.append(undo if own else functools.partial(delattr, owner, name))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, what the script draws and computes is recorded."""
        try:
            self._wrap_draws()
            self._wrap_layers()
            self.replace(self.nn.Module, "__call__", self._call)
            for owner in (self.module.Tensor, self.module.autograd):
                self.replace(owner, "backward", self._backward)
            self.replace(self.module.autograd, "grad", self._grad)
            self.replace(self.module, "compile", lambda original: _uncompiled)
            self.replace(self.optim.Optimizer, "__init__", self._optimizing)
            yield
        finally:
            for undo in reversed(self._undo):
                undo()

    def _wrap_draws(self) -> None:
        init = self.nn.init
        filled = [name for name in dir(init) if name.endswith("_") and name[0] != "_"]
        for owner, names in (
            (self.module, FUNCTIONS), (self.module.Tensor, METHODS), (init, filled),
        ):  # fmt: skip
            for name in names:
                self.replace(owner, name, functools.partial(self._drawing, name))
        for name in DROPOUTS:
            self.replace(self.functional, name, functools.partial(self._dropping, name))
        attention = "scaled_dot_product_attention"
        self.replace(self.functional, attention, self._attending)
        for name in SAMPLERS:
            sampler = getattr(self.data, name)
            self.replace(sampler, "__iter__", functools.partial(self._ordered, name))
        self.replace(self.data, "random_split", self._split)

    def _wrap_layers(self) -> None:
        for name, kind in list(vars(self.nn).items()):
            layer = isinstance(kind, type) and issubclass(kind, self.nn.Module)
            if not layer or name in CONTAINERS or "Dropout" in name:
                continue
            # Lazy layers have values from their first call on.
            lazy = name.startswith("Lazy")
            self.replace(kind, "initialize_parameters" if lazy else "__init__", self._constructed)
            if "reset_parameters" in vars(kind):
                self.replace(kind, "reset_parameters", self._reset)

    def _drawing(self, name: str, original: Any) -> Any:
        def wrapper(*args: Any, **options: Any) -> Any:
            result = original(*args, **options)
            if self.by_script():
                self.align(name, [result])
            return result

        return wrapper

    def _dropping(self, name: str, original: Any) -> Any:
        def wrapper(
            input: Any, p: float = 0.5, training: bool = True, inplace: bool = False
        ) -> Any:
            layer = os.path.basename(sys._getframe(1).f_code.co_filename) == "dropout.py"
            if not training or not p:
                return input
            if not layer and not self.by_script():
                self.note("dropout inside layers of the framework is off in both runs")
                return input
            with self.module.no_grad():
                mask = original(self.module.ones_like(input), p, True)
            self.align(name, [mask])
            return input * mask

        return wrapper

    def _attending(self, original: Any) -> Any:
        def wrapper(query: Any, key: Any, value: Any, *args: Any, **options: Any) -> Any:
            given = list(args)
            if (len(given) > 1 and given[1]) or options.get("dropout_p"):
                self.note("dropout of scaled_dot_product_attention is off in both runs")
                options.pop("dropout_p", None)
                given[1:2] = [0.0] if len(given) > 1 else []
            return original(query, key, value, *given, **options)

        return wrapper

    def _ordered(self, name: str, original: Any) -> Any:
        def wrapper(sampler: Any) -> Iterator[int]:
            order = np.array(list(original(sampler)), np.int64)
            (order,) = self.align_arrays(f"order of {name}", [order])
            return iter(order.tolist())

        return wrapper

    def _split(self, original: Any) -> Any:
        def wrapper(*args: Any, **options: Any) -> Any:
            parts = original(*args, **options)
            orders = [np.array(part.indices, np.int64) for part in parts]
            for part, order in zip(parts, self.align_arrays("random_split", orders)):
                part.indices = order.tolist() if isinstance(part.indices, list) else order
            return parts

        return wrapper

    def _constructed(self, original: Any) -> Any:
        def wrapper(layer: Any, *args: Any, **options: Any) -> Any:
            self._depth_of_layers += 1
            try:
                result = original(layer, *args, **options)
            finally:
                self._depth_of_layers -= 1
            if self._depth_of_layers == 0:
                self._align_layer(layer)
            return result

        return wrapper

    _depth_of_layers = 0

    def _reset(self, original: Any) -> Any:
        def wrapper(layer: Any) -> Any:
            result = original(layer)
            if self.by_script() and self._depth_of_layers == 0:
                self._align_layer(layer)
            return result

        return wrapper

    def _align_layer(self, layer: Any) -> None:
        rate = getattr(layer, "dropout", None)
        if isinstance(rate, float) and rate:
            self.note(f"dropout inside {type(layer).__name__} is off in both runs")
            layer.dropout = 0.0
        state = layer.state_dict()
        if state:
            self.align(f"{type(layer).__name__}({', '.join(state)})", list(state.values()))

    def _call(self, original: Any) -> Any:
        def wrapper(module: Any, *args: Any, **options: Any) -> Any:
            if not self.by_script():
                return original(module, *args, **options)
            path = self.path_of(module)
            self._depth += 1
            try:
                result = original(module, *args, **options)
            finally:
                self._depth -= 1
            self.record("forward", path, result)
            return result

        return wrapper

    def _optimizing(self, original: Any) -> Any:
        def wrapper(optimizer: Any, *args: Any, **options: Any) -> None:
            original(optimizer, *args, **options)
            self._optimizers.append(optimizer)
            optimizer.register_step_post_hook(self.stepped)

        return wrapper

    def _backward(self, original: Any) -> Any:
        def wrapper(tensors: Any, *args: Any, **options: Any) -> Any:
            shown = self.by_script()
            if shown:
                self.record("loss", "loss", tensors)
            result = original(tensors, *args, **options)
            if shown:
                self.record_gradients()
            return result

        return wrapper

    def _grad(self, original: Any) -> Any:
        def wrapper(*args: Any, **options: Any) -> Any:
            result = original(*args, **options)
            if self.by_script():
                self.record("gradient", "autograd.grad", result)
            return result

        return wrapper


def _uncompiled(function: Any = None, **options: Any) -> Any:
    """Instead of `compile`: every call is seen."""
    return (lambda inner: inner) if function is None else function


def _tensors(value: Any, kind: type) -> Iterator[tuple[str, Any]]:
    if isinstance(value, kind):
        yield "", value
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            for suffix, t in _tensors(part, kind):
                yield f"[{number}]{suffix}", t
    elif isinstance(value, dict):
        for key, part in value.items():
            for suffix, t in _tensors(part, kind):
                yield f"[{key!r}]{suffix}", t


def run(
    framework: str, script: Path, arguments: Sequence[str], steps: int,
    reference: Record | None = None,
) -> Record:  # fmt: skip
    """Runs a script with one framework for some steps.

    Returns:
        ``events`` and ``draws`` with their values, ``notes``, ``steps`` that were taken, the
        framework's ``version``, and the ``error`` that ended the script, or nothing.
    """
    recorder = ScriptRecorder(framework, steps, reference)
    recorder.module.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  # the state from which scripts draw
    argv, path, error = sys.argv, list(sys.path), ""
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    try:
        with aliased(framework), recorder.watching(), redirect_stdout(sys.stderr):
            runpy.run_path(str(script), run_name="__main__")
    except Enough:
        pass
    except SystemExit as stop:
        error = "" if stop.code in (None, 0) else f"the script ended with exit code {stop.code}"
    except DrawsPart as part:
        error = f"the random numbers part: {part}"
    except Exception:
        error = traceback.format_exc()
    finally:
        sys.argv, sys.path[:] = argv, path
    recorder.settle()
    return {
        "events": recorder.events, "draws": recorder.draws, "notes": recorder.notes,
        "error": error, "steps": recorder.step - 1, "version": str(recorder.module.__version__),
    }  # fmt: skip


# Files between the processes ----------------------------------------------------------------------


def save(folder: Path, record: Record) -> None:
    """Writes what was recorded."""
    arrays: dict[str, Array] = {}
    for number, event in enumerate(record["events"]):
        arrays[f"e{number}"] = event.pop("value")
    for number, draw in enumerate(record["draws"]):
        values = draw.pop("values")
        draw["count"] = len(values)
        arrays.update({f"d{number}_{k}": value for k, value in enumerate(values)})
    np.savez(folder / "values.npz", **arrays)  # type: ignore[arg-type]
    (folder / "record.json").write_text(json.dumps(record), encoding="utf-8")


def load(folder: Path) -> Record:
    """What `save` wrote."""
    record: Record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    with np.load(folder / "values.npz") as arrays:
        for number, event in enumerate(record["events"]):
            event["value"] = arrays[f"e{number}"]
        for number, draw in enumerate(record["draws"]):
            draw["values"] = [arrays[f"d{number}_{k}"] for k in range(draw["count"])]
    return record


def main(arguments: Sequence[str]) -> int:
    """FRAMEWORK FOLDER REFERENCE-FOLDER STEPS SCRIPT ARGUMENTS...; the second folder may be "-"."""
    framework, folder, reference, steps, script, *rest = arguments
    before = None if reference == "-" else load(Path(reference))
    save(Path(folder), run(framework, Path(script), rest, int(steps), before))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
