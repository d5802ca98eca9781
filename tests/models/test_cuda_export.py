"""Steps written as one CUDA C++ file: built without a GPU, it prints the same losses to the bit."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.core.errors import ArgumentError, DeviceError
from tinygrad_cuda.lowering import algorithms
from tinygrad_cuda.lowering.skeletons.contract import tma_pixels

SAME = "the same bits as when it was exported"


def built(path: Path) -> Path:
    """The program, by the command in the file's second line, which a shell takes as it is."""
    command = path.read_text().splitlines()[1].partition(": ")[2]
    subprocess.run(command, shell=True, check=True, cwd=path.parent, timeout=300)
    return path.with_suffix("")


def printed(program: Path, status: int = 0) -> list[str]:
    """What it prints."""
    done = subprocess.run(
        [program], cwd=program.parent, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout.splitlines()


def training(optimizer: str) -> tuple[Any, Any, Any]:
    """A compiled step of three turns with dropout, and its data."""
    tc.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)).to("emu")
    own = getattr(tc.optim, optimizer)(model.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> Any:
        own.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        own.step()
        return loss.detach()

    x = tc.randn(3, 32, 20, device="emu")
    return tc.compile(step, steps=3), x, tc.randint(0, 4, (3, 32), device="emu")


def test_training_steps_print_the_same_losses(tmp_path: Path) -> None:
    """Adam's step counts and dropout's random numbers change from step to step."""
    step, x, y = training("Adam")
    step(x, y)
    last = tc.export_cuda(step, tmp_path / "mlp.cu", x, y)
    lines = printed(built(tmp_path / "mlp.cu"))
    assert lines[-1] == SAME
    losses = [float(line.split(" = ")[1].split()[0]) for line in lines[:-1]]
    assert len(losses) == 3 and len(set(losses)) == 3
    assert losses[2] == pytest.approx(last.item(), rel=1e-7)
    text = (tmp_path / "mlp.cu").read_text()
    assert "model.0.weight.exp_avg" in text and "opt.step()" not in text
    assert "own.step()" in text  # the user's lines stand beside the launches


def test_a_program_notices_other_weights(tmp_path: Path) -> None:
    step, x, y = training("SGD")
    step(x, y)
    tc.export_cuda(step, tmp_path / "mlp.cu", x, y)
    weights = tmp_path / "mlp.safetensors"
    assert "model.0.weight" in tc.load(weights)
    content = bytearray(weights.read_bytes())
    content[-1] ^= 0x40
    weights.write_bytes(content)
    assert printed(built(tmp_path / "mlp.cu"), status=1)[-1].startswith("other bits")


def test_an_exported_step_counts_as_a_step(tmp_path: Path) -> None:
    """Exporting makes the calls: the parameters are those of a run without it."""
    results = []
    for export in (False, True):
        step, x, y = training("Adam")
        step(x, y)
        if export:
            results.append(tc.export_cuda(step, tmp_path / "mlp.cu", x, y).numpy())
        else:
            results.append(step(x, y).numpy()[-1])
    assert np.array_equal(*results)


def test_values_that_change_places(tmp_path: Path) -> None:
    """What a call returned keeps its memory, so the state's next value gets another one."""
    state = tc.arange(4.0, device="emu")

    def step(x: Any) -> Any:
        before = state.clone()
        with tc.no_grad():
            state.mul_(2).add_(x)
        return before

    compiled = tc.compile(step, steps=3)
    x = tc.ones(3, 4, device="emu")
    compiled(x)
    tc.export_cuda(compiled, tmp_path / "state.cu", x)
    assert "state0_next" in (tmp_path / "state.cu").read_text()
    lines = printed(built(tmp_path / "state.cu"))
    assert lines[-1] == SAME
    assert [line.split(" = ")[1].split()[1] for line in lines[:3]] == ["15", "31", "63"]


def test_every_dtype_is_printed(tmp_path: Path) -> None:
    def f(x: Any) -> Any:
        floats = [x, x.half() * 1e-7, x.bfloat16(), x.double() / 3]
        wide = [x.to(dtype) - 2 for dtype in (tc.uint16, tc.uint32, tc.uint64)]
        small = [x.to(tc.uint8), x > 1, x.to(tc.int8) - 5, x.half() * 70000.0]
        return [*wide, *floats, x.long() - 3, *small]

    tc.export_cuda(f, tmp_path / "dtypes.cu", tc.arange(3.0, device="emu"))
    lines = printed(built(tmp_path / "dtypes.cu"))
    shown = [line.split(" = ")[1].rsplit("  ", 1)[0] for line in lines[:-1]]
    assert lines[-1] == SAME
    assert shown[:3] == [
        "65534 65535 0", "4.29496729e+09 4.2949673e+09 0", "1.84467441e+19 1.84467441e+19 0",
    ]  # fmt: skip
    assert shown[-8:] == [
        "0 1.1920929e-07 1.78813934e-07", "0 1 2", "0 0.333333333 0.666666667", "-3 -2 -1",
        "0 1 2", "0 0 1", "-5 -4 -3", "0 inf inf",
    ]  # fmt: skip


def test_tensor_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices and windows that TMA copies."""
    names = ("wgmma tma", "channels last", "wgmma")
    only = tuple(tier for tier in algorithms.TIERS if tier.name in names)
    monkeypatch.setattr(algorithms, "TIERS", only)
    monkeypatch.setattr(algorithms, "WORTH_A_COPY", 0)
    monkeypatch.setattr(tma_pixels, "LEAST_IMAGES", 0)
    tc.manual_seed(1)
    a, b, w = (tc.randn(*s, device="emu").bfloat16() for s in ((72, 64), (64, 144), (64, 64, 3, 3)))
    x = tc.randn(3, 64, 7, 11, device="emu").bfloat16()

    def f(a: Any, b: Any, x: Any, w: Any) -> Any:
        return a @ b, nn.functional.conv2d(x, w, padding=1)

    tc.export_cuda(f, tmp_path / "maps.cu", a, b, x, w)
    text = (tmp_path / "maps.cu").read_text()
    assert text.count(" tgc_map(") >= 3 and ", true})" in text  # matrices, and pixels
    assert printed(built(tmp_path / "maps.cu"))[-1] == SAME
    nvcc(tmp_path / "maps.cu")


def nvcc(path: Path) -> None:
    """Builds by the first line's command."""
    if shutil.which("nvcc") is None:
        pytest.skip("this machine has no nvcc")
    command = path.read_text().splitlines()[0].removeprefix("// ").partition(" && ")[0]
    subprocess.run(command, shell=True, check=True, cwd=path.parent, timeout=300)


# What is refused ----------------------------------------------------------------------------------


def test_a_compiled_step_without_a_program(tmp_path: Path) -> None:
    step, x, y = training("Adam")
    with pytest.raises(ArgumentError, match="call it once before"):
        tc.export_cuda(step, tmp_path / "mlp.cu", x, y)
    assert not list(tmp_path.iterdir())


def test_a_step_on_cpu(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r'model.to\("emu"\)'):
        tc.export_cuda(lambda x: x + 1, tmp_path / "add.cu", tc.ones(2, device="cpu"))


def test_a_wrong_suffix(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"suffix \.cu"):
        tc.export_cuda(lambda x: x + 1, tmp_path / "add.py", tc.ones(2, device="emu"))


def test_data_of_another_number_of_steps(tmp_path: Path) -> None:
    step, x, y = training("SGD")
    step(x, y)
    with pytest.raises(ArgumentError, match="data of 3 steps"):
        tc.export_cuda(step, tmp_path / "mlp.cu", x[:2], y)


def test_arguments_that_are_not_the_steps(tmp_path: Path) -> None:
    """A step called without them was Python's bare TypeError."""
    step, x, _ = training("SGD")
    for function, names in ((step, "x, y"), (lambda a, b, c=1: a * b * c, "a, b")):
        for args in ((), (x,)):
            with pytest.raises(ArgumentError, match="arguments are not the step's") as raised:
                tc.export_cuda(function, tmp_path / "step.cu", *args)
            text = str(raised.value)
            assert f"export_cuda(step, path, {names})" in text
            assert f"{len(args)} arguments behind the path" in text
    with pytest.raises(ArgumentError, match=r"export_cuda\(step, path, input\)"):
        tc.export_cuda(nn.Linear(2, 3), tmp_path / "step.cu")
    assert list(tmp_path.iterdir()) == []
