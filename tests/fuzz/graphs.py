"""Random graphs of views, writes and backward passes, against torch.

A program is run by torch first: it decides which operands a step meets, which steps are legal and
which are left out, because they leave the range of ordinary numbers. Then torch runs it a few times
with every rounded result moved by a rounding or two; how far the values of these runs lie apart is
the error that rounding explains. Ours must give every shape, dtype, stride and refusal of the first
run, and values that differ by no more than a few times that error.

A value that differs by more is judged once more by runs that are moved farther, zeros too, so that
they reach the other side of a step (a comparison, a cast to integers) that ours has reached. What
follows from an integer that is another one after a rounding is not compared. Then torch runs the
program in float64: ours may be as far from these values as torch's own are, times `NEARNESS`. At
last torch does each step on the values that ours had before it: where a function jumps, roundings
of its operand decide, but each of our steps is right for what it was given.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
from graph_ops import (
    DTYPES,
    FAMILIES,
    FLOATS,
    INTEGERS,
    OPS,
    Mover,
    Numbers,
    Unsuitable,
    dtype_name,
    seldom_unsigned,
    unmoved,
)

Array = np.ndarray[Any, Any]
Step = tuple[Any, ...]
Program = list[Step]

# Programs of the long mode.
LONG = {"cpu": 20_000, "emu": 3_000, "cuda": 3_000}
# The distance from 1 to the next number.
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
# Larger values are left out: what overflows is the instrument `special`'s.
BOUND = {"float64": 1e5, "float32": 1e5, "bfloat16": 1e4, "float16": 500.0}
MOST_ELEMENTS = 5000
RUNS, MORE_RUNS, FAR_RUNS = 2, 14, 24
# How much farther results are moved in the far runs; those of half dtypes are coarse enough.
FAR, FAR_HALF = 8, 2
# How much farther than torch's largest error of a tensor ours may be from the float64 values.
NEARNESS = 4

# What torch refuses though the result is defined; such a step is left out. See `accepted`.
WRITTEN = "modified by an inplace operation"
TORCH_LIMITS = (
    # a dtype for which it has no kernel
    "not implemented for",
    "is not implemented",
    "must be either float or double dtype",
    "Expected a floating point or complex tensor as input",
    "inputs not supported for",
    "does not support bool",
    "bool dtype is not supported",
    "bool input",
    "Unsupported input type encountered",
    "Promotion for uint16, uint32, uint64 types is not supported",
    "could not infer output dtype",
    # what its record of history cannot follow
    "derivative for",
    "Autograd not support dtype",
    WRITTEN,
    "is a view and is being modified inplace",
    "the output of a function that returns multiple views",
    "A view was created in no_grad mode and is being modified inplace",
    "does not support automatic differentiation",
    "does not require grad",
    # windows that overlap: there the order of writes decides
    "unsupported operation: some elements of the input tensor and the written-to tensor",
    "unsupported operation: more than one element of the written-to tensor",
    # values, which are looked at when they are computed
    "Number of elements of source < number of ones in mask",
    "is out of bounds for dimension",
    # a kernel larger than an image with its padding, in three dimensions alone
    "smaller than kernel size",
    # no output of a transposed convolution: some of its kernels give it
    "Calculated output size per channel",
    # vectors that broadcast, as all other operands of vecdot do
    "inconsistent tensor size, expected tensor",
    # a view where the operand needs a copy
    "view size is not compatible with input tensor's size and stride",
    "to have one of the following scalar types",
)


# Families and operations whose results torch lays out as a library leaves them, often by columns.
# The library for volumes depends on the processor, threads, dtype and batch; test_layout has them.
FREE_LAYOUT = (
    "product", "linalg", "nonzero", "argwhere", "F.logsigmoid", "index write", "scatter",
    "conv3d", "conv_transpose3d",
)  # fmt: skip

# Families whose operands are moved, too: an error inside may be larger than that of the result.
CONDITIONED = (
    "reduction", "cumulative", "softmax", "product", "linalg", "convolution", "pooling",
    "normalization", "vision", "loss",
)  # fmt: skip

# Of these torch's third derivative is wrong: that of the second takes the statistics for constants.
NO_THIRD_DERIVATIVE = ("batch_norm", "instance_norm", "layer_norm")

# Programs ----------------------------------------------------------------------------------------


def generate(seed: int) -> Program:
    """The steps of a seed; each has a number of its own, by which others name its results."""
    k, apart = random.Random(seed), random.Random(f"unsigned {seed}")
    sizes = k.sample((2, 3, 4, 5, 7), 2) + [1]
    if k.random() < 0.15:
        sizes.append(0)
    if k.random() < 0.1:
        sizes.append(k.choice((13, 17, 31)))
    main = k.choice(("float32", "float32", "float32", "float64", "float64", "float16", "bfloat16"))
    program: Program = []
    for _ in range(k.randint(3, 6)):
        shape = tuple(k.choice(sizes) for _ in range(k.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))))
        dtype = k.choice((main, main, main, k.choice(DTYPES), k.choice(("int64", "bool", "int32"))))
        dtype = seldom_unsigned(apart, dtype)
        kind = k.choice(("normal", "normal", "normal", "ties"))
        grad = dtype in FLOATS and k.random() < 0.6
        program.append(("leaf", len(program), shape, dtype, kind, grad, k.getrandbits(32)))
    chosen = k.sample(FAMILIES, k.randint(3, len(FAMILIES)))
    names = {family: [n for n in OPS if OPS[n].family == family] for family in chosen}
    for _ in range(k.randint(5, 60)):
        number, salt = len(program), k.getrandbits(32)
        draw = k.random()
        if draw < 0.05:
            program.append(("backward", number, k.getrandbits(32), salt))
        elif draw < 0.07:
            program.append(("grad", number, k.getrandbits(32), salt))
        elif draw < 0.1:
            program.append(("look", number, k.getrandbits(32)))
        else:
            family = k.choice(("movement", "write", "elementwise", *chosen))
            name = k.choice(names.get(family) or [n for n in OPS if OPS[n].family == family])
            program.append(("op", number, name, tuple(k.getrandbits(32) for _ in range(3)), salt))
    program.append(("backward", len(program), k.getrandbits(32), k.getrandbits(32)))
    if k.random() < 0.4:
        # With `check_versions` on; a pass that torch refuses is then refused here, else left out.
        program.insert(0, ("versions",))
    return program


def _leaf(lib: Any, step: Step, device: str | None, moved: random.Random | None) -> Any:
    _, _, shape, dtype, kind, grad, salt = step
    numbers = np.random.default_rng(salt)
    if dtype == "bool":
        data = numbers.random(shape) < 0.5
    elif dtype in INTEGERS:
        data = numbers.integers(0 if dtype.startswith("u") else -9, 10, shape)
    elif kind == "ties":
        data = numbers.integers(-3, 4, shape).astype(np.float32)
    else:
        data = numbers.standard_normal(shape).astype(np.float32)
    options = {} if device is None else {"device": device}
    leaf = lib.tensor(np.asarray(data), **options).to(getattr(lib, dtype))
    if moved is not None and dtype in FLOATS and kind == "normal":
        _move(lib, leaf, moved)
    return leaf.requires_grad_() if grad else leaf


# Steps -------------------------------------------------------------------------------------------


def _outputs(result: Any) -> list[Any]:
    if result is None:
        return []
    if isinstance(result, tuple | list):
        return [x for part in result for x in _outputs(part)]
    return [result] if hasattr(result, "dim") else []


def _loss(lib: Any, x: Any, salt: int) -> Any:
    k = Numbers(salt)
    return k.choice((
        lambda: x.sum(), lambda: (x * x).sum() * 0.5, lambda: x.mean(),
        lambda: (x.float() * 1.5).sum(), lambda: x.reshape(-1)[0] + x.reshape(-1)[-1] * 2,
    ))()  # fmt: skip


def _perform(lib: Any, step: Step, operands: list[Any], leaves: list[Any]) -> list[Any]:
    """Does a step; returns its results."""
    kind = step[0]
    if kind == "op":
        _, _, name, _, salt = step
        context = lib.no_grad() if salt % 25 == 0 else nullcontext()
        with context:
            results = _outputs(OPS[name].run(lib, Numbers(salt), *operands))
            if salt % 25 == 0:
                # torch marks a view of a leaf as requiring grad under no_grad, without history.
                results = [x.detach() for x in results]
            if OPS[name].family in FREE_LAYOUT or name in FREE_LAYOUT:
                # The strides of dimensions of one element would outlast `contiguous` alone.
                results = [x.contiguous().reshape(-1).reshape(x.shape) for x in results]
            if OPS[name].family in ("linalg", "product"):
                # That may be a copy in torch, which then is written apart from what is saved; the
                # library's strides of dimensions of one element would outlast `contiguous`.
                results = [x.reshape(-1).reshape(x.shape).clone() for x in results]
            return results
    loss = _loss(lib, operands[0], step[3])
    if kind == "backward":
        loss.backward(retain_graph=True)
        return []
    # Of a leaf that is not used a gradient of zeros, where one library has it and one has None.
    found = lib.autograd.grad(
        loss, leaves, create_graph=True, allow_unused=True, materialize_grads=True
    )
    # A gradient may be a constant; what is added is zero and has a history.
    return [(g + (leaf - leaf.detach())).contiguous() for g, leaf in zip(found, leaves)]


def _suits(letter: str, x: Any, first: Any) -> bool:
    """Whether a tensor may be the operand that a letter stands for."""
    name, kind = dtype_name(x), letter.lower()
    if letter.isupper() and first is not None and not _broadcasts(first.shape, x.shape):
        return False
    if kind == "f":
        return name in FLOATS
    if kind == "m":
        return x.dim() >= 2
    if kind == "i":
        return name in INTEGERS
    if kind == "b":
        return name == "bool"
    return kind == "a" or name != "bool"


def _broadcasts(a: Any, b: Any) -> bool:
    return all(m == n or m == 1 or n == 1 for m, n in zip(reversed(a), reversed(b)))


def _choose(pool: dict[int, Any], number: int, letter: str, first: Any) -> int | None:
    """A tensor that suits, the same one if others are left out: the one of the highest hash."""
    if number % 29 == 0:
        suiting = list(pool)
    else:
        suiting = [key for key, x in pool.items() if _suits(letter, x, first)]
    if letter.isupper() and first is not None and number % 3:
        same_shape = [key for key in suiting if pool[key].shape == first.shape]
        suiting = same_shape or suiting
    if number % 2:
        suiting = suiting[-6:]
    return max(suiting, key=lambda key: hash((key, number)) % 1000003, default=None)


# The first run -----------------------------------------------------------------------------------


class Facts(NamedTuple):
    """What can be seen of a result before its values."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    requires_grad: bool

    @classmethod
    def of(cls, x: Any) -> Facts:
        shape, strides = tuple(x.shape), tuple(x.stride())
        if 0 in shape:
            strides = ()
        # The stride of a dimension of one element says nothing.
        strides = tuple(0 if n == 1 else s for n, s in zip(shape, strides))
        # torch forgets the history of some empty results, and remembers that of others.
        return cls(shape, dtype_name(x), strides, bool(x.requires_grad) and 0 not in shape)


