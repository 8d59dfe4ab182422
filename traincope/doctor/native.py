"""Native code of this machine: whether it is built, and its build. It is the recorder, the plugin for NCCL, and the
decoder of traces.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from traincope.doctor.finding import Examination, Finding, Section, bad, note, ok
from traincope.errors import MissingDependencyError, TraincopeError
from traincope.native import decoder, nccl
from traincope.native.build import compile_decoder, compile_library
from traincope.native.cached import BUILD, CACHE_VARIABLE, VARIABLE, Use, resolved_use
from traincope.native.installed import find_library, publish, why_unfit
from traincope.record.gpu.nccl import plugin_to_load

NAME = "native recorder"
PLUGIN = "NCCL plugin"
DECODER = "trace decoder"
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


def examine_plugin() -> Finding:
    """Examine whether NCCL will be given the plugin, and if not, why."""
    if nccl.plugin_use() is nccl.PluginUse.OFF:
        return ok(PLUGIN, f"off: {nccl.VARIABLE} is not `{nccl.PluginUse.ON}`")
    path, why = plugin_to_load(os.environ)
    if path is None:
        return note(PLUGIN, f"asked for, and off: {why}", do="read docs/reference/nccl-plugin.md")
    return ok(PLUGIN, f"on, if NCCL loads it: {path}; it was never seen with a real NCCL between two GPUs")


def build_native() -> Examination:
    """Compile the native code, try the recorder in a child process, and put both into the cache."""
    with tempfile.TemporaryDirectory() as directory:
        unfit = why_unfit() if find_spec("torch") else ["torch is not installed in this Python"]
        recorder = (
            ok(NAME, f"not built: {'; '.join(unfit)}") if unfit else _attempt(NAME, _build_recorder, Path(directory))
        )
        findings = (
            recorder,
            _attempt(PLUGIN, _build_plugin, Path(directory)),
            _attempt(DECODER, _build_decoder, Path(directory)),
        )
        return Examination(
            subject="the native code of this Python", sections=(Section(title="BUILD", findings=findings),)
        )


def _attempt(name: str, build: Callable[[Path], str], directory: Path) -> Finding:
    """Build in a temporary directory. `build` returns what it did."""
    try:
        return ok(name, build(directory))
    except MissingDependencyError as error:
        return note(name, f"not built: {error}", do=f"{BUILD}, once there is one")
    except TraincopeError as error:
        return bad(name, str(error), do="report it with this output; traincope records without it")
    except OSError as error:
        fact = f"not kept: {error.filename}: {error.strerror}"
        return note(name, fact, do=f"set {CACHE_VARIABLE} to a directory that you can write, and {BUILD}")


def _build_recorder(directory: Path) -> str:
    built = directory / "library.so"
    compile_library(built)
    publish(built, directory / "traincope" / "native")
    _try(directory)
    return f"built, tried and kept: {publish(built)}"


def _build_plugin(directory: Path) -> str:
    built = directory / "plugin.so"
    nccl.compile_plugin(built)
    try:
        nccl.PluginLibrary(built)
    except (OSError, AttributeError) as error:
        raise TraincopeError(f"built, but it cannot be loaded: {error}") from error
    return f"built, loaded and kept: {publish(built, name=nccl.plugin_name())}"


def _build_decoder(directory: Path) -> str:
    built = directory / "decoder.so"
    compile_decoder(built)
    try:
        decoder.DecoderLibrary(built)
    except (OSError, AttributeError) as error:
        raise TraincopeError(f"built, but it cannot be loaded: {error}") from error
    return f"built, loaded and kept: {publish(built, name=decoder.decoder_name())}"


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
