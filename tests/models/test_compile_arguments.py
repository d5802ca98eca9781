"""tc.compile against a plain run: what arguments and results are, and hold, besides values."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import CompileError, ShapeError

pytestmark = pytest.mark.usefixtures("device")


def base(number: int) -> Any:
    """Another (3, 4) Tensor for each number."""
    return tc.arange(12).float().reshape(3, 4).clone() + 100 * number


def shown(value: Any) -> Any:
    """A structure with lists for Tensors."""
    if isinstance(value, tc.Tensor):
        return value.tolist()
    return [shown(part) for part in value] if isinstance(value, tuple | list) else value


# Places in memory ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 0 + x.storage_offset(),
        lambda x: x * 0 + x[2:].storage_offset(),
        lambda x: x * 0 + x.data_ptr(),
        lambda x: tc.as_strided(x, (2,), (1,), 0),
        lambda x: tc.as_strided_scatter(x, tc.zeros(2), (2,), (1,), 0),
    ],
)
def test_where_an_argument_begins_is_refused(function: Callable[[Any], Any]) -> None:
    """From the first call on: a later view begins elsewhere and has the same program."""
    compiled = tc.compile(function)
    for number in range(3):
        with pytest.raises(CompileError, match="a place in memory is asked for") as caught:
            compiled(base(0)[number])
        assert "test_compile_arguments.py" in str(caught.value)


def test_strides_behind_a_view_with_gaps_are_refused() -> None:
    compiled = tc.compile(lambda x: tc.as_strided(x, (2, 2), (1, 2)))
    with pytest.raises(CompileError, match="the memory behind a view of shape \\(3, 2\\)"):
        compiled(base(0)[:, 1:3])
    for number in range(3):
        rows = base(number)[1:].T
        assert shown(compiled(rows)) == shown(tc.as_strided(rows, (2, 2), (1, 2)))


def test_where_a_view_made_inside_begins() -> None:
    compiled = tc.compile(lambda x: x * 0 + x[1:].storage_offset())
    assert [compiled(base(number)).max().item() for number in range(3)] == [4.0] * 3


# Containers ---------------------------------------------------------------------------------------


@dataclass
class Pair:
    a: Any
    b: Any
    note: str = "x"

    factor = 2.0  # no field

    def total(self) -> Any:
        return self.a + self.b * self.factor


@dataclass(frozen=True, slots=True)
class Frozen:
    a: Any
    b: Any


class Held:
    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b


def fields(value: Any) -> tuple[Any, Any]:
    """What any of the containers holds."""
    return (value["a"], value["b"]) if isinstance(value, dict) else (value.a, value.b)


CONTAINERS: dict[str, Callable[..., Any]] = {
    "dataclass": Pair,
    "frozen": Frozen,
    "namespace": SimpleNamespace,
    "ordered": OrderedDict,
    "defaultdict": lambda a, b: defaultdict(list, a=a, b=b),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_results_in_containers(kind: str) -> None:
    """New ones each time; an argument in one is the caller's, also if it is a view."""
    make = CONTAINERS[kind]

    def program(function: Callable[..., Any]) -> list[Any]:
        calls = []
        for number in range(5):
            x = base(number)
            y = x[number % 3]
            result = function(x, y)
            doubled, same = fields(result)
            same.add_(1000)
            calls.append([type(result).__name__, shown(doubled), shown(x), same is y])
        return calls

    def function(x: Any, y: Any) -> Any:
        return make(a=x * 2, b=y)

    assert program(tc.compile(function)) == program(function)


@pytest.mark.parametrize("kind", CONTAINERS)
def test_arguments_in_containers(kind: str) -> None:
    """Containers of equal structure share a program, whatever object they are."""
    make = CONTAINERS[kind]

    def function(pair: Any) -> Any:
        a, b = fields(pair)
        b.add_(1)
        return a * 2 + b

    def program(function: Callable[..., Any]) -> list[Any]:
        calls = []
        for number in range(4):
            pair = make(a=base(number)[0], b=base(number)[1] if number < 2 else base(1)[2].clone())
            calls.append([shown(function(pair)), shown(fields(pair))])
        return calls

    compiled = tc.compile(function)
    assert program(compiled) == program(function)
    if kind in ("dataclass", "frozen", "namespace", "ordered"):
        assert settings.slow or len(compiled._programs) == 2