class Done(NamedTuple):
    """A step as torch did it."""

    step: Step
    keys: tuple[int, ...]
    facts: tuple[Facts, ...]
    error: str | None
    # The numbers of the results that are new tensors.
    made: tuple[int, ...] = ()
    # The values of results that are integers or bools, by their number.
    whole: tuple[tuple[int, Array], ...] = ()
    # The positions of operands that are copied before they are read.
    copied: tuple[int, ...] = ()


class Seen(NamedTuple):
    """A value that was looked at, and the step that made it."""

    what: str
    maker: str
    value: Array | None
    # Whether no integer that it follows from is another one in this run than in the first.
    stable: bool = True
    # Whether the step that made it is the first to give such an integer.
    first_to_differ: bool = False


def _values(x: Any) -> Array:
    array = x.detach()
    if hasattr(array, "cpu"):
        array = array.cpu()
    if dtype_name(array) == "bfloat16":
        array = array.float()
    # By force: torch's gradient of what is constant is a tensor without elements in memory.
    found = np.array(array.numpy(force=True))
    return found.astype(np.float64 if found.dtype.kind == "f" else np.int64)


def _reach(x: Any, far: bool) -> float:
    """How far a run moves an element, as a part of it."""
    name = dtype_name(x)
    return EPSILON[name] * ((FAR if name in ("float32", "float64") else FAR_HALF) if far else 1)


