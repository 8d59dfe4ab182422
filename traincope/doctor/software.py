"""Versions of what recording stands on."""

import importlib.util
import re
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import traincope
from traincope.doctor.finding import Finding, note, ok


def examine_software() -> tuple[Finding, ...]:
    return (
        ok("python", f"{sys.version.split()[0]}, {sys.executable}"),
        ok("traincope", f"{traincope.__version__}, {Path(traincope.__file__).parent}"),
        *_torch(),
    )


def _torch() -> tuple[Finding, ...]:
    if importlib.util.find_spec("torch") is None:
        return (
            note(
                "torch",
                "not installed in this Python: runs can be read here, not recorded",
                do="install torch, or run doctor with the Python that trains: python -m traincope.cli.main doctor",
            ),
        )
    import torch

    return _version(str(torch.__version__)), _distributed()


def _version(installed: str) -> Finding:
    low, high = torch_bounds()
    if low <= release(installed) < high:
        return ok("torch", installed)
    return note(
        "torch",
        f"{installed}; recording is tested with {_words(low)} and later, below {_words(high)}",
        do="look under PROBES at what this torch lacks; a tested one has all of it",
    )


def _distributed() -> Finding:
    import torch.distributed as dist

    if not dist.is_available():
        return note(
            "distributed",
            "this torch is built without torch.distributed: no communication can be seen",
            do="for training on several ranks install a torch with it",
        )
    known = {"gloo": dist.is_gloo_available, "nccl": dist.is_nccl_available, "mpi": dist.is_mpi_available}
    return ok("distributed", "backends " + ", ".join(name for name, available in known.items() if available()))


def torch_bounds() -> tuple[tuple[int, int], tuple[int, int]]:
    """(major, minor) of the oldest tested torch, and of the first that is too new, as our package declares."""
    try:
        declared = next(line for line in requires("traincope") or () if re.match(r"torch\b", line))
    except (PackageNotFoundError, StopIteration):
        return (0, 0), (sys.maxsize, 0)
    bounds = {sign: release(number) for sign, number in re.findall(r"(>=|<)\s*([\d.]+)", declared)}
    return bounds.get(">=", (0, 0)), bounds.get("<", (sys.maxsize, 0))


def release(text: str) -> tuple[int, int]:
    """(major, minor) of a version, e.g. (2, 13) of "2.13.0+cpu"; what has none counts as 0."""
    numbers = [int(part) for part in re.findall(r"\d+", text)[:2]]
    major, minor = (*numbers, 0, 0)[:2]
    return major, minor


def _words(number: tuple[int, int]) -> str:
    return f"{number[0]}.{number[1]}"
