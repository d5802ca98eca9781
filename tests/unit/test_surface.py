"""How much of PyTorch's surface has the same name here; the shares may only grow."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.__main__ import main
from tinygrad_cuda.utils import compat

torch = pytest.importorskip("torch")

# Percent; raise a floor when its part has grown.
FLOORS = {"Tensor": 80, "torch": 60, "linalg": 80}
# What nearly every program uses: these may not be missing.
EVERYDAY = {
    "Tensor": (
        "add_ addmm all any argmax argsort backward bmm bool clamp clone contiguous copy_ cos "
        "cpu cuda cumsum detach diagonal dim div dtype eq exp expand fill_ flatten flip float "
        "gather half index_select int isnan item log long masked_fill matmul max mean median min "
        "mm mul nonzero norm numel numpy permute pow prod repeat requires_grad_ reshape scatter_ "
        "scatter_add_ shape sigmoid sign sin size softmax sort split sqrt squeeze std stride sub "
        "sum t tanh to tolist topk transpose tril triu type_as unbind unfold unique unsqueeze var "
        "view view_as where zero_"
    ),
    "torch": (
        "abs arange argmax as_tensor bernoulli bincount bmm cat chunk clamp cumsum diag einsum "
        "empty eye flatten full gather linspace log manual_seed matmul max maximum mean meshgrid "
        "min multinomial no_grad normal ones outer rand randint randn randperm repeat_interleave "
        "roll searchsorted sigmoid softmax sort split stack sum tanh tensor topk tril triu unique "
        "where zeros zeros_like"
    ),
    "linalg": (
        "cholesky cond det eigh eigvalsh inv lstsq matrix_norm norm pinv qr slogdet solve svd"
    ),
}
OWNERS = {"Tensor": tc.Tensor, "torch": tc, "linalg": tc.linalg}


@pytest.mark.parametrize("part", EVERYDAY)
def test_everyday_names_exist(part: str) -> None:
    missing = [name for name in EVERYDAY[part].split() if not hasattr(OWNERS[part], name)]
    assert not missing


def test_the_shares_do_not_fall(capsys: pytest.CaptureFixture[str]) -> None:
    found = {part.part: part for part in compat.coverage(tc)}
    with capsys.disabled():
        print("\n" + "\n".join(map(str, found.values())))
    for part, floor in FLOORS.items():
        assert found[part].percent >= floor, found[part].missing
    assert found["Tensor"].total == len([n for n in dir(torch.Tensor) if not n.startswith("_")])


def test_parts_count_names_of_their_kind() -> None:
    """Functions for functions: no class and no module of torch's source is counted there."""
    found = {part.part: part.here + part.missing + part.left_out for part in compat.coverage(tc)}
    for part, inside, outside in (
        ("nn", "Linear", "Parameter"),
        ("nn.functional", "relu embedding conv2d scaled_dot_product_attention",
         "Tensor has_torch_function importlib math torch warnings boolean_dispatch"),
        ("nn.init", "xavier_uniform_", "torch"),
        ("optim", "AdamW", "lr_scheduler"),
        ("lr_scheduler", "StepLR", "Optimizer"),
    ):  # fmt: skip
        assert set(inside.split()) <= set(found[part])
        assert not set(outside.split()) & set(found[part])
        assert not [name for name in found[part] if name.startswith("_")]


def test_functions_and_methods_come_in_pairs() -> None:
    """What is a method here and a function of torch's too is a function here."""
    both = [
        name
        for name in dir(tc.Tensor)
        if not name.startswith("_") and hasattr(torch.Tensor, name) and name in dir(torch)
        and type(getattr(torch, name)).__name__ == "builtin_function_or_method"
        and not name.endswith("_")
    ]  # fmt: skip
    assert not [name for name in both if name not in tc.__all__]


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compat", "--missing"]) == 0
    text = capsys.readouterr().out
    assert "Tensor " in text
    assert "left out on purpose" in text
    assert "  missing: " in text


# Defaults -----------------------------------------------------------------------------------------

