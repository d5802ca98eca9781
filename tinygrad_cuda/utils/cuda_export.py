"""A step as one file of CUDA C++ with a `main`: what it launches is recorded while it runs."""

from __future__ import annotations

import inspect
import json
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tinygrad_cuda.backend.launch.executable as launches
from tinygrad_cuda.backend import registry
from tinygrad_cuda.capture.compiled import Compiled
from tinygrad_cuda.capture.multi_step import Steps
from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.errors import ArgumentError, DeviceError
from tinygrad_cuda.core.trees import leaves, rebuilt
from tinygrad_cuda.engine.capture import Stale
from tinygrad_cuda.engine.realize import realize_all
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.program import Number
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.optim.optimizer import Optimizer
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.creation import tensor
from tinygrad_cuda.utils.cuda_file import (
    ExportedRun,
    ExportedStep,
    Piece,
    Shown,
    cuda_text,
    identifier,
)
from tinygrad_cuda.utils.safetensors_file import pack


class RecordedRun(NamedTuple):
    """One run of a plan; memory by its number."""

    executable: launches.LoweredExecutable
    inputs: list[int]
    results: list[int]
    numbers: bytes


class Initial(NamedTuple):
    """What memory held that no recorded run had written."""

    node: Node
    array: np.ndarray[Any, Any]


class Returned(NamedTuple):
    """A Tensor that a step returned: its memory's number, and what it holds after the step."""

    memory: int
    node: Node
    array: np.ndarray[Any, Any]


class MemoryNumbers:
    """Numbers of pieces of memory. Nothing is held: what is held is not written in place."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[weakref.ref[Any], int]] = {}  # by identity
        self._count = 0

    def of(self, storage: Any) -> int:
        """The same for the same piece for as long as it exists, and no other's."""
        reference, number = self._numbers.get(id(storage), (None, 0))
        if reference is None or reference() is not storage:
            number = self._count = self._count + 1
            self._numbers[id(storage)] = weakref.ref(storage), number
        return number


class LaunchRecorder:
    """The runs of the steps so far."""

    def __init__(self) -> None:
        self.steps: list[list[RecordedRun]] = []
        self.returned: list[list[Returned]] = []  # of each step
        self.initial: dict[int, Initial] = {}  # by memory
        self.written: set[int] = set()
        self.number = MemoryNumbers().of

    def run(
        self,
        executable: launches.LoweredExecutable,
        inputs: Sequence[Any],
        results: Sequence[Any],
        arguments: Sequence[Number],
    ) -> None:
        """Notes a run; memory that is new to it is read before the run starts."""
        taken, made = list(map(self.number, inputs)), list(map(self.number, results))
        for memory, storage, node in zip(taken, inputs, executable.program.inputs):
            if memory not in self.written and memory not in self.initial:
                array = executable.machine.to_host(storage, node.shape, node.dtype)
                self.initial[memory] = Initial(node, np.array(array))
        numbers = executable.numbers.packed(executable.coded(arguments)[1])
        self.steps[-1].append(RecordedRun(executable, taken, made, numbers))
        self.written.update(made)

    def end(self, result: Any) -> None:
        """Notes what a step has returned."""
        nodes = [x.cell.node for x in leaves(result) if isinstance(x, TensorBase)]
        self.returned.append(
            [
                Returned(self.number(node.storage), node, np.array(_host(node)))
                for node in nodes
                if node.device is not CPU
            ]
        )


def _host(node: Node) -> np.ndarray[Any, Any]:
    machine: Any = registry.get(node.device)
    array: np.ndarray[Any, Any] = machine.to_host(node.storage, node.shape, node.dtype)
    return array


