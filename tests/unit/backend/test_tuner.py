"""The tuner on emu: candidates are enumerated and checked, the quickest is taken and remembered."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pretended_cublas import CublasLt, pretended_cublas
from pretended_gpu import pretended_gpu

import tinygrad_cuda as tc
from lab import tuned as tuned_lab
from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda import tuner as cuda_tuner
from tinygrad_cuda.backend.cuda.backend import CudaBackend
from tinygrad_cuda.backend.launch import tuner
from tinygrad_cuda.backend.launch.tuner import difference, shortlist
from tinygrad_cuda.backend.launch.tuning_cache import TuningCache
from tinygrad_cuda.core import dtypes, ownership
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.engine.plan import cache as plans
from tinygrad_cuda.graph.node import topological
from tinygrad_cuda.graph.ops.contraction import matmul
from tinygrad_cuda.lowering import algorithms
from tinygrad_cuda.lowering.algorithms import options
from tinygrad_cuda.lowering.lower import lower
from tinygrad_cuda.lowering.target import Target
from tinygrad_cuda.lowering.tuning import TuningProblems
from tinygrad_cuda.lowering.tuning_table import OneChoice, Tuned, TuningTable
from tinygrad_cuda.nn import functional as F
from tinygrad_cuda.tensors.inspection import explain_nodes

Array = np.ndarray[Any, Any]
EMU: Any = registry.get(as_device("emu"))
ROOT = Path(__file__).resolve().parents[3]
H200 = Target.h200()


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Choices of these tests are in a folder of their own; kernels where all tests have them."""
    folder = tmp_path / "choices"
    monkeypatch.setattr(TuningCache, "folder", property(lambda self: folder / self.machine))
    monkeypatch.setattr(tuner, "PER_TIER", 2)
    yield folder
    tc.tune("off")


class Clock:
    """Says how long a candidate takes: by default as many microseconds as its name is long.

    Args:
        times: of candidates of these tiers.
    """

    def __init__(self, **times: float) -> None:
        self.times, self.names = times, list[str]()

    def __call__(self, run: Callable[[], None], name: str) -> float:
        run()
        self.names.append(name)
        named = [time for tier, time in self.times.items() if name.split()[0] == tier]
        return named[0] if named else 100.0 + len(name)


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def product(dtype: str = "float32", m: int = 40) -> Array:
    """(40 x 48) (48 x 32) and a bias."""
    x, y, z = (
        tc.tensor(numbers(seed, *shape), device="emu").to(getattr(tc, dtype))
        for seed, shape in enumerate([(m, 48), (32, 48), (32,)])
    )
    return np.asarray((x @ y.T + z).float().numpy())


def expected(m: int = 40) -> Array:
    return numbers(0, m, 48) @ numbers(1, 32, 48).T + numbers(2, 32)


def test_the_quickest_candidate_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock that is given; each candidate was run, and its values were compared."""
    clock = Clock(mma=3.0)
    monkeypatch.setattr(EMU, "measured", clock)
    with tc.tune():
        values = product("bfloat16")
    (choice,) = tc.kernels.choices()
    assert choice.kernel.startswith("mma ") and choice.microseconds == 3.0
    assert choice.model.startswith("register_tiled") and choice.model in clock.names
    assert {name for name, _ in choice.times} == set(clock.names) and not choice.refused
    assert {name.split()[0] for name in clock.names} >= {"mma", "register_tiled"}
    assert choice.problem == "matmul bfloat16 (40, 48) @ (48, 32) + add, cast"
    np.testing.assert_allclose(values, expected(), atol=0.2)


def test_a_plan_says_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reason of the choice has both times; with the mode off it is the model's again."""
    monkeypatch.setattr(EMU, "measured", Clock(mma=3.0))
    x, y = (tc.tensor(numbers(s, 40, 48), device="emu").to(tc.bfloat16) for s in (0, 1))
    tc.realize(x, y)
    with settings.override(debug=3):
        with tc.tune():
            tc.realize(x @ y.T)
        assert "measured 3.00 us; the model: register_tiled" in capsys.readouterr().out
        tc.tune("off")
        tc.realize(x @ y.T)
        text = capsys.readouterr().out
    assert "clocks" in text and "measured" not in text


