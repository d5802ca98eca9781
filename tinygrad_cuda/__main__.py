"""The command line: `python -m tinygrad_cuda --help`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from tinygrad_cuda.core import version
from tinygrad_cuda.core.errors import TgcError

# The file in `commands` has the name of the subcommand, with _ for -.
COMMANDS = {
    "doctor": "check Python, packages, compilers, GPU and cache folder",
    "compat": "count the names of PyTorch that exist here",
    "compare": "run a script under torch, too, and compare tensors",
    "graph": "run a script and draw what it computes, as a page or a picture",
    "tune": "run a script on a GPU, time kernels for its products and remember the quickest",
    "profile": "run a script and say where its time goes, by op, kernel, module and line",
    "compile-all": "compile kernels of sample programs for GPUs that need not be here",
    "bench": "measure against PyTorch, JAX and tinygrad (in a checkout of the source)",
    "data": "find or fetch a data set",
}
MISUSED = 2  # the exit status of a wrong command line, as argparse has it


def parsed(parser: argparse.ArgumentParser, given: list[str]) -> argparse.Namespace:
    """The options; what a command that runs a script does not know is the script's, in order.

    So the command's own may stand before the script or behind it. All behind ``--`` is the
    script's.
    """
    end = given.index("--") if "--" in given else len(given)
    options, rest = parser.parse_known_args(given[:end])
    if not hasattr(options, "script"):
        return parser.parse_args(given)
    options.arguments = [*rest, *given[end + 1 :]]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a subcommand and returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="python -m tinygrad_cuda",
        description="Tools around tinygrad_cuda, a framework for neural networks on NVIDIA GPUs.",
        epilog="python -m tinygrad_cuda SUBCOMMAND --help says more of each.",
    )
    parser.add_argument("--version", action="version", version=f"tinygrad_cuda {version}")
    parsers = parser.add_subparsers(dest="command", required=True, metavar="SUBCOMMAND")
    asked = next((word for word in given if not word.startswith("-")), None)
    command = None
    for name, text in COMMANDS.items():
        parser_of_it = parsers.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False
        )
        if name == asked:
            command = importlib.import_module(f"tinygrad_cuda.commands.{name.replace('-', '_')}")
            command.arguments(parser_of_it)
    options = parsed(parser, given)
    assert command is not None  # the parser requires one
    try:
        return int(command.run(options))
    except TgcError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return MISUSED


if __name__ == "__main__":
    sys.exit(main())