def test_methods_and_class_attributes_of_a_dataclass_argument_are_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = tc.compile(lambda pair: pair.total())
    calls = [compiled(Pair(tc.ones(2), tc.ones(2) * n)).tolist()[0] for n in range(3)]
    monkeypatch.setattr(Pair, "factor", 10.0)
    calls += [compiled(Pair(tc.ones(2), tc.ones(2) * n)).tolist()[0] for n in range(3)]
    assert calls == [1.0, 3.0, 5.0, 1.0, 11.0, 21.0]


def test_a_field_that_is_a_number_is_part_of_the_signature() -> None:
    compiled = tc.compile(lambda pair: pair.a * pair.b + len(pair.note))
    pairs = [Pair(tc.ones(1), float(n // 2), "x" * n) for n in range(4)]
    assert [compiled(pair).item() for pair in pairs for _ in range(2)] == [
        0.0, 0.0, 1.0, 1.0, 3.0, 3.0, 4.0, 4.0,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "make",
    [Held, lambda a, b: lambda: (a, b), lambda a, b: deque([a, b]), lambda a, b: [Held(a, b)]],
)
@pytest.mark.parametrize("new", [False, True])
def test_other_objects_with_tensors_of_the_call_are_refused(make: Any, new: bool) -> None:
    """From the first call on: the same object would be returned by each replay."""
    compiled = tc.compile(lambda x: make(x * 2 if new else x, 1))
    for number in range(4):
        with pytest.raises(CompileError, match="returns an object that holds Tensors of its call"):
            compiled(base(number))


def test_objects_that_were_there_before_are_returned() -> None:
    state = Held(tc.ones(2), 0)
    passed = Held(tc.ones(2), 0)
    compiled = tc.compile(lambda x, held: (x + state.a + held.a, state, held))
    for number in range(4):
        total, mine, given = compiled(tc.ones(2) * number, passed)
        assert (total.tolist(), mine is state, given is passed) == ([number + 2.0] * 2, True, True)


def change_list(parts: Any) -> Any:
    parts[0], parts[1] = parts[1], parts[0]
    return parts[0] + 1


def change_dict(parts: Any) -> Any:
    parts["n"] = 1
    return parts["a"] + 1


def change_record(parts: Any) -> Any:
    parts.note = "y"
    return parts.a + 1


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (change_list, lambda a, b: [a, b]),
        (change_dict, lambda a, b: {"a": a, "b": b}),
        (change_record, Pair),
    ],
)
def test_changed_containers_among_the_arguments_are_refused(function: Any, make: Any) -> None:
    compiled = tc.compile(function)
    for number in range(3):
        with pytest.raises(CompileError, match="changes what a list, dict or dataclass among"):
            compiled(make(base(number), base(number)[0]))


def test_a_list_of_one_tensor_as_the_only_argument() -> None:
    compiled = tc.compile(lambda parts: parts[0] * 2)
    assert [compiled([tc.ones(1) * n]).item() for n in range(5)] == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_a_view_that_is_given_twice_is_one_tensor() -> None:
    compiled = tc.compile(lambda x, y: x + (100 if x is y else 0))
    calls = []
    for number in range(4):
        rows = base(0)
        view = rows[0]
        calls.append(compiled(view, view if number % 2 else rows[0])[0].item())
    assert calls == [0.0, 100.0, 0.0, 100.0]


# Repeated elements --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.zero_() + 1,
        lambda x: x.fill_(7),
        lambda x: x[1:].masked_fill_(x[1:] > 1, -1.0),
        lambda x: x * 2,
        lambda x: x[1],
    ],
)
def test_an_expanded_argument_is_filled(function: Callable[[Any], Any]) -> None:
    def program(function: Callable[..., Any]) -> list[Any]:
        calls = []
        for number in range(4):
            rows = base(number)
            x = rows[number % 3].expand(2, 4)
            result = function(x)
            calls.append([shown(result), shown(x), shown(rows)])
            result.zero_()
            calls.append(shown(rows))
        return calls

    assert program(tc.compile(function)) == program(function)


