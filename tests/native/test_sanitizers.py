"""The library under sanitizers: its data, while threads record and segments come and go, and its kernels in torch."""

import subprocess
from pathlib import Path

import pytest
import torch

from tests.native.instructions import SOURCE
from traincope.native.build import compile_with_torch, find_compiler
from traincope.native.installed import SOURCES

PROGRAM = Path(__file__).parent / "stress.cpp"


def compiled(source: Path, out: Path, sanitizer: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(find_compiler()), "-std=c++20", "-O1", "-g", f"-fsanitize={sanitizer}", "-pthread", *options]
    return subprocess.run([*command, f"-I{SOURCES}", str(source), "-o", str(out)], capture_output=True, text=True)


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler is installed")
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_threads_that_record_while_segments_are_freed(tmp_path: Path, sanitizer: str) -> None:
    (tmp_path / "empty.cpp").write_text("int main() {}")
    if compiled(tmp_path / "empty.cpp", tmp_path / "empty", sanitizer).returncode:
        pytest.skip(f"this compiler has no {sanitizer} sanitizer")
    built = compiled(PROGRAM, tmp_path / "stress", sanitizer)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(tmp_path / "stress")], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.sweep  # its compilation takes a minute
@pytest.mark.timeout(900)
@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler is installed")
def test_kernels_in_torch_touch_no_foreign_memory_and_leak_none(tmp_path: Path) -> None:
    """Collectives with callbacks, and waits for them. torch itself is not instrumented."""
    program = tmp_path / "kernels"
    sanitize = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1")
    libraries = Path(torch.__file__).parent / "lib"
    compile_with_torch(SOURCE, program, *sanitize, "-DWITHOUT_CALLGRIND", f"-I{SOURCES}", f"-Wl,-rpath,{libraries}")
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