def test_another_process_reads_what_this_one_has_measured(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its bits are the same, and it measures nothing."""
    cache = tmp_path / "cache"
    script = f"""
import sys
sys.path[:0] = {[str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]!r}
import tinygrad_cuda as tc
from tinygrad_cuda.backend.emu import backend
from tinygrad_cuda.backend.launch import tuner
tuner.PER_TIER = 2
def measured(self, run, name):
    if sys.argv[1] != "on":
        raise AssertionError("measured again")
    run()
    return 1.0 + sum(name.encode()) % 97
backend.EmuBackend.measured = measured
x, y = (tc.arange(40 * 48, device="emu").reshape(40, 48).float().sin() for _ in range(2))
print((x @ y.T).numpy().tobytes().hex())
print(*(one.kernel for one in tc.kernels.choices()), sep=",")
"""
    outputs = []
    for mode in ("on", "on again", "cached"):
        environment = {**os.environ, "TGC_CACHE_DIR": str(cache), "TGC_TUNE": mode.split()[0]}
        done = subprocess.run(
            [sys.executable, "-c", script, mode], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1] == outputs[2] and "register_tiled" in outputs[0]
    (file,) = (cache / "tuning").rglob("*.json")
    assert file.parent.name == "emu_sm_90_132_multiprocessors"
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", ["truncated", "changed", "another format"])
def test_a_damaged_file_is_a_miss(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    clock = Clock()
    monkeypatch.setattr(EMU, "measured", clock)
    with tc.tune():
        product()
    (path,) = own_folder.rglob("*.json")
    text = path.read_text()
    if damage == "truncated":
        path.write_text(text[: len(text) // 2])
    elif damage == "changed":
        path.write_text(text.replace('"microseconds": 1', '"microseconds": 2'))
        assert path.read_text() != text
    else:
        path.write_text(json.dumps(["something else"]))
    count = len(clock.names)
    tc.tune("off")
    with tc.tune("cached"):
        np.testing.assert_allclose(product(), expected(), rtol=1e-5, atol=1e-4)
    assert len(clock.names) == count and not tc.kernels.choices()
    tc.tune("off")
    with tc.tune():
        product()
    assert len(clock.names) == 2 * count and path.read_text() == text


def test_a_file_that_others_may_write_is_not_read(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EMU, "measured", Clock())
    with tc.tune():
        product()
    (path,) = own_folder.rglob("*.json")
    path.chmod(0o666)
    tc.tune("off")
    with tc.tune("cached"):
        assert not tc.kernels.choices()
    path.chmod(0o600)
    tc.tune("off")
    with tc.tune("cached"):
        assert tc.kernels.choices()
    owner = os.getuid()
    monkeypatch.setattr(ownership.os, "getuid", lambda: owner + 1)
    tc.tune("off")
    with tc.tune("cached"):
        assert not tc.kernels.choices()


def test_a_file_of_another_machine_is_not_read(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it lies in this one's folder, whole and under the right name."""
    monkeypatch.setattr(EMU, "measured", Clock())
    tc.tune("off")
    with monkeypatch.context() as patch:
        patch.setattr(EMU, "target", replace(EMU.target, name="another"))
        with tc.tune():
            product()
        tc.tune("off")
    (path,) = own_folder.rglob("*.json")
    folder = EMU.tuner.cache.folder.parent / tuner._named(EMU.target)
    folder.mkdir(mode=0o700)
    shutil.copy(path, folder / path.name)
    with tc.tune("cached"):
        assert EMU.tuner.cache.folder == folder and not tc.kernels.choices()


def test_each_machine_has_its_own_choices(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU of another name, or of fewer multiprocessors, is measured by itself."""
    clock = Clock()
    monkeypatch.setattr(EMU, "measured", clock)
    with tc.tune():
        product()
    count = len(clock.names)
    for changed in ({"name": "another"}, {"multiprocessors": 66}):
        tc.tune("off")
        with monkeypatch.context() as patch:
            patch.setattr(EMU, "target", replace(EMU.target, **changed))
            with tc.tune():
                product()
            tc.tune("off")
        count += count if changed.get("name") else 0
        assert len(clock.names) >= count
    folders = {path.parent.name for path in own_folder.rglob("*.json")}
    assert len(folders) == 3


def test_a_shape_dtype_layout_or_epilogue_is_a_problem_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the same problem in another plan is not measured again."""
    clock = Clock()
    monkeypatch.setattr(EMU, "measured", clock)
    x, y = (tc.tensor(numbers(seed, 40, 40), device="emu") for seed in (0, 1))
    with tc.tune():
        for work in (
            lambda: x @ y, lambda: x @ y.T, lambda: x @ y + 1, lambda: x[:39] @ y,
            lambda: x.double() @ y.double(),
        ):  # fmt: skip
            before = len(tc.kernels.choices())
            tc.realize(work())
            assert len(tc.kernels.choices()) == before + 1
        measured = len(clock.names)
        tc.realize((x @ y).exp().sum(), x @ y)  # another plan, in which nothing is behind it
        tc.realize(x @ y.T)
    assert len(clock.names) == measured
    assert len({choice.problem for choice in tc.kernels.choices()}) == 4  # y.T has the same shape


def test_wrong_candidates_are_refused_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even the quickest; what fails to run is refused as well, and the rest is measured."""
    run = tuner._Measurement._run

    def wrong(self: Any, candidate: Any) -> Any:
        values, again = run(self, candidate)
        return [v + candidate.name.startswith("mma") for v in values], again

    monkeypatch.setattr(EMU, "measured", Clock(mma=1.0))
    monkeypatch.setattr(tuner._Measurement, "_run", wrong)
    with tc.tune(), pytest.warns(RuntimeWarning, match="a kernel is not taken .* mma .* differ"):
        values = product("bfloat16")
    (choice,) = tc.kernels.choices()
    assert not choice.kernel.startswith("mma") and choice.refused
    assert all("values differ" in text for text in choice.refused)
    np.testing.assert_allclose(values, expected(), atol=0.2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_convolutions_are_problems(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """Every tier that makes one is measured, and the one that the clock prefers is right."""
    monkeypatch.setattr(EMU, "measured", Clock(implicit=1.0))
    x, w = (
        tc.tensor(numbers(seed, *shape), device="emu").to(getattr(tc, dtype))
        for seed, shape in ((0, (2, 16, 8, 8)), (1, (16, 16, 3, 3)))
    )
    with tc.tune():
        y = tc.conv2d(x, w, padding=1).float().numpy()
    (choice,) = tc.kernels.choices()
    assert choice.kernel.startswith("implicit GEMM") and len(choice.times) > 1
    usual = tc.conv2d(*(tc.tensor(v.float().numpy(), device="cpu") for v in (x, w)), padding=1)
    np.testing.assert_allclose(y, usual.numpy(), atol=1e-3 if dtype == "float32" else 0.3)


def test_the_models_choice_wins_a_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that is not quicker by more than the noise changes nothing."""
    product()
    usual = product()
    monkeypatch.setattr(EMU, "measured", lambda run, name: (run(), 10.0)[1])
    with tc.tune():
        tuned = product()
    (choice,) = tc.kernels.choices()
    assert choice.kernel == choice.model and tuned.tobytes() == usual.tobytes()


def test_a_compiled_step_is_not_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch makes plans anew, those of tc.compile as well."""
    clock = Clock(register_tiled=50.0)
    monkeypatch.setattr(EMU, "measured", clock)
    x, y = (tc.tensor(numbers(seed, 40, 48), device="emu").to(tc.bfloat16) for seed in (0, 1))
    step = tc.compile(lambda: x @ y.T)
    for _ in range(3):
        usual = step().float().numpy()
    clock.times = {"mma": 1.0}
    with tc.tune():
        tuned = step().float().numpy()
    assert clock.names and tc.kernels.choices()[0].kernel.startswith("mma")
    assert EMU.target.tuning == TuningTable(EMU.target.tuning.entries)
    np.testing.assert_allclose(tuned, usual, atol=0.2)
    count = len(clock.names)
    assert step().float().numpy().tobytes() == tuned.tobytes() and len(clock.names) == count


def test_off_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target has no table; nothing is measured, no problem is cut out, no cut enumerated."""
    for owner, name in (
        (EMU, "measured"), (tuner.Tuner, "lowered"), (algorithms, "TuningProblems"),
        (algorithms, "options"), (algorithms, "_measurable"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, lambda *given, name=name: pytest.fail(name))
    assert settings.tune == "off" and EMU.target.tuning is None
    np.testing.assert_allclose(product(), expected(), rtol=1e-5, atol=1e-4)


def programs() -> dict[str, Any]:
    """Graphs of products and convolutions over operands in memory, by what they compute."""
    x, y, b = (tc.zeros(*shape, device="emu") for shape in ((96, 128), (128, 64), (64,)))
    images, taps = (tc.zeros(*s, device="emu") for s in ((4, 64, 16, 16), (64, 64, 3, 3)))
    half = x.to(tc.bfloat16), y.to(tc.bfloat16)
    tc.realize(x, y, b, images, taps, *half)
    heads = tc.zeros(2, 64, 128, device="emu")
    made = {
        "linear": (x @ y + b).relu(), "half": (half[0] @ half[1]).float().sum(0),
        "heads": (heads @ y).reshape(2, 64, 4, 16).permute(0, 2, 1, 3),
        "integers": x.int() @ y.int(), "double": x.double() @ y.double(),
        "convolution": F.conv2d(images, taps, padding=1),
        "half convolution": F.conv2d(*(v.to(tc.bfloat16) for v in (images, taps)), stride=2),
    }  # fmt: skip
    return {name: program_of(value) for name, value in made.items()}


def program_of(*results: Any) -> Any:
    _, program = explain_nodes([result.node for result in results])
    assert program is not None
    return program


def test_without_choices_all_texts_are_those_of_off() -> None:
    """A table that has nothing to say leaves every launch byte for byte as no table does."""
    for name, program in programs().items():
        for target in (H200, Target.of_architecture((8, 0)), Target.emu()):
            usual = lower(program, target)
            empty = lower(program, replace(target, tuning=TuningTable({})))
            assert usual.units() == empty.units() and usual.source == empty.source, name
            assert len(usual.launches) == len(empty.launches)
            assert empty.schedule.decisions and not usual.schedule.decisions


@pytest.mark.parametrize("architecture", [(7, 5), (8, 0), (9, 0), (12, 0)])
def test_no_kernel_is_an_option_whose_tier_refuses_it(architecture: tuple[int, int]) -> None:
    """Over sizes, dtypes and precisions; a table that names an option has it made."""
    draw = random.Random(7)
    target = replace(Target.of_architecture(architecture), tuning=TuningTable({}, {"cublas": "1"}))
    for _ in range(12):
        m, n, k = (draw.choice((1, 7, 64, 65, 128, 1000, 4096)) for _ in range(3))
        dtype = draw.choice(("float32", "bfloat16", "float16", "float64", "int32"))
        a, b = (tc.empty(*s, device="meta").to(getattr(tc, dtype)) for s in ((m, k), (k, n)))
        with settings.override(matmul_precision=draw.choice(("highest", "high", "ieee"))):
            program = program_of(a @ b)
            (product,) = (node for node in program.outputs if node.op is matmul)
            for one in options(product, target)[:: draw.randint(1, 9)]:
                problem = algorithms.problem_of(product, target)
                assert isinstance(one.row.propose(problem), algorithms.Candidate)
                forced = OneChoice(Tuned("", one.tier, one.cut, 1.0, "", 1.0), {"cublas": "1"})
                made = lower(program, replace(target, tuning=forced))
                tiers = [kernel.choice.tier for kernel in made.schedule.kernels if kernel.choice]
                assert tiers == [one.tier], (m, n, k, dtype)


@pytest.mark.parametrize(
    ("name", "form"),
    [("c256-128 28 1x1", "float32"), ("c64 32 3x3", "float32"), ("c128 28 3x3", "bf16"),
     ("c64-128 32 1x1 s2", "tf32"), ("c128 28 3x3 g4", "tf32"),
     ("c128 28 3x3 depthwise", "bf16"), ("c240 28 5x5 s2 depthwise", "float32")],
)  # fmt: skip
@pytest.mark.parametrize("last", [False, True])
def test_what_is_measured_is_what_a_plan_gets(name: str, form: str, last: bool) -> None:
    """Each candidate of a convolution: by the table's key, and as it is forced while it is timed.

    So the model may say channels last where the choice is another kernel, and the reverse.
    """
    dtype, precision = tuned_lab.FORMATS[form]
    (case,) = (case for case in tuned_lab.CASES if case.name == name)
    with settings.override(matmul_precision=precision):
        program = tuned_lab.program_of(case, dtype, last)
        empty = lower(program, replace(H200, tuning=TuningTable({})))
        ((key, decision),) = empty.schedule.decisions.items()
        problem = decision.problem
        alone = lower(problem.program, replace(H200, tuning=TuningTable({})))
        assert list(alone.schedule.decisions) == [key]
        made = options(problem.node, H200, problem.last)
        assert len(made) > 2
        for one in made[:: max(1, len(made) // 8)]:
            choice = Tuned("", one.tier, one.cut, 1.0, "", 1.0)
            forced = lower(program, replace(H200, tuning=OneChoice(choice)))
            named = lower(program, replace(H200, tuning=TuningTable({key: choice})))
            assert forced.units() == named.units(), (one.tier, one.cut)
            assert any(d.tuned is not None for d in named.schedule.decisions.values())


def test_a_choice_that_the_tier_refuses_is_the_models() -> None:
    """As where a file is of another version: an entry is taken only if its kernel is an option."""
    for name, program in programs().items():
        usual = lower(program, H200)
        for tier, cut in (("wgmma tf32", "1x1x1"), ("no tier", ""), ("cublas", "")):
            table = OneChoice(Tuned("", tier, cut, 1.0, "", 1.0))
            assert lower(program, replace(H200, tuning=table)).units() == usual.units(), name


def cublas_tuned(clock: Clock) -> tuple[Array, Any, Any]:
    """A linear layer on the pretended GPU with cuBLASLt: values, library, and the choices."""
    with pretended_cublas() as library, pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry.get(as_device("cuda")), "measured", clock)
        x, w, b = (tc.tensor(v, device="cuda") for v in layer())
        with tc.tune():
            values = [F.linear(x, w, b).relu().numpy() for _ in range(3)][-1]
        choices = [one for one in tc.kernels.choices() if one.device.startswith("cuda")]
        tc.tune("off")
    return values, library, choices


def layer() -> list[Array]:
    return [numbers(seed, *shape) for seed, shape in enumerate([(40, 48), (32, 48), (32,)])]


def test_a_library_is_a_candidate_where_it_is_installed() -> None:
    """Its call takes bias and activation along, as `provider` has it, and is replayed."""
    clock = Clock(cublas=2.0)
    values, library, (choice,) = cublas_tuned(clock)
    assert choice.kernel == "cublas" and choice.microseconds == 2.0
    assert {name.split()[0] for name in clock.names} >= {"cublas", "register_tiled"}
    assert library.products[-1].epilogue == "RELU_BIAS"
    np.testing.assert_allclose(values, np.maximum(expected(), 0), rtol=1e-5, atol=1e-4)


def test_a_slower_library_is_not_taken(own_folder: Path) -> None:
    """It has been measured all the same; nothing of it is in the plan."""
    values, _, (choice,) = cublas_tuned(Clock(cublas=900.0))
    assert choice.kernel != "cublas" and ("cublas", 900.0) in choice.times
    np.testing.assert_allclose(values, np.maximum(expected(), 0), rtol=1e-5, atol=1e-4)


def test_a_library_is_no_candidate_where_more_would_be_fused() -> None:
    """Its epilogue is ReLU's and GELU's; an update, a sum or a tanh beside others is not."""
    x, w, b = (tc.tensor(v, device="emu") for v in layer())
    with_bias = x @ w.T + b
    for value, expected in (
        ((with_bias,), True), ((with_bias.relu(),), True), ((with_bias.tanh(),), True),
        ((F.gelu(with_bias, approximate="tanh") @ w,), True), ((with_bias.T @ x,), True),
        ((with_bias.relu().sum(0),), False), ((with_bias, with_bias.exp() * x[:, :32]), False),
        ((w - 0.1 * (with_bias.T @ x), (with_bias.T @ x).square()), False),
    ):  # fmt: skip
        program = program_of(*value)
        target = replace(H200, tuning=TuningTable({}, {"cublas": "1"}))
        decisions = lower(program, target).schedule.decisions
        last = list(decisions.values())[-1].problem
        assert bool(last.libraries) == expected, [node.op.name for node in program.outputs]
        assert ("cublas" in last.key) == expected


def test_choices_beside_a_library_are_of_its_version(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, or with another version, the problem is another: its call is not asked for."""
    cublas_tuned(Clock(cublas=2.0))
    monkeypatch.setattr(CublasLt, "get_version", lambda self: 130200)
    assert cublas_tuned(Clock(cublas=900.0))[2][-1].kernel != "cublas"
    monkeypatch.setattr(CudaBackend, "installed", lambda self: {})
    clock = Clock()
    _, library, choices = cublas_tuned(clock)
    assert not library.products and "cublas" not in clock.names
    assert len(choices) == len(list(own_folder.rglob("*.json"))) == 3


def test_what_is_forced_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """By `kernels.use`, and products that the chosen provider makes."""
    clock = Clock()
    monkeypatch.setattr(EMU, "measured", clock)
    with tc.tune(), tc.kernels.use("matmul", "naive"):
        product()
    assert not clock.names
    tc.tune("off")
    with pretended_cublas() as library, pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry.get(as_device("cuda")), "measured", clock)
        with tc.kernels.provider("cublas"), tc.tune():
            x, w, b = (tc.tensor(v, device="cuda") for v in layer())
            values = F.linear(x, w, b).numpy()
            assert not clock.names and len(library.products) == 1
            whole = (x.int() @ w.int().T).numpy()  # which the library does not make
        tc.tune("off")
    assert clock.names and "cublas" not in clock.names
    np.testing.assert_allclose(values, expected(), rtol=1e-5, atol=1e-4)
    a, c = (v.astype(np.int32) for v in layer()[:2])
    np.testing.assert_array_equal(whole, a @ c.T)


def test_the_mode_and_the_provider_are_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that was made while the mode was another is made anew, with the same choices."""
    monkeypatch.setattr(EMU, "measured", Clock())
    x, y = (tc.tensor(numbers(seed, 24, 24), device="emu") for seed in (0, 1))
    tc.tune("on")
    first = (x @ y).numpy()
    keys = len(plans.entries)
    with settings.override(tune="cached"):
        plans.forget_signatures()
        again = (x @ y).numpy()
    assert len(plans.entries) == keys + 1 and first.tobytes() == again.tobytes()
    (node,) = program_of(x @ y).outputs
    order = topological([node])
    made = TuningProblems(order, [node], {})
    key = made.problem(node, node).key
    with settings.override(provider="cublas"):
        assert made.problem(node, node).key != key
    assert TuningProblems(order, [node], {"cublas": "1"}).problem(node, node).key != key


def test_what_cannot_be_measured_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said, and the model's choice computes the value."""
    tries = []

    def failing(self: Any) -> Any:
        tries.append(self)
        raise ArgumentError("tune", "no room", expect="room", actual="none")

    monkeypatch.setattr(tuner._Measurement, "tuned", failing)
    with tc.tune():
        with pytest.warns(RuntimeWarning, match="is not tuned: .* no room"):
            values = product()
        plans.clear()
        assert product().tobytes() == values.tobytes() and len(tries) == 1
    np.testing.assert_allclose(values, expected(), rtol=1e-5, atol=1e-4)


def test_unknown_modes_are_errors() -> None:
    with pytest.raises(ArgumentError, match="unknown mode"):
        tc.tune("fast")
    assert settings.tune == "off"


def test_blocks_and_switches() -> None:
    """A block ends in what was measured; a block inside another ends as it began."""
    with tc.tune():
        assert settings.tune == "on"
        with tc.tune(False):
            assert settings.tune == "off"
        assert settings.tune == "on"
    assert settings.tune == "cached"
    tc.tune(True)
    assert settings.tune == "on"


def test_tables_are_equal_by_what_they_choose() -> None:
    """As parts of a plan's key: another time is no other choice, another cut is."""
    first = Tuned("p", "mma", "128x64x32", 3.0, "model", 4.0)
    same = TuningTable({"k": first}), TuningTable({"k": first._replace(microseconds=3.5)})
    assert same[0] == same[1] and hash(same[0]) == hash(same[1])
    assert TuningTable({"k": first._replace(cut="64x64x32")}) != same[0] != TuningTable({})


def test_values_differ_by_more_than_the_order_of_sums() -> None:
    right = numbers(0, 1000)
    off = right.copy()
    off[7] += 1
    assert not difference([right * (1 + 1e-6)], [right], dtypes.float32, True)
    assert "1 of 1000 values differ" in difference([off], [right], dtypes.float32, True)
    assert difference([np.full_like(right, np.nan)], [right], dtypes.float32, False)
    assert not difference([right], [right], dtypes.int32, True)


def test_shortlists() -> None:
    """Of a tier the first ones, and nothing that the model expects to be far slower."""
    tier = algorithms.TIERS[0]
    many = [algorithms.Option("a", str(n), 10.0 + n, tier, None) for n in range(9)]
    slow = algorithms.Option("b", "", 1000.0, tier, None)
    assert [one.cut for one in shortlist([*many, slow])] == ["0", "1"]  # PER_TIER of these tests


def test_a_gpus_times_are_taken_behind_a_written_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a pretended GPU: the L2 cache is overwritten before each run that counts."""
    with pretended_gpu() as driver:
        fills: list[int] = []
        memset = driver.cuMemsetD8Async

        def counted(target: int, byte: int, nbytes: int, stream: Any) -> Any:
            fills.append(nbytes)
            return memset(target, byte, nbytes, stream)

        monkeypatch.setattr(driver, "cuMemsetD8Async", counted)
        monkeypatch.setattr(cuda_tuner, "LONG", np.inf)
        x, y = (tc.tensor(numbers(seed, 24, 40), device="cuda") for seed in (0, 1))
        with tc.tune():
            value = (x @ y.T).numpy()
        np.testing.assert_allclose(value, numbers(0, 24, 40) @ numbers(1, 24, 40).T, atol=1e-4)
        (choice,) = (one for one in tc.kernels.choices() if one.device.startswith("cuda"))
        measured = sum(nbytes >= 2 * driver.attributes["L2_CACHE_SIZE"] for nbytes in fills)
        each = cuda_tuner.FEW + cuda_tuner.REPEATS
        assert measured >= each * len(choice.times) > each and measured % each == 0
        tc.tune("off")


def test_the_middle_of_times() -> None:
    """Steps of a coarse clock are averaged, what came between is left out."""
    assert cuda_tuner.middle([5.0, 5.5, 5.5, 5.0, 5.5, 90.0, 0.1]) == pytest.approx(16 / 3)
    assert cuda_tuner.middle([3.0, 900.0, 4.0]) == 4.0


def test_the_lab_times_replayed_graphs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a pretended GPU, by its own clock: every plan runs by single launches, then by a graph."""
    small = tuned_lab.SMALL[0]
    monkeypatch.setattr(tuned_lab, "PRODUCTS", (small._replace(m=24), small))
    monkeypatch.setattr(tuned_lab, "CASES", ())
    monkeypatch.setattr(tuned_lab, "TURNS", 1)
    with pretended_gpu() as driver:
        launched = []
        launch = driver.cuGraphLaunch
        monkeypatch.setattr(
            driver, "cuGraphLaunch", lambda *given: (launched.append(1), launch(*given))[1]
        )
        status = tuned_lab.main([str(tmp_path / "rows"), "--formats", "float32"])
        tc.tune("off")
    rows = json.loads((tmp_path / "rows").read_text())
    assert len(rows) == 2 and status == int(max(row["ratio"] for row in rows) > 1.03)
    assert len(launched) > 2 * 2 * cuda_tuner.FEW * tuned_lab.TURNS


def test_a_tuned_plan_is_compared_with_each_tier_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """lab/tuned.py on emu: a ratio to the best of the others, above 1.03 a failure."""
    clock = Clock(mma=3.0)
    monkeypatch.setattr(EMU, "measured", clock)
    for name, status in (("mma", 0), ("none", 1)):
        clock.times = {"mma": 3.0, "tuned": 3.0 if name == "mma" else 9.0}
        command = [str(tmp_path / name), "--device", "emu", "--only", "40"]
        assert tuned_lab.main(command) == status
        (row,) = json.loads((tmp_path / name).read_text())
        assert row["choice"].startswith("mma ") and row["model"].startswith("register_tiled")
        assert row["ratio"] == clock.times["tuned"] / 3.0
        assert {"tuned", "model", row["choice"]} < row["times"].keys()
    assert tuned_lab.main([str(tmp_path / "all"), "--device", "emu", "--formats", "float32"]) <= 1
    assert len(json.loads((tmp_path / "all").read_text())) == 2
