"""How much of PyTorch's surface has the same name here; the shares may only grow."""

from __future__ import annotations

import re
from collections import Counter
from importlib import import_module
from inspect import getsource
from pathlib import Path

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.__main__ import main
from tinygrad_cuda.tensors import functions
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
PACKAGE = "tinygrad_cuda.tensors"
# The modules from which `functions` takes what they call public.
FAMILIES = re.findall(rf"^from {PACKAGE}\.([\w.]+) import \*$", getsource(functions), re.MULTILINE)
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


def test_a_public_function_is_named_once() -> None:
    """In the `__all__` of its family; the package's own list takes them all."""
    families = {module: vars(import_module(f"{PACKAGE}.{module}")) for module in FAMILIES}
    counts = Counter(name for family in families.values() for name in family["__all__"])
    assert [name for name, count in counts.items() if count > 1] == []
    assert counts.keys() == {name for name in vars(functions) if not name.startswith("_")}
    assert counts.keys() <= set(tc.__all__)
    text = Path(str(tc.__file__)).read_text(encoding="utf-8")
    own = text.split("__all__ = [")[1].split("]")[0]
    assert [name for name in counts if f'"{name}"' in own] == []


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
