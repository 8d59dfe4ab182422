"""Versions of Python, traincope and torch, and what the installation of torch and py-spy allows."""

import importlib.util
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import traincope
from traincope.doctor.finding import Finding, note, ok
from traincope.doctor.native import examine_native, examine_plugin
from traincope.store.job.outside_stacks import PROGRAM, find_py_spy, read_stacks

OUTSIDE_STACKS = "stacks from outside"
WITHOUT_THEM = "a rank that does not answer has no stack in a hang: "


def examine_software() -> tuple[Finding, ...]:
    return (
        ok("python", f"{sys.version.split()[0]}, {sys.executable}"),
        ok("traincope", f"{traincope.__version__}, {Path(traincope.__file__).parent}"),
        _outside_stacks(),
        *_torch(),
    )


def _outside_stacks() -> Finding:
    """Check whether the stacks of a process that this one starts can be read from outside."""
    py_spy = find_py_spy()
    if py_spy is None:
        return note(OUTSIDE_STACKS, f"{WITHOUT_THEM}{PROGRAM} is not installed", do="pip install 'traincope[stacks]'")
    sleeping = [sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(1_000)"]
    with subprocess.Popen(sleeping, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        stacks = read_stacks(process.pid, py_spy=py_spy)
        process.kill()
    if stacks.text:
        return ok(OUTSIDE_STACKS, f"{py_spy} can read them")
    remedy = "read docs/faults/hangs.md, A rank that does not answer"
    return note(OUTSIDE_STACKS, f"{WITHOUT_THEM}{stacks.problem}", do=remedy)


def _torch() -> tuple[Finding, ...]:
    if importlib.util.find_spec("torch") is None:
        return (
            note(
                "torch",
                "not installed in this Python: it can read runs, but not record them",
                do="install torch, or run doctor with the Python of the training: python -m traincope.cli.main doctor",
            ),
        )
    import torch

    return _version(str(torch.__version__)), _distributed(), examine_native(), examine_plugin()


def _version(installed: str) -> Finding:
    low, high = torch_bounds()
    if low <= release(installed) < high:
        return ok("torch", installed)
    return note(
        "torch",
        f"{installed}; recording is tested with versions from {_words(low)} to below {_words(high)}",
        do="read under PROBES what this torch lacks, or install a tested version",
    )


def _distributed() -> Finding:
    import torch.distributed as dist

    if not dist.is_available():
        return note(
            "distributed",
            "this torch is built without torch.distributed: communication cannot be recorded",
            do="install a torch with torch.distributed to train on several ranks",
        )
    known = {"gloo": dist.is_gloo_available, "nccl": dist.is_nccl_available, "mpi": dist.is_mpi_available}
    return ok("distributed", "backends " + ", ".join(name for name, available in known.items() if available()))


def torch_bounds() -> tuple[tuple[int, int], tuple[int, int]]:
    """(major, minor) of the oldest tested torch, and of the first untested one, as this package declares them."""
    try:
        declared = next(line for line in requires("traincope") or () if re.match(r"torch\b", line))
    except (PackageNotFoundError, StopIteration):
        return (0, 0), (sys.maxsize, 0)
    bounds = {sign: release(number) for sign, number in re.findall(r"(>=|<)\s*([\d.]+)", declared)}
    return bounds.get(">=", (0, 0)), bounds.get("<", (sys.maxsize, 0))


def release(text: str) -> tuple[int, int]:
    """(major, minor) of a version, e.g. (2, 13) of "2.13.0+cpu"; missing parts are 0."""
    numbers = [int(part) for part in re.findall(r"\d+", text)[:2]]
    major, minor = (*numbers, 0, 0)[:2]
    return major, minor


def _words(number: tuple[int, int]) -> str:
    return f"{number[0]}.{number[1]}"
