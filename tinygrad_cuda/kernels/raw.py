"""tc.RawKernel: a whole kernel of the user's, launched in order with recorded work."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.launch.raw_text import RawLaunch, RawParameter, RawText, raw_text
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.errors import ArgumentError, DeviceError, DTypeError, GradientError
from tinygrad_cuda.core.interrupts import uninterrupted
from tinygrad_cuda.core.reference_counts import counts_of
from tinygrad_cuda.engine.capture import capturing
from tinygrad_cuda.engine.realize import lock_of, realize
from tinygrad_cuda.engine.trace import storage_of
from tinygrad_cuda.engine.vmap_trace import tracing
from tinygrad_cuda.graph.node import Node, current_site, holding, mode
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.tensors.base import TensorBase

Sizes = int | Sequence[int]
Dim3 = tuple[int, int, int]
MAX_THREADS = 1024  # of a block; this and the next two are limits of CUDA
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)


class RawKernel:
    """A kernel of CUDA C++ or PTX, launched on Tensors.

    A launch stands in order with all other work: what its arguments wait for is computed first.
    Pointers to const are inputs, other pointers are written. A Tensor keeps its memory only where
    nobody else reads the value from before; clones, views and recorded gradients keep theirs.
    No gradient is recorded: `custom_op` makes an op of such a kernel. In a compiled function a
    launch is refused, since a replay repeats recorded operations and no calls.

    `emu` compiles the same text and checks each access: outside of a buffer, races of two threads,
    barriers that some threads miss. PTX runs on a GPU alone. NVRTC compiles without contraction of
    ``a * b + c``; ``fmaf`` is one instruction.

    Args:
        source: CUDA C++ with an ``extern "C" __global__`` function, or PTX. It may use what
            the prelude of generated kernels has, such as ``tgc_half``, by its names.
        name: of the kernel.
        options: further options of NVRTC, such as ``("-DTILE=16",)``.
        signature: of PTX, the parameters in C++: ``"const float* x, float* y, int n"``.

    Raises:
        ArgumentError: there is no such kernel, or it takes what cannot be passed.

    Example:
        >>> import tinygrad_cuda as tc
        >>> add = tc.RawKernel('''
        ... extern "C" __global__ void add(const float* x, const float* y, float* z, int n) {
        ...   int i = blockIdx.x * blockDim.x + threadIdx.x;
        ...   if (i < n) z[i] = x[i] + y[i];
        ... }''', "add")
        >>> x = tc.tensor([1.0, 2.0, 3.0], device="emu")
        >>> z = tc.empty_like(x)
        >>> add(1, 128, (x, 2 * x, z, 3))
        >>> z.tolist()
        [3.0, 6.0, 9.0]
    """

    def __init__(
        self,
        source: str,
        name: str,
        options: Sequence[str] = (),
        signature: str | None = None,
    ) -> None:
        if not isinstance(source, str) or not isinstance(name, str):
            raise ArgumentError(
                "RawKernel", "the source and the name are texts", expect="RawKernel(source, name)",
                actual=f"{type(source).__name__}, {type(name).__name__}",
            )  # fmt: skip
        self.text: RawText = raw_text(source, name, signature, tuple(options))
        self._compiled: dict[Device, Any] = {}

    def __repr__(self) -> str:
        return f"RawKernel({self.text.name}({', '.join(map(str, self.text.parameters))}))"

    def __call__(self, grid: Sizes, block: Sizes, args: Sequence[Any], shared_mem: int = 0) -> None:
        """Launches it.

        Args:
            grid: blocks in x, y and z: a number or up to three.
            block: threads of a block in x, y and z, at most 1024 in all.
            args: Tensors and numbers, in the order of the parameters.
            shared_mem: bytes of dynamic shared memory of a block.

        Raises:
            ArgumentError: the arguments do not fit the parameters, a Tensor is not contiguous or
                overlaps another one that is written, or this is a compiled or mapped function.
            DTypeError: a Tensor has another dtype than its pointer.
            DeviceError: the Tensors are on several devices, or on cpu.
            GradientError: an argument requires grad, and history is being recorded.
            CompileError: the compiler refused the text.
        """
        name = self.text.name
        sizes = _sizes(name, "grid", grid, MAX_GRID), _sizes(name, "block", block, MAX_BLOCK)
        if prod(sizes[1]) > MAX_THREADS or not isinstance(shared_mem, int) or shared_mem < 0:
            raise ArgumentError(
                name, "no GPU takes such blocks",
                expect=f"at most {MAX_THREADS} threads, shared_mem >= 0 bytes",
                actual=f"{prod(sizes[1])} threads, shared_mem={shared_mem!r}",
            )  # fmt: skip
        refuse_where_calls_are_lost(name)
        _check_arguments(self.text, args)
        tensors = [arg for arg in args if isinstance(arg, TensorBase)]
        device = _device_of(name, tensors)
        kernel = self._compiled.get(device)
        if kernel is None:
            backend: Any = registry.get(device)
            kernel = self._compiled[device] = backend.raw_kernel(self.text)
        with lock_of(device), uninterrupted:
            self._launch(kernel, device, *sizes, shared_mem, args)

    def _launch(
        self,
        kernel: Any,
        device: Device,
        grid: Dim3,
        block: Dim3,
        shared: int,
        args: Sequence[Any],
    ) -> None:
        backend: Any = registry.get(device)
        nodes = {id(arg): arg.node for arg in args if isinstance(arg, TensorBase)}
        realize(device, [node for node in nodes.values() if node.storage is None])
        written = {
            id(arg): arg for arg, parameter in zip(args, self.text.parameters) if parameter.written
        }
        own = _unshared(nodes) if backend.writes_in_place else set()
        storages: dict[int, Any] = {}
        for key, node in nodes.items():
            storages[key] = storage_of(node)
            if key in written and key not in own:
                nbytes = prod(node.shape) * node.dtype.itemsize
                storages[key] = backend.copy_of(storages[key], nbytes)
        values = [
            _packed(parameter, storages[id(arg)].address if parameter.pointer else arg)
            for parameter, arg in zip(self.text.parameters, args)
        ]
        site = current_site()
        touched = tuple({id(piece): piece for piece in storages.values()}.values())
        kernel.launch(RawLaunch(grid, block, shared, tuple(values), touched, site))
        for key, tensor in written.items():
            node = nodes[key]
            value = holding(common.buffer, node.outputs[:1], device, storages[key], site)
            _put(tensor, value)


def _unshared(nodes: dict[int, Node]) -> set[int]:
    """Those whose value nobody reads but the Tensor's own cell."""
    counts = counts_of([*nodes.values()])
    storages = counts_of([node.storage for node in nodes.values()])
    # A cell and the table refer to the node, and the node to its storage.
    return {key for key, a, b in zip(nodes, counts, storages) if a == 2 and b == 1}