def _move(torch: Any, x: Any, moved: random.Random) -> None:
    """Moves each element by a rounding or two, behind the back of history."""
    scale = 2 * _reach(x, False)
    factor = np.random.default_rng(moved.getrandbits(32)).uniform(-scale, scale, tuple(x.shape)) + 1
    data = x.data
    data.copy_(data.double() * torch.from_numpy(np.asarray(factor)))


def _move_far(torch: Any, x: Any, moved: random.Random, unit: float, reach: float) -> None:
    """Moves farther, by parts of `unit` too; what is below these becomes 0 or takes either sign.

    Every other time all elements move by one factor, so that counts and sums move as a whole.
    """
    scale, numbers = 2 * reach, np.random.default_rng(moved.getrandbits(32))
    shape = (1,) * x.dim() if numbers.random() < 0.5 else tuple(x.shape)
    factor, added = numbers.uniform(-scale, scale, (2, *shape))
    sign = numbers.integers(-1, 2, shape)
    data = x.data
    value = data.double()
    away = value * torch.as_tensor(1 + factor) + torch.as_tensor(added * unit)
    small = torch.as_tensor(sign * np.abs(added) * unit).expand_as(value)
    data.copy_(torch.where(value.abs() <= scale * unit, small, away))


# The values that a step has changed; None of a gradient that is none.
State = list[Array | None]


def _changed(
    step: Step, keys: tuple[int, ...], results: list[Any], pool: dict[int, Any], leaves: list[Any]
) -> list[Any]:
    """The tensors that a step has made or written."""
    if step[0] == "backward":
        return [leaf.grad for leaf in leaves]
    written = [pool[keys[0]]] if step[0] == "op" and OPS[step[2]].writes else []
    return [*written, *results]


def _seen(x: Any) -> Array | None:
    return None if x is None else _values(x)


# Stands for the memory of all gradients.
GRADIENTS = -1


def _memory(x: Any) -> int:
    """A number that views of one memory have in common."""
    return int(x.untyped_storage().data_ptr())


def _largest(x: Any) -> float:
    return float(x.detach().abs().max()) if dtype_name(x) in FLOATS and x.numel() else 0.0


def _ordinary(x: Any) -> bool:
    """Whether all values are in the range that is compared."""
    if x.numel() > MOST_ELEMENTS:
        return False
    bound = BOUND.get(dtype_name(x))
    if bound is None or not x.numel():
        return True
    largest = float(x.detach().abs().max())
    return largest <= bound


