"""The option `--fault`, and the environment in which processes start with traincope, for `run`, `train` and `demo`."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from traincope import startup
from traincope.errors import UsageError
from traincope.inject import FAULT_VARIABLE, FAULTS, TRUTH_VARIABLE, parse_injections
from traincope.store.layout import INJECTED_FILE

INTERPRETER = Path(startup.__file__).parent / "interpreter"
"""First on PYTHONPATH. Holds a sitecustomize, and no name that could hide a module of the training."""


def add_fault_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fault",
        type=_checked,
        metavar="NAME@rank=1,step=10",
        help="inject a fault with a known answer, e.g. `slow@rank=3,step=20,phase=forward,seconds=0.05`; join several "
        f"by `+`; names: {', '.join(sorted(FAULTS))}",
    )


def fault_environment(fault: str | None, *, out: Path) -> dict[str, str]:
    """Return the variables that inject a fault, and write what was injected into the run directory."""
    return {} if fault is None else {FAULT_VARIABLE: fault, TRUTH_VARIABLE: str(out.absolute() / INJECTED_FILE)}


def injecting_environment(fault: str | None, *, out: Path) -> dict[str, str]:
    """Return the variables with which the processes of a launcher inject a fault, and nothing else."""
    return {} if fault is None else {**fault_environment(fault, out=out), "PYTHONPATH": python_path(os.environ)}


def python_path(environment: Mapping[str, str]) -> str:
    """Return the PYTHONPATH with which every Python starts by our sitecustomize."""
    existing = environment.get("PYTHONPATH")
    return f"{INTERPRETER}{os.pathsep}{existing}" if existing else str(INTERPRETER)


def _checked(text: str) -> str:
    try:
        parse_injections(text, known=FAULTS)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