def _put(tensor: TensorBase, value: Node) -> None:
    """The Tensor and its aliases show the value; it is there already, so nothing is pending."""
    steps = [step for step, _ in tensor.chain]
    if not tensor.cell.node.requires_grad and all(step is common.variable for step in steps):
        tensor.cell.put(value)
    else:
        tensor.write(value, "RawKernel")


# Checks, all before anything is launched ----------------------------------------------------------


def _sizes(name: str, what: str, sizes: Sizes, most: Dim3) -> Dim3:
    given = tuple(sizes) if isinstance(sizes, tuple | list) else (sizes,)
    fits = 1 <= len(given) <= 3 and all(
        isinstance(size, int | np.integer) and 1 <= size <= limit
        for size, limit in zip(given, most)
    )
    if not fits:
        raise ArgumentError(
            name, f"the {what} is none", expect=f"1 to 3 sizes from 1 to {most}", actual=repr(sizes)
        )
    x, y, z = (*map(int, given), 1, 1)[:3]
    return x, y, z


def refuse_where_calls_are_lost(name: str) -> None:
    """Raises inside what repeats recorded operations, and no calls.

    Raises:
        ArgumentError: a compiled or mapped function is being recorded.
    """
    where = "a compiled function" if capturing() is not None else ""
    where = "vmap" if tracing.stack else where
    if where:
        raise ArgumentError(
            name, f"a raw kernel cannot be launched inside {where}",
            expect="operations, which are recorded", actual="a launch, which happens at its call",
            hint="launch it outside, or write it element by element: tc.kernel",
        )  # fmt: skip