def _wide(torch: Any) -> Any:
    """A mode in which torch computes in float64 what a program asks for in narrower floats."""
    from torch.overrides import TorchFunctionMode

    narrow = (torch.float32, torch.float16, torch.bfloat16)
    casts = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)
    copies = (torch.Tensor.double, torch.Tensor.to, torch.Tensor.type, torch.Tensor.type_as)

    def widened(value: Any) -> Any:
        return torch.float64 if isinstance(value, torch.dtype) and value in narrow else value

    class Wide(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            function = torch.Tensor.double if function in casts else function
            named = {name: widened(a) for name, a in (kwargs or {}).items()}
            result = function(*map(widened, args), **named)
            # What was cast to another dtype has a memory of its own.
            return result.clone() if function in copies and result is args[0] else result

    return Wide()


class Torch:
    """A run of a program by torch: the first one chooses and judges, later ones are moved."""

    def __init__(
        self,
        moved: random.Random | None = None,
        far: bool = False,
        wide: bool = False,
        guide: list[State] | None = None,
    ) -> None:
        import torch

        self.lib = torch
        self.moved = moved
        self.far = far
        self.wide = wide
        # What ours had after each step, which replaces what torch makes; and that, before.
        self.guide = guide
        self.states: list[State] = []
        self.epsilons: list[list[float]] = []
        # How many steps of the first run have been done again.
        self.repeated = 0
        # The facts of the results at which it stopped, since they are not those of the first run.
        self.parted: list[Facts] = []
        # The memory of what follows from an integer that differs from that of the first run.
        self.unstable: set[int] = set()
        # The memory of what came with such an integer, though made of none.
        self.differing: set[int] = set()
        self.versions = False
        # How many derivatives the values in a memory are of leaves.
        self.orders: dict[int, int] = {}
        self.pool: dict[int, Any] = {}
        self.operations: dict[int, str] = {}
        self.leaves: list[Any] = []
        self.done: list[Done] = []
        self.seen: list[Seen] = []

    def first(self, program: Program) -> None:
        self.versions = ("versions",) in program
        for step in program:
            if step[0] == "versions":
                continue
            if step[0] == "leaf":
                self.leaf(step)
                self.done.append(Done(step, (), (), None))
                continue
            keys = self.resolve(step)
            if keys is None or not self.harmless(step, keys):
                continue
            self.attempt(step, keys)
        self.look_at_all()

    def again(self, done: Iterable[Done]) -> None:
        """The steps of the first run, moved; what depends on an unstable value may fail."""
        for step, keys, facts, error, made, whole, _ in done:
            if step[0] == "leaf":
                self.leaf(step)
            elif step[0] == "look":
                self.look(keys[0])
            elif error is None:
                fields = 1 if self.wide else 2
                try:
                    results = self.near_operands(step, keys)
                    found = [Facts.of(x) for x in results]
                    if [f[:fields] for f in found] != [f[:fields] for f in facts]:
                        self.parted = found
                        return
                    # A hook asks for history, which torch refuses to some views that were written.
                    self.shift(step, keys, results)
                except (RuntimeError, IndexError, ValueError):
                    return
                self.keep(step, results, made)
                self.follow(step, keys, results, whole)
                if self.guide is not None:
                    self.replace(step, keys, results)
            self.repeated += 1
        self.look_at_all()

    def operands(self, step: Step, keys: tuple[int, ...]) -> list[Any]:
        """The operands of a step, copied where need be."""
        copied = self.copied(step, keys)
        operands = [self.pool[key] for key in keys]
        return [x.clone() if number in copied else x for number, x in enumerate(operands)]

    def copied(self, step: Step, keys: tuple[int, ...]) -> tuple[int, ...]:
        """The operands that share memory with another shape of the target of a write.

        torch reads such an operand while it writes, and refuses only what it notices.
        """
        if step[0] != "op" or not OPS[step[2]].writes:
            return ()
        first, *rest = (self.pool[key] for key in keys)
        # torch takes a view for a leaf until it is asked for the history that its base has got.
        assert first.grad_fn is not None or first.is_leaf
        view = (first.data_ptr(), first.shape, first.stride())
        return tuple(
            number for number, x in enumerate(rest, 1)
            if _memory(x) == _memory(first) and (x.data_ptr(), x.shape, x.stride()) != view
        )  # fmt: skip

    def near_operands(self, step: Step, keys: tuple[int, ...]) -> list[Any]:
        """Does a step, on moved operands where an error inside may be larger than outside."""
        operands = self.operands(step, keys)
        if step[0] == "op" and OPS[step[2]].family in CONDITIONED:
            operands = [self.near(x) for x in operands]
        Mover.move = self.near
        try:
            return _perform(self.lib, step, operands, self.leaves)
        finally:
            Mover.move = unmoved

    def near(self, x: Any) -> Any:
        """A floating tensor with each element moved by a rounding; history knows.

        In every other far run all elements are moved by one factor, as the parts of a mean are.
        """
        if x is None or dtype_name(x) not in FLOATS or self.moved is None:
            return x
        scale = _reach(x, self.far)
        numbers = np.random.default_rng(self.moved.getrandbits(32))
        uniform = self.far and numbers.random() < 0.5
        moves = numbers.uniform(-scale, scale, (1,) * x.dim() if uniform else tuple(x.shape))
        factor = self.lib.as_tensor(1 + moves)
        return (x.double() * factor).to(x.dtype)

    def follow(
        self, step: Step, keys: tuple[int, ...], results: list[Any], whole: Iterable[Any]
    ) -> None:
        """Marks what is made of unstable values; a gradient of one makes all of them unstable."""
        operands = [self.pool[key] for key in keys]
        spoiled = not self.unstable.isdisjoint(map(_memory, operands))
        if step[0] in ("backward", "grad"):
            self.unstable |= {GRADIENTS} if spoiled else set()
        spoiled = spoiled or (step[0] == "grad" and GRADIENTS in self.unstable)
        written = operands[:1] if step[0] == "op" and OPS[step[2]].writes else []
        self.differing -= set(map(_memory, written))
        if spoiled or any((_values(results[number]) != value).any() for number, value in whole):
            if not spoiled and not written:
                self.differing |= set(map(_memory, results))
            self.unstable |= {_memory(x) for x in (*results, *written) if x.numel()}

    def replace(self, step: Step, keys: tuple[int, ...], results: list[Any]) -> None:
        """Goes on with the values of ours, moved as those of torch would be."""
        assert self.guide is not None
        parts = _changed(step, keys, results, self.pool, self.leaves)
        self.states.append([_seen(x) for x in parts])
        self.epsilons.append(
            [EPSILON.get(dtype_name(x), 0.0) if x is not None else 0.0 for x in parts]
        )
        for x, value in zip(parts, self.guide[len(self.states) - 1]):
            if x is None or value is None or 0 in x.stride():
                continue
            x.data.copy_(self.lib.from_numpy(np.asarray(value)))
            rounds = step[0] != "op" or OPS[step[2]].rounds
            if rounds and self.moved is not None and dtype_name(x) in FLOATS:
                _move(self.lib, x, self.moved)

    def leaf(self, step: Step) -> None:
        leaf = _leaf(self.lib, step, None, self.moved)
        if self.wide and step[3] in FLOATS:
            leaf = leaf.detach().double().requires_grad_(leaf.requires_grad)
        self.pool[step[1] * 16] = leaf
        self.operations[step[1] * 16] = "leaf"
        if leaf.requires_grad:
            self.leaves.append(leaf)

    def resolve(self, step: Step) -> tuple[int, ...] | None:
        """The operands of a step, or None where nothing suits."""
        if step[0] == "op":
            letters, numbers = OPS[step[2]].kinds, step[3]
        else:
            letters, numbers = "a" if step[0] == "look" else "f", (step[2],)
        keys: list[int] = []
        pool = self.pool
        if step[0] in ("backward", "grad"):
            pool = {key: x for key, x in pool.items() if x.requires_grad and x.numel()}
        for letter, number in zip(letters, numbers):
            first = self.pool[keys[0]] if keys else None
            key = _choose(pool, number, letter, first)
            if key is None:
                return None
            keys.append(key)
        return tuple(keys)

    def suiting(self, step: Step, operands: list[Any]) -> bool:
        """Whether the operands are of the kinds that the operation asks for."""
        if step[0] != "op":
            return True
        row = OPS[step[2]]
        if row.family == "product" and len({x.dtype for x in operands}) > 1:
            return False
        return all(_suits(letter, x, operands[0]) for letter, x in zip(row.kinds, operands))

    def harmless(self, step: Step, keys: tuple[int, ...]) -> bool:
        """Whether a write leaves ordinary values; tried on copies."""
        if step[0] != "op" or not OPS[step[2]].writes:
            return True
        copies = [self.pool[key].detach().clone() for key in keys]
        try:
            _perform(self.lib, step, copies, [])
        except Exception:
            return True
        return all(_ordinary(x) for x in copies)

    def attempt(self, step: Step, keys: tuple[int, ...]) -> None:
        if step[0] == "look":
            self.look(keys[0])
            self.done.append(Done(step, keys, (), None))
            return
        order = max(self.orders.get(_memory(self.pool[key]), 0) for key in keys)
        if step[0] != "op" and order >= 2 and self.did(NO_THIRD_DERIVATIVE):
            return
        before = [None if leaf.grad is None else leaf.grad.clone() for leaf in self.leaves]
        try:
            copied = self.copied(step, keys)
            operands = self.operands(step, keys)
            results = _perform(self.lib, step, operands, self.leaves)
        except Unsuitable:
            return
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            # A pass that fails half way has changed some gradients.
            for leaf, grad in zip(self.leaves, before):
                leaf.grad = grad
            if step[0] == "op":
                refused = not any(limit in str(error) for limit in TORCH_LIMITS)
            else:
                refused = self.versions and WRITTEN in str(error)
            if refused:
                self.done.append(Done(step, keys, (), f"{type(error).__name__}: {error}"))
            return
        if not all(_ordinary(x) for x in results):
            return
        facts = tuple(Facts.of(x) for x in results)
        empty = any(0 in x.shape for x in (*facts, *operands))
        if empty and not self.suiting(step, operands):
            return  # torch does not check the dtypes of operands without elements
        made = tuple(k for k, x in enumerate(results[:16]) if not self.holds(x, results[:k]))
        self.keep(step, results, made)
        self.derived(step, keys, results, order)
        whole = [(k, _values(x)) for k, x in enumerate(results) if dtype_name(x) not in FLOATS]
        self.done.append(Done(step, keys, facts, None, made, tuple(whole), copied))

    def did(self, names: tuple[str, ...]) -> bool:
        """Whether a step was one of these operations."""
        return any(done.step[0] == "op" and done.step[2] in names for done in self.done)

    def derived(self, step: Step, keys: tuple[int, ...], results: list[Any], order: int) -> None:
        """Notes of how many derivatives are what a step made or wrote."""
        written = keys[:1] if step[0] == "op" and OPS[step[2]].writes else ()
        for x in (*results, *(self.pool[key] for key in written)):
            here = _memory(x)
            self.orders[here] = max(order + (step[0] == "grad"), self.orders.get(here, 0))

    def shift(self, step: Step, keys: tuple[int, ...], results: list[Any]) -> None:
        """Moves the results of a moved run, where the operation rounds."""
        if step[0] == "grad" and self.far:
            # A gradient rounds as the coarsest dtype that it may have passed, not as its own.
            reach = max(_reach(x, True) for x in self.pool.values() if dtype_name(x) in FLOATS)
            for x in results:
                _move_far(self.lib, x, self.moved, max(1.0, _largest(x)), reach)
        if step[0] != "op" or self.moved is None or not OPS[step[2]].rounds:
            return
        unit = max(_largest(self.pool[key]) for key in keys)
        if OPS[step[2]].family in CONDITIONED:
            # A row adds numbers of its own to operands that may be zeros.
            unit = max([unit, *map(_largest, results)])
        for x in [self.pool[keys[0]]] if OPS[step[2]].writes else results:
            if dtype_name(x) in FLOATS and 0 not in x.stride():
                if self.far:
                    _move_far(self.lib, x, self.moved, unit, _reach(x, True))
                else:
                    _move(self.lib, x, self.moved)
            if self.far and x.requires_grad and not x.is_leaf:
                x.register_hook(self.near)

    def holds(self, x: Any, others: list[Any]) -> bool:
        """Whether a result is a tensor that has a number already."""
        return any(x is other for other in (*self.pool.values(), *others))

    def keep(self, step: Step, results: list[Any], made: Iterable[int]) -> None:
        """Gives the new tensors among the results their numbers."""
        for number in made:
            self.pool[step[1] * 16 + number] = results[number]
            self.operations[step[1] * 16 + number] = step[2] if step[0] == "op" else step[0]

    def look(self, key: int, what: str = "look at ") -> None:
        x = self.pool[key]
        memory = _memory(x)
        self.seen.append(
            Seen(
                f"{what}t{key}", self.operations[key], _values(x), memory not in self.unstable,
                memory in self.differing,
            )
        )  # fmt: skip

    def look_at_all(self) -> None:
        for key in self.pool:
            self.look(key, "")
        stable = GRADIENTS not in self.unstable
        for number, leaf in enumerate(self.leaves):
            value = None if leaf.grad is None else _values(leaf.grad)
            self.seen.append(Seen(f"gradient of leaf {number}", "gradient", value, stable))


# Our run -----------------------------------------------------------------------------------------


class Ours:
    """A run of torch's steps by tinygrad_cuda; `difference` is the first one found."""

    def __init__(self, device: str, watched: bool = False) -> None:
        import tinygrad_cuda

        self.lib = tinygrad_cuda
        self.device = device
        self.pool: dict[int, Any] = {}
        self.leaves: list[Any] = []
        self.looks: list[Array | None] = []
        # What was there after each step, if it is looked at.
        self.watched = watched
        self.states: list[State] = []
        # How many steps have been done.
        self.done = 0
        # The first strides that differ; what follows from them is not a difference of its own.
        self.strides: str | None = None
        # The facts of the results that differ from torch's.
        self.parted: list[Facts] = []
        self.versions = False

    def run(self, first: Torch) -> str | None:
        self.versions = first.versions
        found = self.steps(first)
        return self.strides or found

    def steps(self, first: Torch) -> str | None:
        for done in first.done:
            difference = self.step(done)
            if difference:
                return difference
            self.done += 1
        last = {key: self.pool[key] for key in first.pool}
        if self.device != "cpu":
            # A look at a view is a plan of its own; together they cost one call of a compiler.
            last = {key: x.detach().clone() for key, x in last.items()}
        for key, x in last.items():
            difference = self.look(f"t{key}", first.operations[key], x)
            if difference:
                return difference
        for number, leaf in enumerate(self.leaves):
            if leaf.grad is None:
                self.looks.append(None)
            elif difference := self.look(f"gradient of leaf {number}", "gradient", leaf.grad):
                return difference
        return None

    def look(self, what: str, maker: str, x: Any) -> str | None:
        try:
            self.looks.append(_values(x))
        except Exception as error:
            return f"look raised after {maker}: at {what}: {type(error).__name__}: {error}"
        return None

    def step(self, done: Done) -> str | None:
        step, keys, facts, refused = done[:4]
        if step[0] == "leaf":
            leaf = _leaf(self.lib, step, self.device, None)
            self.pool[step[1] * 16] = leaf
            if leaf.requires_grad:
                self.leaves.append(leaf)
            return None
        # A copy is another tensor for the check of versions alone: elsewhere ours reads the view.
        copied = done.copied if self.versions else ()
        operands = [
            self.pool[key].clone() if number in copied else self.pool[key]
            for number, key in enumerate(keys)
        ]
        if step[0] == "look":
            return self.look(f"t{keys[0]}", "look", operands[0])
        name = step[2] if step[0] == "op" else step[0]
        try:
            results = _perform(self.lib, step, operands, self.leaves)
        except self.lib.TgcError as error:
            if refused and (step[0] == "op" or WRITTEN in str(error)):
                return None
            return f"raised by {name}: {type(error).__name__}: {error}\ntorch: {refused}"
        except Exception as error:
            if refused and refused.startswith(type(error).__name__):
                return None
            return f"crashed in {name}: {type(error).__name__}: {error}; torch: {refused}"
        if refused:
            return f"not refused by {name}: torch: {refused.splitlines()[0]}"
        mine = tuple(Facts.of(x) for x in results)
        if mine != facts:
            self.parted = list(mine)
            for number, (a, b) in enumerate(zip(mine, facts)):
                field = next((f for f in Facts._fields if getattr(a, f) != getattr(b, f)), None)
                text = f"{field} of {name}: result {number}: ours {a}, torch {b}"
                if field == "strides":
                    self.strides = self.strides or text
                elif field:
                    return text
            if len(mine) != len(facts):
                return f"results of {name}: ours {mine}, torch {facts}"
        for number in done.made:
            self.pool[step[1] * 16 + number] = results[number]
        if self.watched:
            changed = _changed(step, keys, results, self.pool, self.leaves)
            self.states.append([_seen(x) for x in changed])
        return None


# Comparison --------------------------------------------------------------------------------------


def _moved_runs(first: Torch, start: int, count: int, far: bool = False) -> list[Torch]:
    runs = [Torch(random.Random(number), far) for number in range(start, start + count)]
    for run in runs:
        run.again(first.done)
    return runs


def _exact(first: Torch) -> Torch:
    """The run in float64."""
    torch = first.lib
    run, default = Torch(wide=True), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _wide(torch):
            run.again(first.done)
    finally:
        torch.set_default_dtype(default)
    return run


def _as_near(ours: Array, wanted: Array, exact: Array) -> Array:
    """Where ours is as near to the exact values as torch's are."""
    if wanted.dtype.kind != "f":
        return np.asarray(ours == exact)
    error = np.max(np.abs(wanted - exact), initial=0)
    return np.asarray(np.abs(ours - exact) <= NEARNESS * error)


def _differs(
    ours: Array | None, seen: Seen, near: list[Array], far: list[Array], epsilon: float,
    exact: Array | None = None,
) -> str:  # fmt: skip
    """What is wrong with a value, or nothing; the near runs are counted six times."""
    wanted = seen.value
    if ours is None and wanted is not None and not wanted.any():
        return ""  # the rule gradient_of_zeros
    if ours is None or wanted is None:
        return "" if ours is wanted else f"ours {ours}, torch {wanted}"
    if ours.shape != wanted.shape:
        return f"shape: ours {ours.shape}, torch {wanted.shape}"
    cancels = seen.maker in ("gradient", "grad")
    with np.errstate(all="ignore"):
        if wanted.dtype.kind != "f":
            wrong = ours != wanted
            for other in (*near, *far):
                wrong &= other == wanted
        else:
            spread = 6 * np.max([np.abs(other - wanted) for other in near], axis=0, initial=0)
            if far:
                # One of some twenty more runs would lie outside the range of these.
                apart = 2 * np.max([np.abs(other - wanted) for other in far], axis=0)
                spread = np.maximum(spread, apart)
            allowed = spread + 16 * epsilon * np.abs(wanted)
            if wanted.size:
                # Sums of gradients may cancel; torch's own formula may be exact where ours rounds.
                scale = np.max(np.abs(wanted), initial=1) if cancels else np.mean(np.abs(wanted))
                allowed += 4 * epsilon * scale
            wrong = ~(np.abs(ours - wanted) <= allowed) & np.isfinite(wanted)
            # Where roundings make the value, there is nothing to compare.
            wrong &= np.isfinite(allowed) & ((spread < np.abs(wanted)) | (wanted == 0))
        if exact is not None:
            wrong &= ~_as_near(ours, wanted, exact)
    if not wrong.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum())} of {wrong.size}, at {place} ours {ours[place]!r}, torch "
        f"{wanted[place]!r}, moved {[float(other[place]) for other in near[:4]]}"
    )


