"""The subcommands: help, exit statuses and errors without a traceback, and what each prints."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.__main__ import COMMANDS, main
from tinygrad_cuda.backend import registry
from tinygrad_cuda.commands import bench, compile_all
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.data.mnist import FILES

SCRIPT = """
import sys
import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim

assert sys.argv[1:] in ([], ["--smoke"])
tc.set_default_device("cpu")
model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
optimizer = optim.SGD(model.parameters(), lr=0.1)
waiting = tc.ones(2).exp()
for _ in range(2):
    optimizer.zero_grad()
    model(tc.ones(5, 4)).square().mean().backward()
    optimizer.step()
later = tc.ones(3).cos()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT, encoding="utf-8")
    yield path
    tc.set_default_device(None)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every subcommand of the table exists and says what it does."""
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert COMMANDS[name][1:] in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("compare", ["max|a - b| <= atol + rtol * max|a|", "(default: 0.0001)", "(default: 1e-06)",
                     "absolute part", "relative part", "0 if all agree"]),
        ("bench", ["[-- OPTION ...]", "where there is none, on cpu", "a clone of the repository"]),
        ("data", ["60,000 handwritten digits", "$TGC_DATA, then the cache folder", "11 MiB"]),
        ("tune", ["On the device cpu this does nothing", "TGC_TUNE=cached"]),
    ],
)  # fmt: skip
def test_help_answers_what_a_stranger_asks(
    name: str, texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Which numbers, relative to what, with which default; on which device; where files are."""
    with pytest.raises(SystemExit):
        main([name, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert [text for text in texts if text not in shown] == []


@pytest.mark.smoke("commands")
def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--version", "--help"):
        with pytest.raises(SystemExit) as end:
            main([option])
        assert end.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"tinygrad_cuda {tc.__version__}\n")
    assert all(name in text for name in COMMANDS)


@pytest.mark.parametrize(
    ("line", "first"),
    [
        (["graph", "nowhere.py"], "MissingFileError: [graph] there is no such script"),
        (["tune", "nowhere.py"], "MissingFileError: [tune] there is no such script"),
        (["profile", "nowhere.py"], "MissingFileError: [profile] there is no such script"),
        (["compile-all", "--arch", "sm_1"], "ArgumentError: [compile-all] --arch names nothing"),
        (["data", "mnist", "--no-download", "--root", "nowhere"], "DataError: [MNIST]"),
    ],
)
def test_mistakes_are_errors_of_one_form(
    line: list[str], first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2, expected and actual value, no traceback."""
    assert main(line) == 2
    text = capsys.readouterr().err
    assert text.startswith(first) and "expect:" in text and "Traceback" not in text


def test_graph_draws_the_last_plan(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The update of the last step, with its modules; the script has its arguments."""
    page = script.with_name("step.html")
    assert main(["graph", "-o", str(page), str(script), "--smoke"]) == 0
    assert str(page) in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert "update" in text and "2 (Linear)" in text and "matmul" in text and "cos" not in text


@pytest.mark.parametrize("order", ["before", "behind"])
def test_options_stand_before_a_script_or_behind_it(
    order: str, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`graph train.py -o FILE` drew graph.html, and the script was given the option."""
    script.write_text("import sys\nprint(sys.argv[1:])\n" + SCRIPT.replace("assert", "# "))
    file = tmp_path / "drawn.svg"
    own, given = ["-o", str(file)], [str(script), "data", "--rate", "0.1", "--", "-o", "x"]
    ordered = [*own, *given] if order == "before" else [*given[:2], *own, *given[2:]]
    assert main(["graph", *ordered]) == 0
    assert capsys.readouterr().out.startswith("['data', '--rate', '0.1', '-o', 'x']")
    assert file.exists()


def test_profile_runs_a_script_and_prints_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the script's own arguments and exit status, the tables that are asked for, a trace."""
    script, trace = tmp_path / "run.py", tmp_path / "trace.json"
    script.write_text(
        "import sys\nimport tinygrad_cuda as tc\nprint(sys.argv[1:])\n"
        "x = tc.rand(30, 30, device='cpu')\n((x @ x).exp().sum() + x.sin().sum()).item()\n"
        "sys.exit(4)\n"
    )
    own = ["--by", "op,line", "--sort-by", "count", "--rows", "2", "--trace", str(trace)]
    assert main(["profile", *own, str(script), "data", "--fast"]) == 4
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "['data', '--fast']"
    assert [line for line in lines if line.startswith("By ")] == ["By op", "By line"]
    rules = [number for number, line in enumerate(lines) if line.startswith("-----")]
    assert rules[2] - rules[1] == 3  # two rows between the second and the third rule
    assert lines[-1] == f"trace for ui.perfetto.dev: {trace}"
    assert '"traceEvents"' in trace.read_text(encoding="utf-8")


def test_profile_looks_at_its_options_first(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole script ran before a column was refused."""
    script.write_text("raise SystemExit('it ran')")
    for option, word in (("--by", "colour"), ("--sort-by", "colour")):
        with pytest.raises(SystemExit) as end:
            main(["profile", option, word, str(script)])
        assert end.value.code == 2
        assert "'colour'" in capsys.readouterr().err


def test_graph_draws_a_variable_or_an_early_plan(script: Path) -> None:
    """`later` is pending when the script ends; the first plan has the exponential, the last not."""
    page = script.with_name("step.html")
    assert main(["graph", "-o", str(page), "--variable", "later", str(script)]) == 0
    assert "cos" in page.read_text(encoding="utf-8")
    assert main(["graph", "-o", str(page), "--stop-after", "1", str(script)]) == 0
    assert "exp" in page.read_text(encoding="utf-8")
    assert main(["graph", "-o", str(page), "--variable", "nothing", str(script)]) == 2


def test_graph_draws_what_a_computed_variable_was_made_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was one lonely box; what is no longer known is an error with the way out."""
    script, picture = tmp_path / "computed.py", tmp_path / "graph.dot"
    script.write_text(
        "import tinygrad_cuda as tc\n"
        "x = tc.tensor([1.0, 2.0], device='cpu')\n"
        "old = (x * 2).tanh().sum()\n"
        "old.item()\n"
        "for k in range(20):\n"
        "    (x + k).cos().sum().item()\n"
        "y, other = (x * 3).exp().sum(), x.sin()\n"
        "y.item()\n"
    )
    for name, there, absent in (("y", "exp", "sin"), ("other", "sin", "exp"), ("x", "(2,)", "mul")):
        assert main(["graph", "-o", str(picture), "--variable", name, str(script)]) == 0
        text = picture.read_text(encoding="utf-8")
        assert there in text and absent not in text, name
    assert main(["graph", "-o", str(picture), "--variable", "old", str(script)]) == 2
    text = capsys.readouterr().err
    assert "'old' was computed from is not known" in text and "--stop-after" in text


def test_tune_runs_a_script(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On cpu there is nothing to choose, which it says; afterwards the model chooses again."""
    assert main(["tune", str(script), "--smoke"]) == 0
    assert capsys.readouterr().out == (
        "0 measured choices: no product and no convolution ran on cuda or emu, "
        "and cpu has no kernels to choose from\n"
    )
    assert settings.tune == "off"


def test_tune_prints_what_it_has_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a product on emu; the status is the script's."""
    emu: Any = registry.get(as_device("emu"))
    monkeypatch.setattr(emu, "measured", lambda run, name: (run(), 10.0)[1])
    monkeypatch.setattr(settings, "cache_dir", tmp_path)
    path = tmp_path / "product.py"
    path.write_text(
        "import tinygrad_cuda as tc\n"
        "tc.realize(tc.ones(6, 5, device='emu') @ tc.ones(5, 7, device='emu'))\n"
        "raise SystemExit('no more')\n"
    )
    assert main(["tune", str(path)]) == 1
    printed = capsys.readouterr()
    first, last = printed.out.splitlines()
    assert printed.err == "no more\n"
    assert first.startswith("matmul float32 (6, 5) @ (5, 7) on emu: register_tiled ")
    assert first.endswith(", 10.00 us") and last == "1 measured choices"
    assert settings.tune == "off" and len(list(tmp_path.glob("tuning/*/*.json"))) == 1


def test_data_says_where_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of the user's own are read where they are."""
    for half in FILES.values():
        for name in half:
            images = "images" in name
            header = (
                struct.pack(">IIII", 0x803, 2, 28, 28) if images else struct.pack(">II", 0x801, 2)
            )
            body = bytes(2 * 28 * 28) if images else bytes(2)
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(header + body))
    assert main(["data", "mnist", "--no-download", "--root", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" images")[0].split() for line in lines] == [
        ["2", "training"],
        ["2", "test"],
    ]


def test_bench_needs_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(bench.subprocess, "call", lambda line, cwd: calls.append(line) or 0)
    assert main(["bench", "--", "--smoke"]) == 0
    assert calls[0][1:] == ["-m", "benchmarks", "--smoke"]
    monkeypatch.setattr(bench, "CHECKOUT", tmp_path)
    assert main(["bench"]) == 2
    assert "not part of the installed package" in capsys.readouterr().err


def test_compile_all_reports_registers(capsys: pytest.CaptureFixture[str]) -> None:
    """NVRTC compiles a program for two architectures; the line says what kernels take."""
    assert main(["compile-all", "--arch", "sm_75,sm_90", "--only", "mlp", "--all"]) == 0
    text = capsys.readouterr().out
    assert text.count("kernels, ") == 2 and text.count(" registers  ") >= 8
    table = compile_all.compiled(compile_all.PROGRAMS["mlp"], "sm_90")
    assert all(0 < used.registers <= 255 for used in table.values())