def export_cuda(step: Callable[..., Any], path: str | os.PathLike[str], *args: Any) -> Any:
    """Runs a step and writes it as one CUDA C++ file that runs the same steps again.

    The file has the kernels, a `main` with buffers and launches, and in its first line the command
    that builds it; beside it, `path` with the suffix ``.safetensors``, lies what memory held before
    the first step. The program prints the results of each step, and whether they have the same
    bits as here. A file written on `cuda` is of that GPU's architecture; one written on `emu` is of
    an H200's. What a step computes on `cpu` is data of the file.

    Args:
        step: a function of Tensors that returns Tensors, such as a compiled training step; under
            ``tc.compile(steps=n)``, of which each Tensor argument holds the data of n steps, the
            file runs n steps, else one. A step that makes its optimizer's state must have run.
        path: of the file; its suffix is ``.cu``.
        *args: of the call. It is done: parameters are updated.

    Returns:
        What the last step has returned.

    Raises:
        ArgumentError: the path has another suffix, the arguments are not the step's, or steps
            differ in their kernels or memory.
        DeviceError: the step runs no generated kernels: its Tensors are on `cpu`.

    Example:
        >>> import pathlib, tempfile, tinygrad_cuda as tc
        >>> x = tc.ones(3, device="emu")
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> tc.export_cuda(lambda x: (x * 2).exp().sum(), folder / "sum.cu", x).item()
        22.1671...
        >>> (folder / "sum.cu").read_text().splitlines()[0]
        '// nvcc -std=c++17 -fmad=false -gencode arch=compute_90,code=sm_90 -o sum sum.cu && ./sum'
    """
    file = Path(path)
    if file.suffix != ".cu":
        raise ArgumentError(
            "export_cuda", "the path is no CUDA file", expect="a name with the suffix .cu",
            actual=str(path),
        )  # fmt: skip
    if not file.parent.is_dir():
        raise FileNotFoundError(f"export_cuda: there is no folder {file.parent}")
    _require_arguments(step, args)
    calls = _calls(step.count, args) if isinstance(step, Steps) else [args]
    recorder = LaunchRecorder()
    results = _recorded(recorder, step, calls)
    given = [
        [recorder.number(x.cell.node.storage) for x in leaves(args) if isinstance(x, TensorBase)]
        for args in calls
    ]
    if not any(recorder.steps):
        raise DeviceError(
            "export_cuda", "the step runs no generated kernels",
            expect="Tensors on emu or cuda", actual="Tensors on cpu",
            hint='move the model and the arguments: model.to("emu")',
        )  # fmt: skip
    names = _names(step, recorder.number)
    title = f"{len(calls)} step{'s' if len(calls) > 1 else ''} of {_title(step)}"
    exported, tensors = _Roles(recorder, names, given).exported(title)
    content = pack(tensors, {"of": file.name})
    weights = file.with_suffix(".safetensors")
    exported.offsets = _offsets(content)
    text = cuda_text(exported, file, weights)
    weights.write_bytes(content)
    file.write_text(text)
    return results[-1]