def _judged(
    first: Torch,
    looks: list[Array | None],
    near: list[Torch],
    far: list[Torch],
    wide: list[Torch],
) -> str | None:
    """The first value that differs by more than the runs do."""

    def others(runs: list[Torch], number: int, seen: Seen) -> list[Array]:
        """The runs' values, as far as these have one of this shape."""
        values = [run.seen[number].value for run in runs if number < len(run.seen)]
        shape = None if seen.value is None else seen.value.shape
        return [value for value in values if value is not None and value.shape == shape]

    for number, (seen, ours) in enumerate(zip(first.seen, looks)):
        close, apart = others(near, number, seen), others(far, number, seen)
        if seen.value is not None and len(close) + len(apart) < len(near) + len(far):
            continue
        if far and not all(run.seen[number].stable for run in near if number < len(run.seen)):
            continue
        exact = [
            run for run in wide if number < len(run.seen)
            and (run.seen[number].stable or run.seen[number].first_to_differ)
        ]  # fmt: skip
        values = others(exact, number, seen) or [None]
        text = _differs(ours, seen, close, apart, _epsilon(first, seen), values[0])
        if text:
            return f"values of {seen.maker}: {seen.what}: {text}"
    return None


def _compare(first: Torch, looks: list[Array | None], device: str) -> str | None:
    """What differs after few runs, more, far ones, from the values in float64, and by steps."""
    near = _moved_runs(first, 0, RUNS)
    if not _judged(first, looks, near, [], []):
        return None
    # oneDNN keeps float32 between operations where torch's own kernels round to half and overflow.
    with first.lib.backends.mkldnn.flags(enabled=False):
        near += _moved_runs(first, RUNS, MORE_RUNS)
    if not _judged(first, looks, near, [], []):
        return None
    far = _moved_runs(first, RUNS + MORE_RUNS, FAR_RUNS, far=True)
    if not _judged(first, looks, near, far, []):
        return None
    difference = _judged(first, looks, near, far, [_exact(first)])
    return difference if difference and not _right_by_steps(first, looks, device) else None


