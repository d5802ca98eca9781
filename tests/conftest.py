"""Options, fixtures and settings that every test shares."""

from __future__ import annotations

import faulthandler
import getpass
import os
import random
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent

# A shell that starts this in the background has it ignore Ctrl-C, and what it starts too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Set before the package reads them. The folder stays from run to run, so that a second run
# compiles nothing, and it is not the user's own.
os.environ["TGC_CACHE_DIR"] = str(
    Path(tempfile.gettempdir()) / f"tinygrad_cuda_tests_{getpass.getuser()}"
)
# Most of what the emulator compiles here runs once or twice.
os.environ["TGC_EMU_OPTIMIZE"] = "0"
os.environ["MPLBACKEND"] = "Agg"

hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("fixed")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tinygrad_cuda")
    group.addoption(
        "--require-cuda",
        action="store_true",
        help="a GPU must be there: what would skip for want of one fails",
    )
    group.addoption(
        "--arch",
        default="sm_75,sm_90",
        help="architectures for which kernels are compiled, separated by commas",
    )
    group.addoption(
        "--update-golden",
        action="store_true",
        help="write the recorded texts anew instead of comparing with them",
    )
    group.addoption(
        "--time-limit",
        type=float,
        default=300.0,
        help="seconds after which a test that hangs ends its process, with all threads' stacks",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[bool | None]:
    """A test that hangs, in C code too, fails by itself: xdist reports its worker as crashed."""
    faulthandler.dump_traceback_later(item.config.getoption("--time-limit"), exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _about_cuda(item: pytest.Item) -> bool:
    fixtures = getattr(item, "fixturenames", ())
    return "cuda_device" in fixtures or "cuda" in item.nodeid or "tests/gpu" in item.nodeid


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Under --require-cuda a test about CUDA that skips is a failure, whoever skipped it."""
    report = yield
    if report.skipped and item.config.getoption("--require-cuda") and _about_cuda(item):
        report.outcome = "failed"
        report.longrepr = f"skipped under --require-cuda: {report.longrepr}"
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the numbers that tests have recorded, which a worker's output would lose."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "number" and report.when == "call":
                    terminalreporter.write_line(f"number: {value}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Under TGC_SLOW nothing is recognised: tests that ask whether something was are skipped."""
    from tinygrad_cuda.core.config import settings  # after the cache folder was set above

    if settings.slow and item.get_closest_marker("fast_paths"):
        pytest.skip("TGC_SLOW switches all fast paths off")


@pytest.fixture(scope="session")
def architectures(request: pytest.FixtureRequest) -> list[str]:
    """The names given by --arch, such as sm_90."""
    return [name for name in request.config.getoption("--arch").split(",") if name]


@pytest.fixture(scope="session")
def cuda_device(request: pytest.FixtureRequest) -> str:
    """The name of a usable GPU's device; skips without one, fails under --require-cuda."""
    from tinygrad_cuda.backend.cuda import driver as runtime

    if not runtime.available():
        if request.config.getoption("--require-cuda"):
            pytest.fail(f"--require-cuda: {runtime.reason()}", pytrace=False)
        pytest.skip(f"no usable GPU: {runtime.reason()}")
    return "cuda"


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder that holds real data sets: $TGC_DATA, or shared/data beside the repository."""
    named = os.environ.get("TGC_DATA")
    for folder in [Path(named)] if named else [ROOT.parent / "shared" / "data"]:
        if folder.is_dir():
            return folder
    pytest.skip("no real data: set TGC_DATA to a folder that holds MNIST")


@pytest.fixture
def on_cpu() -> Iterator[None]:
    """Tensors are made on the CPU, whatever there is."""
    import tinygrad_cuda as tc  # after the cache folder was set above

    tc.set_default_device("cpu")
    yield
    tc.set_default_device(None)


@pytest.fixture
def overwriting(on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference backend writes into given-up storages too: a wrong one shows at once."""
    from tinygrad_cuda.engine import overwrite  # after the cache folder was set above

    monkeypatch.setattr(overwrite, "spared", set())


@pytest.fixture(autouse=True)
def fixed_start() -> None:
    """Every test starts from the same random state and with nothing pending, whatever ran before.

    What an earlier test has left, and something still holds, would be part of its first plan.
    """
    import tinygrad_cuda as tc  # after the cache folder was set above
    from tinygrad_cuda.engine.cell import Recorder, local

    local.recorder = Recorder()
    tc.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 (for code under test that uses the global state)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