def _check_arguments(text: RawText, args: Sequence[Any]) -> None:
    parameters = text.parameters
    if not isinstance(args, tuple | list) or len(args) != len(parameters):
        actual = f"{len(args)} arguments" if isinstance(args, tuple | list) else type(args).__name__
        raise ArgumentError(
            text.name, "the arguments do not fit the kernel's parameters",
            expect=f"{len(parameters)}: ({', '.join(map(str, parameters))})", actual=actual,
            hint="kernel(grid, block, (x, y, n))",
        )  # fmt: skip
    for number, (parameter, arg) in enumerate(zip(parameters, args)):
        if isinstance(arg, TensorBase) is not parameter.pointer:
            raise ArgumentError(
                text.name, f"argument {number} does not fit its parameter",
                expect=f"{'a Tensor' if parameter.pointer else 'a number'} for {parameter}",
                actual=f"{type(arg).__name__}",
            )  # fmt: skip
        if isinstance(arg, TensorBase):
            _check_tensor(text, number, parameter, arg)
        else:
            _packed(parameter, arg)
    _check_overlaps(text, args)


def _check_tensor(text: RawText, number: int, parameter: RawParameter, arg: Any) -> None:
    if parameter.dtype is not None and parameter.dtype is not arg.dtype:
        raise DTypeError(
            text.name, f"argument {number} has another dtype than its pointer",
            expect=f"{parameter.dtype.name} for {parameter}",
            actual=arg.dtype.name, hint=f"x.to(tc.{parameter.dtype.name})",
        )  # fmt: skip
    if not arg.is_contiguous():
        raise ArgumentError(
            text.name, f"argument {number} is not contiguous",
            expect=f"row-major elements for {parameter}",
            actual=f"shape {tuple(arg.shape)}, strides {arg.stride()}", hint="x.contiguous()",
        )  # fmt: skip
    if mode.now.gradients and arg.requires_grad:
        raise GradientError(
            text.name, "a raw kernel records no gradient",
            expect="Tensors without grad", actual=f"argument {number} requires grad",
            hint="launch it under tc.no_grad() or on x.detach(), or make an op: tc.custom_op",
        )  # fmt: skip


def _check_overlaps(text: RawText, args: Sequence[Any]) -> None:
    """What is written may be no other view of what another argument shows."""
    for number, (parameter, arg) in enumerate(zip(text.parameters, args)):
        for other, tensor in enumerate(args):
            if not parameter.written or not isinstance(tensor, TensorBase) or tensor is arg:
                continue
            if tensor.cell is arg.cell:
                raise ArgumentError(
                    text.name, f"arguments {number} and {other} share memory, and one is written",
                    expect="the same Tensor twice, or Tensors with memory of their own",
                    actual=f"two views of one Tensor, {parameter} is written",
                    hint="x.clone()",
                )  # fmt: skip


def _device_of(name: str, tensors: list[Any]) -> Device:
    devices = list(dict.fromkeys(tensor.device for tensor in tensors))
    if len(devices) == 1 and devices[0].kind in ("cuda", "emu"):
        return devices[0]  # type: ignore[no-any-return]
    if not devices:
        raise ArgumentError(
            name, "no argument is a Tensor", expect="one at least, which says the device",
            actual="numbers alone",
        )  # fmt: skip
    raise DeviceError(
        name, "a raw kernel runs on one GPU, or on the emulator",
        expect="all Tensors on cuda, or all on emu", actual=", ".join(map(str, devices)),
        hint='x.to("emu") runs the same text on the CPU',
    )  # fmt: skip


def _packed(parameter: RawParameter, value: Any) -> bytes:
    """The bytes of an argument.

    Raises:
        ArgumentError: its parameter cannot hold it.
    """
    value = value.item() if isinstance(value, np.generic) else value
    whole = parameter.letter not in "fd"
    kind = bool | int if whole else bool | int | float
    try:
        if not isinstance(value, kind):
            raise struct.error(f"a {type(value).__name__}")
        return struct.pack(f"<{parameter.letter}", value)
    except (struct.error, OverflowError):
        raise ArgumentError(
            "RawKernel", "a number does not fit its parameter", expect=f"a value of {parameter}",
            actual=repr(value),
        ) from None  # fmt: skip


__all__ = ["RawKernel"]
