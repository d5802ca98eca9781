"""examples/levels: each level reaches the saved tensors; PTX runs instruction by instruction."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pretended_gpu import Driver, pretended_gpu

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from examples.levels import __main__ as table  # noqa: E402
from examples.levels import (  # noqa: E402
    by_hand,
    cublas,
    framework,
    in_c,
    naive_cuda,
    ptx,
    task,
)
from tinygrad_cuda.backend import registry  # noqa: E402

U32 = np.uint64(0xFFFFFFFF)


def small() -> task.Task:
    fixed = task.fixed()
    return fixed._replace(x=fixed.x[:2, :4], labels=fixed.labels[:2, :4])


@pytest.mark.parametrize("level", [by_hand, in_c, framework], ids=lambda module: module.__name__)
def test_levels_reach_the_saved_tensors(level: Any) -> None:
    fixed, expected = task.saved()
    assert task.worst_difference(level.train(fixed), expected) < table.TOLERANCE
    wrong = by_hand.train(fixed._replace(rate=0.11))
    assert task.worst_difference(wrong, expected) > 10 * table.TOLERANCE


def test_pytorchs_level_reaches_the_saved_tensors() -> None:
    pytest.importorskip("torch")
    level = importlib.import_module("examples.levels.pytorch")
    fixed, expected = task.saved()
    assert task.worst_difference(level.train(fixed), expected) < table.TOLERANCE


def test_a_row_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss, time of a step and lines of code; a level that is wrong ends the command."""
    images = np.random.default_rng(0).integers(0, 256, (50, 28, 28), np.uint8)
    monkeypatch.setattr(task, "_images", lambda: (images, np.arange(50) % 10))
    row = table.run("by_hand", 6, 8)
    found = re.fullmatch(
        r"NumPy, derivatives by hand +([\d.]+) +([\d.]+) +(\d+)   6 steps of 8 digits; differs by "
        r"\de-\d+",
        row,
    )
    assert found, row
    task_of_six = task.digits(6, 8)
    losses = by_hand.train(task_of_six).losses
    assert float(found[1]) == pytest.approx(np.mean(losses), abs=6e-5) and float(found[2]) > 0
    assert int(found[3]) == table.lines_of_code("by_hand")
    right = by_hand.train
    monkeypatch.setattr(by_hand, "train", lambda given: right(given._replace(rate=0.101)))
    with pytest.raises(SystemExit, match="by hand: differs from the saved tensors by"):
        table.run("by_hand", 6, 8)


@pytest.mark.parametrize("level", table.LEVELS)
def test_levels_run_on_a_gpu(level: str, cuda_device: str) -> None:
    """On a GPU alone: PTX and cuBLAS, too, reach the saved tensors there."""
    if level == "pytorch":
        pytest.importorskip("torch")
    if level == "cublas" and importlib.util.find_spec("nvmath") is None:
        pytest.skip("nvmath is not installed")
    assert "2 steps of 4 digits; differs by" in table.run(level, 2, 4)


def test_the_command_prints_a_row_for_each_level(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table, "run", lambda name, steps, batch: f"{name} {steps} {batch}")
    monkeypatch.setattr(sys, "argv", ["levels", "--steps", "5"])
    table.main()
    title, *rows = capsys.readouterr().out.splitlines()
    assert title.split() == ["level", "loss", "ms", "a", "step", "lines"]
    assert rows == [f"{name} 5 64" for name in table.LEVELS] and len(rows) == 7


def test_the_naive_kernels_agree_with_numpy() -> None:
    """On the emulator, with few rows: every access is checked."""
    expected = by_hand.train(small())
    for mine, other in zip(naive_cuda.train(small()), expected):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)


def test_the_assembler_takes_the_ptx(tmp_path: Path) -> None:
    assembler = shutil.which("ptxas")
    if assembler is None:
        pytest.skip("there is no ptxas")
    for arch in ("sm_75", "sm_90"):
        command = [assembler, f"-arch={arch}", "-o", str(tmp_path / "out.cubin")]
        path = ROOT / "examples" / "levels" / "ptx.ptx"
        made = subprocess.run([*command, str(path)], capture_output=True, text=True)
        assert made.returncode == 0, made.stderr