BOTH: dict[str, tuple[Any, Any, str]] = {
    "nn": (tc.nn, torch.nn, ""),
    "nn.functional": (tc.nn.functional, torch.nn.functional, "aten::"),
    "nn.init": (tc.nn.init, torch.nn.init, ""),
    "nn.utils": (tc.nn.utils, torch.nn.utils, ""),
    "optim": (tc.optim, torch.optim, ""),
    "lr_scheduler": (tc.optim.lr_scheduler, torch.optim.lr_scheduler, ""),
    "linalg": (tc.linalg, torch.linalg, "aten::linalg_"),
    "special": (tc.special, torch.special, "aten::special_"),
    "torch": (tc, torch, "aten::"),
    "Tensor": (tc.Tensor, torch.Tensor, "aten::"),
    "autograd": (tc.autograd, torch.autograd, ""),
    "utils.data": (tc.utils.data, torch.utils.data, ""),
    "distributions": (tc.distributions, torch.distributions, ""),
}
# Defaults with another name for the same, or of another kind.
APART = {
    "the function relu": "Transformer TransformerDecoderLayer TransformerEncoderLayer",
    "by size": "cdist",
    "the only backend": "compile",
    "None means True": "load",
    "None means ij": "meshgrid",
    "None means the default generator": "random_split",
    "by dtype": "gradcheck gradgradcheck",
    "None means preserve_format, 0 contiguous_format": "clone contiguous",
    "None means 1": "gradient",
    "torch's 1e-15 is below the rounding of float32": "pinverse",
    "4 means int64": "randint randperm tril_indices triu_indices",
    "by correction": "std std_mean var var_mean",
    "the probabilities may be the Tensor's": "bernoulli",
    "as nn.functional's": "embedding_bag",
    "tests/unit/test_pytorch_names.py calls them: 1 there means none": (
        "binary_cross_entropy_with_logits cosine_embedding_loss ctc_loss hinge_embedding_loss "
        "kl_div margin_ranking_loss triplet_margin_loss"
    ),
}


def stated(function: Any, name: str, prefix: str) -> dict[str, list[Any]]:
    """The defaults that torch states: in Python, or in the schemas of a builtin function."""
    try:
        parameters = inspect.signature(function).parameters.values()
        return {p.name: [p.default] for p in parameters if p.default is not p.empty}
    except (TypeError, ValueError):
        found: dict[str, list[Any]] = {}
    schemas = torch._C._jit_get_schemas_for_operator
    for schema in [*schemas(prefix + name), *schemas(prefix + name.rstrip("_"))] if prefix else []:
        for argument in schema.arguments:
            if argument.has_default_value():
                found.setdefault(argument.name, []).append(argument.default_value)
    return found


def equal(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, list) and ours is not None:  # of one number for each dimension
        return list(ours) == theirs if isinstance(ours, tuple | list) else {ours} == {*theirs}
    same = ours is None if theirs in (None, []) else ours == theirs
    return bool(same) or repr(ours).replace(tc.__name__, "torch") == repr(theirs)


def compared(part: str) -> Iterator[tuple[str, Any, list[Any]]]:
    """Each default of a part that both libraries state, under its name."""
    here, there, prefix = BOTH[part]
    for name in dir(there):
        ours: Callable[..., Any] | None = getattr(here, name, None)
        if name.startswith("_") or not callable(ours) or name in " ".join(APART.values()).split():
            continue
        try:
            parameters = inspect.signature(ours).parameters.values()
        except (TypeError, ValueError):
            continue
        theirs = stated(getattr(there, name), name, prefix)
        for parameter in parameters:
            if parameter.default is not parameter.empty and parameter.name in theirs:
                yield f"{name}({parameter.name}=)", parameter.default, theirs[parameter.name]


@pytest.mark.parametrize("part", BOTH)
def test_defaults_are_torchs(part: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(compared(part))
    assert len(found) >= 3
    apart = [row for row in found if not any(equal(row[1], value) for value in row[2])]
    assert not apart