def _right_by_steps(first: Torch, looks: list[Array | None], device: str) -> bool:
    """Whether each step of ours is right for what it was given, and looks change nothing."""
    ours = Ours(device, watched=True)
    if ours.run(first) or len(ours.looks) != len(looks):
        return False
    if not all(map(_same_value, ours.looks, looks)):
        return False
    return _steps_are_right(first, ours, first.done)


def _right_by_values(first: Torch, seen: Ours, device: str) -> bool:
    """Whether torch makes our shapes of our values, and each step before is right for its own."""
    ours = Ours(device, watched=True)
    ours.run(first)
    guided = Torch(guide=[*ours.states, []])
    guided.again(first.done[: ours.done + 1])
    if not ours.done == seen.done == guided.repeated:
        return False
    shapes = [[fact[:2] for fact in run.parted] for run in (ours, seen, guided)]
    done = first.done[: ours.done]
    return shapes[0] == shapes[1] == shapes[2] and _steps_are_right(first, ours, done)


def _steps_are_right(first: Torch, ours: Ours, done: list[Done]) -> bool:
    """Whether each of some steps of ours is right for what it was given."""
    moves = [None, *map(random.Random, range(RUNS + MORE_RUNS))]
    runs = [Torch(moved, guide=ours.states) for moved in moves]
    for run in runs:
        run.again(done)
    if any(len(run.states) != len(ours.states) for run in runs):
        return False
    steps = [
        each.step for each in done if each.error is None and each.step[0] not in ("leaf", "look")
    ]
    for number, (step, mine) in enumerate(zip(steps, ours.states)):
        maker = step[2] if step[0] == "op" else "gradient"
        for part, value in enumerate(mine):
            wanted, *near = (run.states[number][part] for run in runs)
            seen = Seen("", maker, wanted)
            epsilon = runs[0].epsilons[number][part] if step[0] == "op" else _coarsest(first)
            if _differs(value, seen, [x for x in near if x is not None], [], epsilon):
                return False
    return True