class ColumnMajor:
    """`nvmath.bindings.cublas` on the pretended GPU: sgemm as BLAS defines it, in stream order."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.stream, self.calls = driver, 0, 0

    def create(self) -> int:
        return 7

    def set_stream(self, handle: int, stream: int) -> None:
        assert handle == 7
        self.stream = stream

    def columns(self, address: int, rows: int, count: int, lead: int) -> np.ndarray:
        assert lead >= rows
        size = lead * (count - 1) + rows
        self.driver.inside(address, 4 * size)
        flat = np.frombuffer((ctypes.c_float * size).from_address(address), np.float32)
        return np.lib.stride_tricks.as_strided(flat, (rows, count), (4, 4 * lead))

    def sgemm(
        self, handle: int, turn_a: int, turn_b: int, m: int, n: int, k: int, alpha: int, a: int,
        a_lead: int, b: int, b_lead: int, beta: int, c: int, c_lead: int,
    ) -> None:  # fmt: skip
        scale, rest = (ctypes.c_float.from_address(number).value for number in (alpha, beta))
        self.calls += 1

        def run() -> None:
            first = self.columns(a, *((k, m) if turn_a else (m, k)), a_lead)
            second = self.columns(b, *((n, k) if turn_b else (k, n)), b_lead)
            result = self.columns(c, m, n, c_lead)
            product = (first.T if turn_a else first) @ (second.T if turn_b else second)
            result[...] = scale * product + (rest * result if rest else 0)

        next(s for s in self.driver.streams if int(s) == self.stream).give(run)


def test_the_cublas_level_trains_as_numpy_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the pretended GPU: its products by address, its kernels, and the order of both."""
    with pretended_gpu() as driver:
        library = ColumnMajor(driver)
        monkeypatch.setitem(sys.modules, "nvmath", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "nvmath.bindings", SimpleNamespace(cublas=library))
        # Those that a real GPU may have loaded would be launched there.
        fresh = {name: cublas.tc.RawKernel(cublas.SOURCE, name) for name in cublas.KERNELS}
        monkeypatch.setattr(cublas, "KERNELS", fresh)
        for mine, other in zip(cublas.train(small()), by_hand.train(small())):
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)
    assert library.calls == 7 * len(small().x)


def test_the_cublas_level_refuses_a_tensor_that_moves() -> None:
    """A kernel that writes to a copy would leave cuBLAS with an address of nothing."""
    backend = type(registry.get(cublas.tc.device("emu")))
    assert not backend.writes_in_place
    library = SimpleNamespace(address=lambda tensor: tensor.realized().storage.address)
    with pytest.raises(RuntimeError, match="moved a Tensor"):
        cublas.on_device(small(), library, "emu")


