"""The compilation of native code. That of the recorder, for this torch, takes 10 to 20 seconds of CPU time."""

import os
import shutil
import subprocess
from pathlib import Path

from traincope.errors import MissingDependencyError, TraincopeError
from traincope.native.decoder import DECODER_SOURCES
from traincope.native.installed import SOURCES

COMPILER_VARIABLE = "CXX"
COMPILERS = ("g++", "c++", "clang++")
MAX_SECONDS = 600
LAST_LINES = 12


def find_compiler() -> str | None:
    """The compiler of $CXX, otherwise the first one on the path."""
    chosen = os.environ.get(COMPILER_VARIABLE)
    return next((path for name in ((chosen,) if chosen else COMPILERS) if (path := shutil.which(name))), None)


def compile_library(out: Path) -> None:
    """Compile the sources to a library.

    Raises MissingDependencyError without a compiler, TraincopeError if it fails.
    """
    compile_with_torch(SOURCES / "library.cpp", out, "-shared", "-fvisibility=hidden", "-s")


def compile_decoder(out: Path) -> None:
    """Compile the decoder of traces. Raises as `compile_library`."""
    compile_sources(DECODER_SOURCES / "decoder.cpp", out, "-O3", "-shared", "-fvisibility=hidden", "-s")


def compile_with_torch(source: Path, out: Path, *options: str) -> None:
    """Compile a source that uses torch's headers, and link it with torch's libraries. Raises as `compile_library`."""
    import torch

    place = Path(torch.__file__).parent
    compile_sources(
        source,
        out,
        *options,
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *("-isystem", str(place / "include"), "-isystem", str(place / "include/torch/csrc/api/include")),
        *(f"-L{place / 'lib'}", "-lc10", "-ltorch_cpu"),
    )


def compile_sources(source: Path, out: Path, *options: str) -> None:
    """Compile a source. Raises as `compile_library`."""
    compiler = find_compiler()
    if compiler is None:
        raise MissingDependencyError("no C++ compiler is on the path; install g++ 12 or newer, or name one by $CXX")
    command = [compiler, "-std=c++20", "-O2", "-fPIC", str(source), "-o", str(out), *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=MAX_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TraincopeError(f"{compiler}: {error}") from error
    if done.returncode:
        raise TraincopeError("\n".join([f"{compiler} failed:", *done.stderr.strip().splitlines()[-LAST_LINES:]]))