def _same_value(a: Array | None, b: Array | None) -> bool:
    return a is b or (a is not None and b is not None and np.array_equal(a, b, equal_nan=True))


def _open(first: Torch, step: int) -> bool:
    """Whether a step's shapes are other ones after a rounding, as those of `nonzero` may be."""
    runs = _moved_runs(first, 0, RUNS + MORE_RUNS)
    runs += _moved_runs(first, RUNS + MORE_RUNS, FAR_RUNS, far=True)
    return any(run.repeated <= step for run in runs)


def _coarsest(first: Torch) -> float:
    used = {dtype_name(x) for x in first.pool.values()} & set(EPSILON)
    return max((EPSILON[name] for name in used), default=0.0)


def _epsilon(first: Torch, seen: Seen) -> float:
    """The rounding of a value's own dtype; of a gradient's the coarsest on its way."""
    if seen.maker in ("gradient", "grad"):
        return _coarsest(first)
    return EPSILON.get(dtype_name(first.pool[int(seen.what.rsplit("t", 1)[1])]), 0.0)


def check(program: Program, device: str) -> str | None:
    """None, or the first difference from torch."""
    import torch

    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = Torch()
        first.first(program)
        ours = Ours(device)
        import tinygrad_cuda as tc

        before = tc.get_default_device()
        tc.set_default_device(device)
        try:
            with tc.autograd.check_versions(first.versions):
                difference = ours.run(first)
                if (
                    difference
                    and difference.startswith("shape of")
                    and (_open(first, ours.done) or _right_by_values(first, ours, device))
                ):
                    difference = None
                early = _compare(first, ours.looks, device)
        finally:
            tc.set_default_device(before)
        return early or difference