def test_other_writes_to_an_expanded_argument_are_errors() -> None:
    compiled = tc.compile(lambda x: x.add_(1))
    for function in (compiled, compiled.function, compiled):
        with pytest.raises(ShapeError, match="several elements of this view are one element"):
            function(tc.ones(4).expand(3, 4))


# Attributes ---------------------------------------------------------------------------------------


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(tc.ones(3))

    def forward(self, x: Any) -> Any:
        return x * getattr(self.weight, "scale", 1)


def test_an_attribute_that_a_parameter_gets_later() -> None:
    model = Scaled()
    outer = nn.Parameter(tc.ones(3))
    compiled = tc.compile(lambda x: model(x) * getattr(outer, "_factor", 1))
    calls = [compiled(tc.ones(3))[0].item() for _ in range(3)]
    model.weight.scale = 2  # type: ignore[attr-defined]
    calls += [compiled(tc.ones(3))[0].item() for _ in range(3)]
    outer._factor = 5  # type: ignore[attr-defined]
    calls += [compiled(tc.ones(3))[0].item() for _ in range(3)]
    model.weight.scale = 3  # type: ignore[attr-defined]
    calls += [compiled(tc.ones(3))[0].item() for _ in range(3)]
    assert calls == [1.0] * 3 + [2.0] * 3 + [10.0] * 3 + [15.0] * 3


@pytest.mark.parametrize("view", [False, True])
def test_an_attribute_that_an_argument_gets_later_is_refused(view: bool) -> None:
    compiled = tc.compile(lambda x: x * getattr(x, "scale", 1))
    for number in range(6):
        x: Any = base(number)[0] if view else base(number)
        if number % 3 == 2:
            x.scale = 2
            with pytest.raises(CompileError, match="reads scale of an argument, a Tensor"):
                compiled(x)
        else:
            assert shown(compiled(x)) == shown(x)


def give_argument(x: Any) -> Any:
    x.scale = 3
    return x * 2


def give_result(x: Any) -> Any:
    y = x * 2
    y.scale = 3
    return y


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (give_argument, "gives an argument an attribute"),
        (give_result, "returns a Tensor with an attribute"),
    ],
)
def test_attributes_that_a_call_gives_are_refused(function: Any, text: str) -> None:
    compiled = tc.compile(function)
    for number in range(3):
        with pytest.raises(CompileError, match=text) as caught:
            compiled(base(number))
        assert ".scale = 3" in str(caught.value)


# Python values ------------------------------------------------------------------------------------


def multiply(a: Any, b: Any) -> Any:
    return a * b


def test_a_partial_that_gets_another_state() -> None:
    product = functools.partial(multiply, 2)
    compiled = tc.compile(lambda x: product(x))
    calls = [compiled(tc.ones(1)).item() for _ in range(3)]
    product.__setstate__((multiply, (5,), {}, None))  # type: ignore[attr-defined]
    calls += [compiled(tc.ones(1)).item() for _ in range(3)]
    assert calls == [2.0] * 3 + [5.0] * 3


@pytest.mark.parametrize(
    "function", [lambda x: x * threading.active_count(), lambda x: x * len(threading.enumerate())]
)
def test_the_number_of_threads_is_refused(function: Callable[[Any], Any]) -> None:
    with pytest.raises(CompileError, match="it calls threading"):
        tc.compile(function)(tc.ones(1))


