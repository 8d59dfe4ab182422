"""The argument RUN: a run directory, the beginning of a run's name, or the newest run if it is left out."""

import argparse
import sys
from pathlib import Path

from traincope.printable import printable
from traincope.store.places.named_runs import newest_run, run_by_name

RUN = "run directory, or the beginning of its name; default: the newest run below traincope_runs"


def add_run(parser: argparse.ArgumentParser, *, help: str = RUN) -> None:
    """Add RUN. `given_run` reads it."""
    parser.add_argument("run_directory", type=Path, nargs="?", metavar="RUN", help=help)


def add_runs(parser: argparse.ArgumentParser, *, more: str) -> None:
    """Add RUN once or more. `given_runs` reads them. `more`: the meaning of several."""
    parser.add_argument("run_directories", type=Path, nargs="*", metavar="RUN", help=f"{RUN}; several: {more}")


def given_run(path: Path | None) -> Path:
    """The run that a path or a name means. None: the newest run, which standard error then names.

    Raises NotARunError if it means several, or if there is no run.
    """
    if path is not None:
        return run_by_name(path)
    run = newest_run()
    print(printable(f"the newest run: {run}"), file=sys.stderr)
    return run


def given_runs(paths: list[Path]) -> list[Path]:
    """The runs that these paths or names mean; the newest run without any. Raises as `given_run`."""
    return [run_by_name(path) for path in paths] or [given_run(None)]
