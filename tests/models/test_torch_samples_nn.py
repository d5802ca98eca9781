"""torch's own sample inputs of nn.functional and of its modules, float64.

Values, dtypes, shapes, buffers, and gradients of inputs and parameters. Of what is drawn at random
dtypes and shapes alone are compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from torch_samples import (
    both,
    collection,
    flat,
    full_name,
    handed_over,
    samples,
    seed,
    torch,
)  # fmt: skip

import tinygrad_cuda as tc
from tinygrad_cuda import nn

modules = pytest.importorskip("torch.testing._internal.common_modules")

pytestmark = pytest.mark.filterwarnings("ignore")

PREFIX = "nn.functional."
LARGEST, INPUTS, AGAIN = 1000, 4, 1
RANDOM = ("dropout", "alpha_dropout", "feature_alpha", "rrelu", "fractional")
# torch calls these through functions of its own, whose arguments are other ones.
ADAPTED: dict[str, Callable[..., Any]] = {
    "embedding": lambda weight, rows, **more: nn.functional.embedding(rows, weight, **more),
    "embedding_bag": lambda weight, rows, **more: nn.functional.embedding_bag(rows, weight, **more),
}
# Exactly these differ, each for a reason.
EXCEPTIONS: dict[str, str] = {
    "nn.functional.hardsigmoid": "torch's slope is 1/6 in single precision",
    # Their samples have roots of negative numbers.
    **{
        f"nn.LPPool{rank}d.{mode}": "in torch NaN times 0 reaches what no window holds"
        for rank, mode in ((1, "train"), (1, "eval"), (2, "train"), (3, "train"))
    },
}

FUNCTIONS = {
    full_name(op): op
    for op in collection.op_db
    if op.name.startswith(PREFIX) and torch.float64 in op.dtypes
}
MODULES = {
    f"{info.name}.{'train' if training else 'eval'}": (info, training)
    for info in modules.module_db
    if torch.float64 in info.dtypes
    for training in (True, False)
}


def ours_of(value: Any, pairs: list[tuple[Any, Any]]) -> Any:
    """torch's arguments as ours, modules among them."""
    if isinstance(value, tuple):
        return tuple(ours_of(part, pairs) for part in value)
    if isinstance(value, dict):
        return {key: ours_of(part, pairs) for key, part in handed_over(value, pairs).items()}
    if isinstance(value, torch.nn.PairwiseDistance):
        return nn.PairwiseDistance(value.norm, value.eps, value.keepdim)
    if isinstance(value, torch.nn.TransformerEncoderLayer):
        attention = value.self_attn
        return nn.TransformerEncoderLayer(
            attention.embed_dim, attention.num_heads, value.linear1.out_features, value.dropout.p,
            ours_of(value.activation, pairs), value.norm1.eps, attention.batch_first,
            value.norm_first, value.linear1.bias is not None,
        )  # fmt: skip
    return handed_over(value, pairs)


def compare_function(name: str) -> None:
    """Raises what differs."""
    op = FUNCTIONS[name]
    short = op.name.removeprefix(PREFIX)
    random = short.startswith(RANDOM)
    for sample in samples(op, op.supports_autograd and not random, largest=LARGEST):
        pairs: list[tuple[Any, Any]] = []
        args = ours_of((sample.input, *sample.args), pairs)
        options = ours_of(sample.kwargs, pairs)
        theirs = op.op(sample.input, *sample.args, **sample.kwargs)
        ours = ADAPTED.get(short, getattr(nn.functional, short))(*args, **options)
        if sample.output_process_fn_grad is not None:
            theirs, ours = map(sample.output_process_fn_grad, (theirs, ours))
        dropped = options.get("dropout_p") or (short.startswith("multi_head") and args[10])
        both(ours, theirs, () if random or dropped else pairs, values=not (random or dropped))