def test_how_constants_are_printed() -> None:
    def length(x: Any) -> Any:
        return x * len(repr(tc.tensor([1 / 3])))

    compiled = tc.compile(length)
    calls, plain = [], []
    try:
        for precision in (2, 2, 8, 8, 8):
            tc.set_printoptions(precision=precision)
            calls.append(compiled(tc.ones(1)).item())
            plain.append(length(tc.ones(1)).item())
    finally:
        tc.set_printoptions(precision=4)
    assert calls == plain


def test_an_object_met_behind_a_computed_name_is_followed() -> None:
    """The name is known at the second call, which is the first to meet the object."""

    @dataclass
    class Rate:
        value: float

    class Reader:
        def scaled(self, x: Any) -> Any:
            return x * sum(asdict(rate).values())

    rate, reader, name = Rate(2.0), Reader(), "scal"
    step = tc.compile(lambda x: getattr(reader, name + "ed")(x))
    x = tc.ones(1, device="cpu")
    assert [step(x).item() for _ in range(3)] == [2.0] * 3
    vars(rate)["value"] += 1
    assert step(x).item() == 3.0


# NumPy's numbers ----------------------------------------------------------------------------------


def test_numbers_of_numpy_are_python_values() -> None:
    """Each makes a program of its own, as a Python number does; an array is refused."""
    step = lambda x, k: x * k + (1 if k == 1 else 2)  # noqa: E731
    compiled = tc.compile(step)
    values = [2.0, np.float64(2), np.float32(0.1), np.float32(0.2), np.int64(3), np.uint8(1), True]
    for value in [*values, np.bool_(True), np.float32("nan"), np.float64(-0.0), 0.0, *values]:
        x = base(0)
        ours, wanted = compiled(x, value), step(x, value)
        assert ours.dtype is wanted.dtype and str(ours.tolist()) == str(wanted.tolist()), value
    with pytest.raises(tc.ArgumentError, match="a NumPy array is an argument"):
        compiled(base(0), np.ones(1))


# Other threads ------------------------------------------------------------------------------------


def elsewhere(function: Callable[[], Any]) -> Any:
    """What a function gives in another thread, which ends before anything is computed."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


OUTSIDE: dict[str, Callable[[Any, Any], Any]] = {
    "read": lambda x, w: x * w,
    "a view": lambda x, w: x[:2] * w[1:],
    "filled": lambda x, w: (w.fill_(2), x + 1)[1],
    "copied to": lambda x, w: (w[1:].copy_(x[:2]), x + 1)[1],
    "added to": lambda x, w: (w.add_(x), w * 2)[1],
    "data": lambda x, w: (w.data.mul_(2), x * 1)[1],
    "returned": lambda x, w: w,
    "a view returned": lambda x, w: w[1:],
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_tensor_that_waits_in_another_thread(name: str) -> None:
    """It is one from outside, as any other: read again, and written, in each call."""
    writes = [lambda w: w.mul_(2), lambda w: w.fill_(3), lambda w: w[1:].add_(1)]

    def run(decorate: Callable[..., Any]) -> list[Any]:
        w = elsewhere(lambda: tc.arange(3) * 8.0)
        step = decorate(lambda x: OUTSIDE[name](x, w))
        seen = []
        for turn in range(6):
            seen.append(step(tc.full((3,), float(turn))).tolist())
            elsewhere(lambda: writes[turn % 3](w))  # noqa: B023
        return [*seen, w.tolist()]

    assert run(tc.compile) == run(lambda function: function)


def test_arguments_that_wait_in_another_thread() -> None:
    compiled = tc.compile(lambda tensors, scale: tensors["a"][1:] * 2 * scale + tensors["b"])
    for turn in range(4):
        given = elsewhere(lambda: {"a": (tc.ones(4) * turn)[1:], "b": tc.arange(2) + turn})  # noqa: B023
        assert compiled(given, 2.0).tolist() == [5.0 * turn, 5.0 * turn + 1]
    many = tc.compile(lambda x: x + 1, steps=3)
    assert many(elsewhere(lambda: tc.ones(3, 2) * 4)).tolist() == [[5.0, 5.0]] * 3