def show(program: Program) -> str:
    """The program as torch's calls, with the facts of their results."""
    import torch
    from torch.overrides import TorchFunctionMode, resolve_name

    lines: list[str] = []

    def text(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return f"<{dtype_name(value)} {tuple(value.shape)} {tuple(value.stride())}>"
        if isinstance(value, tuple | list):
            return "[" + ", ".join(text(v) for v in value) + "]"
        return repr(value)

    class Log(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            name = resolve_name(function) or getattr(function, "__name__", str(function))
            hidden = ("shape", "dtype", "dim", "numel", "stride", "requires_grad", "__get__")
            inside = sys._getframe(1).f_code.co_name
            if inside != "_ordinary" and not any(part in name.split(".") for part in hidden):
                given = [text(a) for a in args] + [
                    f"{n}={text(v)}" for n, v in (kwargs or {}).items()
                ]
                lines.append(f"      {name}({', '.join(given)})")
            return function(*args, **(kwargs or {}))

    run = Torch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in program:
            if step[0] == "versions":
                lines.append("  with check_versions(True)")
                continue
            before, done = len(lines), len(run.done)
            with Log() if step[0] != "leaf" else nullcontext():
                if step[0] == "leaf":
                    run.leaf(step)
                    run.done.append(Done(step, (), (), None))
                else:
                    keys = run.resolve(step)
                    if keys is None or not run.harmless(step, keys):
                        continue
                    del lines[before:]
                    run.attempt(step, keys)
            if len(run.done) == done:
                del lines[before:]
                continue
            last = run.done[-1]
            lines.insert(before, f"  {step[0]} {step[1]}: {step[2:]} of {list(last.keys)}")
            made = [key for key in run.pool if key // 16 == step[1]]
            lines += [f"      -> t{key} {text(run.pool[key])}" for key in made]
            if last.error:
                lines.append(f"      refused: {last.error.splitlines()[0]}")
    return "\n".join(lines)