def compare_module(name: str) -> None:
    """Raises what differs."""
    info, training = MODULES[name]
    seed()
    found = info.module_inputs_func(
        info, device="cpu", dtype=torch.float64, requires_grad=True, training=training
    )
    count = INPUTS if training or info.train_and_eval_differ else AGAIN
    for sample in itertools.islice(found, count):
        made, given = sample.constructor_input, sample.forward_input
        pairs: list[tuple[Any, Any]] = []
        theirs = info.module_cls(*made.args, **made.kwargs).to(torch.float64).train(training)
        kind = getattr(nn, info.module_cls.__name__)
        ours = kind(*ours_of(made.args, pairs), **ours_of(made.kwargs, pairs))
        ours = ours.to("cpu", tc.float64).train(training)
        args, options = ours_of(given.args, pairs), ours_of(given.kwargs, pairs)
        if info.is_lazy:
            theirs(*given.args, **given.kwargs)
            ours(*args, **options)
            assert type(ours).__name__ == type(theirs).__name__
        state = theirs.state_dict()
        ours.load_state_dict({k: tc.tensor(v.numpy(), device="cpu") for k, v in state.items()})
        result, expected = ours(*args, **options), theirs(*given.args, **given.kwargs)
        inner = dict(ours.named_parameters())
        both(result, expected, [*pairs, *((p, inner[k]) for k, p in theirs.named_parameters())])
        both([*ours.state_dict().values()], [*theirs.state_dict().values()], ())
        assert repr(ours) == repr(theirs).replace("NonDynamicallyQuantizableLinear", "Linear")


def expected_of(name: str, compare: Callable[[str], None]) -> None:
    if name not in EXCEPTIONS:
        compare(name)
        return
    with pytest.raises(Exception):  # noqa: B017 (whatever the difference is)
        compare(name)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_torchs_samples_of_functions(name: str) -> None:
    expected_of(name, compare_function)


@pytest.mark.parametrize("name", MODULES)
def test_torchs_samples_of_modules(name: str) -> None:
    expected_of(name, compare_module)


# Errors -------------------------------------------------------------------------------------

# What torch refuses and this package takes, and why.
TAKEN: dict[str, str] = {
    "nn.functional.max_pool1d": "nothing in, nothing out",
    "nn.functional.max_pool3d": "nothing in, nothing out",
    "nn.NLLLoss": "factors of another dtype are promoted",
    "nn.HuberLoss": "the sample's complex delta is refused when the layer is called",
    "nn.CircularPad1d": "further axes in front are allowed",
}
WRONG_CALLS = {name: op for name, op in FUNCTIONS.items() if op.error_inputs_func is not None}
WRONG_MODULES = {
    info.name: info for info in modules.module_db if info.module_error_inputs_func is not None
}


def refused(function: Callable[..., Any], *args: Any, **options: Any) -> bool:
    """Whether ours raises an error of its own, at the latest when the value is computed."""
    pairs: list[tuple[Any, Any]] = []
    try:
        ours, more = ours_of(args, pairs), ours_of(options, pairs)
        for result in flat(function(*ours, **more)):
            result.numpy()
    except tc.TgcError:
        return True
    return False


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_what_torchs_functions_refuse(name: str) -> None:
    seed()
    op = WRONG_CALLS[name]
    short = op.name.removeprefix(PREFIX)
    function = ADAPTED.get(short, getattr(nn.functional, short))
    found = []
    for sample in (error.sample_input for error in op.error_inputs_func(op, "cpu")):
        with pytest.raises(Exception):  # noqa: B017 (torch's, whatever it is)
            op.op(sample.input, *sample.args, **sample.kwargs)
        found.append(refused(function, sample.input, *sample.args, **sample.kwargs))
    assert all(found) != (name in TAKEN), found


@pytest.mark.parametrize("name", WRONG_MODULES)
def test_what_torchs_modules_refuse(name: str) -> None:
    seed()
    info = WRONG_MODULES[name]
    kind = getattr(nn, info.module_cls.__name__)
    options = {"device": "cpu", "dtype": torch.float64, "requires_grad": False, "training": True}
    found = []
    for error in info.module_error_inputs_func(info, **options):
        sample = error.module_error_input
        made, given = sample.constructor_input, sample.forward_input

        def call(*args: Any, made: Any = made, **more: Any) -> Any:
            layer = kind(*ours_of(made.args, []), **ours_of(made.kwargs, []))
            return layer.to("cpu", tc.float64)(*args, **more) if args or more else []

        args, more = ((), {}) if given is None else (given.args, given.kwargs)
        found.append(refused(call, *args, **more))
    assert all(found) != (name in TAKEN), found