def _require_arguments(step: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """The step is called: it needs its arguments, as they stand behind the path."""
    function = step.function if isinstance(step, Compiled) else step
    try:
        signature = inspect.signature(
            function.forward if isinstance(function, Module) else function
        )
    except (TypeError, ValueError):  # of C, which has none
        return
    try:
        signature.bind(*args)
    except TypeError as error:
        needed = [
            p.name for p in signature.parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
        ]  # fmt: skip
        call = ", ".join(["step", "path", *needed])
        raise ArgumentError(
            "export_cuda", "the arguments are not the step's", expect=f"export_cuda({call})",
            actual=f"{len(args)} arguments behind the path: {error}",
            hint="the step is run once with them, and what it launches is written",
        ) from None  # fmt: skip


def _calls(count: int, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The arguments of each step of a call that makes several."""
    given = leaves(args)
    data: dict[int, np.ndarray[Any, Any]] = {}
    for k, value in enumerate(given):
        if isinstance(value, TensorBase):
            whole: Any = value
            data[k] = whole.detach().numpy()
    for k, array in data.items():
        if array.shape[:1] != (count,):
            raise ArgumentError(
                "export_cuda", f"tensor {k} among the arguments is not the data of {count} steps",
                expect=f"({count}, ...)", actual=str(array.shape),
            )  # fmt: skip

    def one(number: int) -> tuple[Any, ...]:
        values: list[Any] = list(given)
        for k, array in data.items():
            old: Any = given[k]
            values[k] = tensor(array[number], device=old.device)
        made: tuple[Any, ...] = rebuilt(args, iter(values))
        return made

    return [one(number) for number in range(count)]


@contextmanager
def _listening(recorder: LaunchRecorder) -> Iterator[None]:
    launches.listeners.append(recorder)
    try:
        yield
    finally:
        launches.listeners.remove(recorder)


def _recorded(
    recorder: LaunchRecorder, function: Any, calls: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """What the steps return; each is complete before the next one begins."""
    realize_all()
    results = []
    with _listening(recorder):
        for args in calls:
            recorder.steps.append([])
            results.append(_called(function, args))
            realize_all()
            recorder.end(results[-1])
    return results


def _called(function: Any, args: tuple[Any, ...]) -> Any:
    if not isinstance(function, Compiled):
        return function(*args)
    try:
        return function.again(args)
    except Stale as stale:
        raise ArgumentError(
            "export_cuda", "the compiled step has no program to export",
            expect="a step that was called with arguments of these shapes", actual=str(stale),
            hint="call it once before; that call also makes the optimizer's state",
        ) from None  # fmt: skip


def _title(step: Any) -> str:
    function = inspect.unwrap(step.function if isinstance(step, Compiled) else step)
    name = getattr(function, "__qualname__", type(function).__name__)
    code = getattr(function, "__code__", None)
    location = f" ({Path(code.co_filename).name}:{code.co_firstlineno})" if code is not None else ""
    return f"{name}{location}, exported by tinygrad_cuda.export_cuda"


def _names(step: Any, number: Callable[[Any], int]) -> dict[int, str]:
    """By the number of their memory: what the modules and optimizers that a step names hold."""
    function = inspect.unwrap(step.function if isinstance(step, Compiled) else step)
    scope: dict[str, Any] = {}
    if isinstance(function, Module):
        scope = {"": function}
    elif inspect.isfunction(function):
        read = inspect.getclosurevars(function)
        scope = {**read.globals, **read.nonlocals}
    names: dict[int, str] = {}
    for prefix, module in scope.items():
        if isinstance(module, Module):
            for name, value in (*module.named_parameters(prefix), *module.named_buffers(prefix)):
                names[number(value.cell.node.storage)] = name
    for optimizer in scope.values():
        if isinstance(optimizer, Optimizer):
            for parameter, state in optimizer.state.items():
                owner = names.get(number(parameter.cell.node.storage), "parameter")
                for key, value in state.items():
                    if isinstance(value, TensorBase):
                        tensor: Any = value
                        names.setdefault(number(tensor.cell.node.storage), f"{owner}.{key}")
    return names


def _offsets(content: bytes) -> dict[str, int]:
    """Where each tensor of a safetensors file begins, in bytes."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    return {
        name: 8 + size + entry["data_offsets"][0]
        for name, entry in header.items()
        if name != "__metadata__"
    }


# Which memory is which ----------------------------------------------------------------------------


class _Roles:
    """What each input and result of a step's runs is, compared over all steps.

    Args:
        recorder: all steps.
        names: of memory that a module names.
        given: memory of the arguments of each step.
    """

    def __init__(
        self, recorder: LaunchRecorder, names: dict[int, str], given: Sequence[Sequence[int]]
    ) -> None:
        self.steps, self.initial = recorder.steps, recorder.initial
        self.returned = recorder.returned
        self.names = names
        self.pieces: list[Piece] = []
        self.tensors: dict[str, np.ndarray[Any, Any]] = {}
        self.texts: dict[tuple[int, ...], str] = {}  # by the memory in each step
        self.given = given
        self._check_equal()
        # For each step, by memory: which result of which run wrote it first.
        self.writers = [
            {
                memory: (number, k)
                for number, run in reversed([*enumerate(runs)])
                for k, memory in enumerate(run.results)
            }
            for runs in self.steps
        ]

    def exported(self, title: str) -> tuple[ExportedStep, dict[str, np.ndarray[Any, Any]]]:
        """The step, and the tensors of its file."""
        numbered = [*zip(*self.steps)]  # a run in all steps
        read = [
            (tuple(one.inputs[k] for one in runs), _nbytes(node))
            for runs in numbered
            for k, node in enumerate(runs[0].executable.program.inputs)
        ]
        for memory, nbytes in read:
            self._carry(memory, nbytes)
        inputs = iter([self.text(*one) for one in read])
        runs = []
        for run in numbered:
            executable = run[0].executable
            taken = [next(inputs) for _ in executable.program.inputs]
            results = [
                self.text(tuple(one.results[k] for one in run), size)
                for k, size in enumerate(executable.sizes)
            ]
            runs.append(ExportedRun(executable, taken, results, [one.numbers for one in run]))
        shown = self._shown()
        return ExportedStep(title, len(self.steps), runs, self.pieces, shown), self.tensors

    def text(self, memory: tuple[int, ...], nbytes: int) -> str:
        """The variable of memory that has these identities in the steps."""
        if memory not in self.texts:
            self.texts[memory] = self._new(memory, nbytes)
        return self.texts[memory]

    def _carry(self, memory: tuple[int, ...], nbytes: int) -> None:
        """Two pieces that change places, for a value that a step makes and the next one reads."""
        if len(set(memory)) == 1 or memory in self.texts or memory[0] not in self.initial:
            return
        origins = {step.get(one) for step, one in zip(self.writers, memory[1:])}
        if len(origins) > 1 or None in origins:
            return
        ((run, k),) = filter(None, origins)
        name = self._tensor(memory[0])
        self.pieces.append(Piece(identifier(name), nbytes, name, other=True))
        self.texts[memory] = identifier(name)
        following = tuple(runs[run].results[k] for runs in self.steps)
        self.texts[following] = f"{identifier(name)}_next"

    def _new(self, memory: tuple[int, ...], nbytes: int) -> str:
        first, same = memory[0], len(set(memory)) == 1
        if same and first in self.initial:
            name = self._tensor(first)
            self.pieces.append(Piece(identifier(name), nbytes, name))
        elif same or self._made_within(memory):
            count = sum(piece.tensor is None for piece in self.pieces)
            self.pieces.append(Piece(f"value{count}", nbytes))
        else:
            position = self._argument(memory)
            if position is None:
                raise self._differs("a value comes from outside, and is no argument")
            name = f"argument{position}"
            self.tensors[name] = np.stack([self.initial[one].array for one in memory])
            self.pieces.append(Piece(name, nbytes, name, by_step=True))
        return self.pieces[-1].text

    def _made_within(self, memory: tuple[int, ...]) -> bool:
        """Whether each step itself makes the value, by the same result."""
        origins = {step.get(one) for step, one in zip(self.writers, memory)}
        return len(origins) == 1 and None not in origins

    def _argument(self, memory: tuple[int, ...]) -> int | None:
        for position, given in enumerate(zip(*self.given)):
            if given == memory:
                return position
        return None

    def _tensor(self, memory: int) -> str:
        """Notes what memory holds at first as a tensor of the file."""
        name = self.names.get(memory)
        if name is None and memory in self.given[0]:
            name = f"argument{self.given[0].index(memory)}"
        if name is None or name in self.tensors:
            name = f"state{sum(name.startswith('state') for name in self.tensors)}"
        self.tensors[name] = self.initial[memory].array
        return name

    def _shown(self) -> list[Shown]:
        """The Tensors that steps return, where their plans have made them."""
        shown = []
        for returned in zip(*self.returned):
            memory = tuple(one.memory for one in returned)
            if memory in self.texts:
                node, data = returned[0].node, [one.array.tobytes() for one in returned]
                shown.append(Shown(self.texts[memory], node.shape, node.dtype, data))
        return shown

    def _check_equal(self) -> None:
        """All steps run the same plans on the same device."""
        plans = [[run.executable for run in runs] for runs in self.steps]
        if any(other != plans[0] for other in plans):
            raise self._differs("their plans differ: the first one may make state")

    def _differs(self, how: str) -> ArgumentError:
        return ArgumentError(
            "export_cuda", "the steps are not the same", expect="the same kernels in each step",
            actual=how, hint="run the step a few times before, and pass what changes as arguments",
        )  # fmt: skip


def _nbytes(node: Node) -> int:
    return int(np.prod(node.shape)) * node.dtype.itemsize
