"""The native recorder of this machine: whether it is built, and its build."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from traincope.doctor.finding import Examination, Finding, Section, bad, note, ok
from traincope.errors import MissingDependencyError, TraincopeError
from traincope.native.build import compile_library
from traincope.native.installed import (
    BUILD,
    CACHE_VARIABLE,
    VARIABLE,
    Use,
    find_library,
    publish,
    resolved_use,
    why_unfit,
)

NAME = "native recorder"
TRIAL = "traincope.doctor.native_trial"
MAX_TRIAL_SECONDS = 300


def examine_native() -> Finding:
    """Examine whether the native recorder will record, and if not, why. Under `require` that is a failure."""
    found, use = find_library(), resolved_use()
    if use is Use.OFF:
        return ok(NAME, f"off: {VARIABLE}={Use.OFF}")
    if found.path is not None:
        return ok(NAME, f"on: {found.why}")
    if use is Use.REQUIRE:
        return bad(NAME, f"required, and off: {found.why}", do=BUILD)
    return ok(NAME, f"off, the Python hooks record: {found.why}")


def build_native() -> Examination:
    """Compile the native recorder for this Python's torch, try it in a child process, and put it into the cache."""
    with tempfile.TemporaryDirectory() as directory:
        return Examination(
            subject="the native recorder of this Python",
            sections=(Section(title="BUILD", findings=_build(Path(directory))),),
        )


def _build(directory: Path) -> tuple[Finding, ...]:
    built, unfit = directory / "library.so", why_unfit()
    if unfit:
        return (ok(NAME, f"not built: {'; '.join(unfit)}"),)
    try:
        compile_library(built)
        publish(built, directory / "traincope" / "native")
        _try(directory)
        return (ok(NAME, f"built, tried and kept: {publish(built)}"),)
    except MissingDependencyError as error:
        return (note(NAME, f"not built: {error}", do=f"{BUILD}, once there is one"),)
    except TraincopeError as error:
        return (bad(NAME, str(error), do="report it with this output; the Python hooks record without it"),)
    except OSError as error:
        fact = f"not kept: {error.filename}: {error.strerror}"
        return (note(NAME, fact, do=f"set {CACHE_VARIABLE} to a directory that you can write, and {BUILD}"),)


def _try(cache: Path) -> None:
    """Record a process of its own with the library of this cache. Raises TraincopeError if it fails."""
    of_user = {name: value for name, value in os.environ.items() if not name.startswith("TRAINCOPE")}
    environment = {**of_user, CACHE_VARIABLE: str(cache), VARIABLE: Use.REQUIRE, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", TRIAL, str(cache / "run")]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=MAX_TRIAL_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise TraincopeError(f"built, but a trial of it stood still for {MAX_TRIAL_SECONDS} s") from error
    if done.returncode:
        raise TraincopeError(f"built, but a trial of it ended with {done.returncode}: {done.stderr.strip()[-1000:]}")