class PtxMachine:
    """Runs a kernel's instructions for all threads at once, each step those at the lowest one."""

    def __init__(self, source: str, name: str) -> None:
        text = re.sub(r"//.*", "", source)
        match = re.search(rf"\.entry {name}\((.*?)\)\s*\{{(.*?)\}}", text, re.DOTALL)
        assert match is not None
        self.parameters = re.findall(r"\.param \.(\w+) (\w+)", match[1])
        self.code: list[list[str]] = []
        self.labels: dict[str, int] = {}
        for line in re.split(r";|(?<=:)\s*\n", match[2]):
            line = line.strip()
            if re.fullmatch(r"\w+:", line):
                self.labels[line[:-1]] = len(self.code)
            elif line and not line.startswith(".reg"):
                self.code.append(re.sub(r"[,\[\]]", " ", line).split())

    def __call__(self, grid: int, block: int, arguments: tuple[Any, ...]) -> None:
        count = grid * block
        self.memory: dict[int, np.ndarray] = {}
        self.values: dict[str, Any] = {}
        for number, ((_, name), value) in enumerate(zip(self.parameters, arguments, strict=True)):
            if isinstance(value, np.ndarray):
                assert value.flags.c_contiguous and value.dtype.itemsize == 4
                self.memory[number + 1] = value.reshape(-1).view(np.uint32)
                value = (number + 1) << 40
            self.values[name] = value
        threads = np.arange(count)
        special = {"%ctaid.x": threads // block, "%tid.x": threads % block,
                   "%ntid.x": np.full(count, block)}  # fmt: skip
        self.registers: dict[str, np.ndarray] = {k: v.astype(np.uint64) for k, v in special.items()}
        at = np.zeros(count, np.int64)
        while (at < len(self.code)).any():
            now = int(at.min())
            mine = at == now
            at[mine] = now + 1
            words = list(self.code[now])
            if words[0].startswith("@"):
                mine = mine & self.registers[words.pop(0)[1:]].astype(bool)
            if words[0] == "bra":
                at[mine] = self.labels[words[1]]
            elif words[0] == "ret":
                at[mine] = len(self.code)
            else:
                self.execute(words, mine)

    def read(self, word: str, kind: str, mine: np.ndarray) -> np.ndarray:
        if word.startswith("%"):
            bits = self.registers[word][mine]
        elif word.startswith("0f"):
            bits = np.full(mine.sum(), int(word[2:], 16), np.uint64)
        else:
            bits = np.full(mine.sum(), int(word), np.uint64)
        return bits.astype(np.uint32).view(np.float32) if kind == "f32" else bits

    def execute(self, words: list[str], mine: np.ndarray) -> None:
        operation, *operands = words
        base, *_, kind = operation.split(".")
        if base == "st":
            value = self.read(operands[1], "u32", mine)
            for address, bits in zip(self.registers[operands[0]][mine], value):
                self.memory[int(address) >> 40][(int(address) & (1 << 40) - 1) // 4] = int(bits)
            return
        if base == "ld" and ".param" in operation:
            value = self.values[operands[1]]
            whole = struct.unpack("<I", struct.pack("<f", value))[0] if kind == "f32" else value
            result = np.full(mine.sum(), whole, np.uint64)
        elif base == "ld":
            addresses = self.registers[operands[1]][mine]
            result = np.array(
                [self.memory[int(a) >> 40][(int(a) & (1 << 40) - 1) // 4] for a in addresses],
                np.uint64,
            )
        else:
            sources = [self.read(word, kind, mine) for word in operands[1:]]
            result = self.computed(operation, kind, operands, sources, mine)
        if result.dtype == np.float32:
            result = result.view(np.uint32)
        bits = self.registers.setdefault(operands[0], np.zeros(len(mine), np.uint64))
        bits[mine] = result.astype(np.uint64)

    def computed(
        self, operation: str, kind: str, operands: list[str], s: list[Any], mine: np.ndarray
    ) -> np.ndarray:
        base = operation.split(".")[0]
        if operation == "cvt.rn.f32.u32":
            return self.read(operands[1], "u32", mine).astype(np.float32)
        if base == "selp":
            chosen = self.registers[operands[3]][mine].astype(bool)
            return np.where(chosen, s[0], s[1])
        if base == "setp":
            compare = {"ge": np.greater_equal, "eq": np.equal, "lt": np.less, "gt": np.greater}
            return compare[operation.split(".")[1]](s[0], s[1]).astype(np.uint64)
        if base == "mad":
            return (s[0] * s[1] + s[2]) & U32
        if base == "fma":
            return (s[0].astype(float) * s[1] + s[2]).astype(np.float32)
        simple = {
            "mov": lambda: s[0], "mul": lambda: s[0] * s[1], "add": lambda: s[0] + s[1],
            "sub": lambda: s[0] - s[1], "max": lambda: np.maximum(s[0], s[1]),
            "ex2": lambda: np.exp2(s[0]), "lg2": lambda: np.log2(s[0]), "and": lambda: s[0] & s[1],
            "div": lambda: s[0] / s[1] if kind == "f32" else s[0] // s[1],
            "rem": lambda: s[0] % s[1],
        }  # fmt: skip
        result: np.ndarray = simple[base]()
        if kind == "u32" and ".wide" not in operation:
            return result & U32
        return result


def test_the_ptx_computes_both_passes() -> None:
    """Its products and its loss, instruction by instruction, against NumPy."""
    rng = np.random.default_rng(0)
    product, loss = PtxMachine(ptx.SOURCE, "product"), PtxMachine(ptx.SOURCE, "cross_entropy")
    x, w, b = (rng.standard_normal(s).astype("f") for s in ((5, 7), (3, 7), (3,)))
    y, nothing = np.full((5, 3), np.nan, "f"), np.zeros(1, "f")
    product(1, 32, (x, w, y, b, nothing, 5, 3, 7, 7, 1, 1, 7, 1.0, 0.0, ptx.BIAS | ptx.RELU))
    np.testing.assert_allclose(y, np.maximum(x @ w.T + b, 0), rtol=1e-5)
    g, gradient = rng.standard_normal((5, 3)).astype("f"), np.zeros((5, 7), "f")
    product(2, 32, (g, w, gradient, b, x, 5, 7, 3, 3, 1, 7, 1, 1.0, 0.0, ptx.MASK))
    np.testing.assert_allclose(gradient, g @ w * (x > 0), rtol=1e-5)
    updated = w.copy()
    product(1, 21, (g, x, updated, b, nothing, 3, 7, 5, 1, 3, 7, 1, -0.1, 1.0, 0))
    np.testing.assert_allclose(updated, w - np.float32(0.1) * g.T @ x, rtol=1e-4, atol=1e-6)
    z, labels, losses = x.copy(), rng.integers(0, 7, 5).astype(np.int32), np.zeros(5, "f")
    loss(1, 8, (z, labels, losses, 5, 7))
    p = np.exp(x - x.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    np.testing.assert_allclose(losses, -np.log(p[range(5), labels]), rtol=1e-5)
    p[range(5), labels] -= 1
    np.testing.assert_allclose(z, p / 5, rtol=1e-4, atol=1e-7)


def test_the_ptx_level_trains_as_numpy_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its eight products and the loss in their order, each as NumPy computes what PTX is asked."""

    def product(grid: int, block: int, arguments: tuple[Any, ...]) -> None:
        a, b, c, bias, mask, m, n, k, a_row, a_k, b_k, b_column, alpha, beta, flags = arguments
        assert grid * block >= m * n
        i, j, s = np.ogrid[:m, :n, :k]
        host = [value.numpy().reshape(-1) for value in (a, b)]
        total = (host[0][i * a_row + s * a_k] * host[1][s * b_k + j * b_column]).sum(2)
        total = alpha * total + (beta * c.numpy().reshape(m, n) if beta else 0)
        total += bias.numpy() if flags & ptx.BIAS else 0
        total = np.maximum(total, 0) if flags & ptx.RELU else total
        total = np.where(mask.numpy() > 0, total, 0) if flags & ptx.MASK else total
        c.copy_(ptx.tc.tensor(total.astype("f"), device="cpu").reshape(c.shape))

    def cross_entropy(grid: int, block: int, arguments: tuple[Any, ...]) -> None:
        z, labels, losses, n, _ = arguments
        row, label = z.numpy(), labels.numpy()
        p = np.exp(row - row.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        losses.copy_(ptx.tc.tensor(-np.log(p[range(n), label]), device="cpu"))
        p[range(n), label] -= 1
        z.copy_(ptx.tc.tensor(p / n, device="cpu"))

    monkeypatch.setattr(ptx, "KERNELS", {"product": product, "cross_entropy": cross_entropy})
    for mine, other in zip(ptx.on_device(small(), "cpu"), by_hand.train(small())):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)


def test_the_table_says_what_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    if ptx.tc.cuda.is_available():
        pytest.skip("with a GPU every level runs")
    row = table.run("ptx", 2, 4)
    assert "cannot run here: PTX needs a GPU" in row and " 200" not in row
    assert "cannot run here: cuBLAS needs a GPU" in table.run("cublas", 2, 4)
    assert table.lines_of_code("by_hand") == 23
