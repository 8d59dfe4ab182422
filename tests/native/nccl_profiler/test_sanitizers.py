"""The plugin under sanitizers, while three versions of the interface record and segments come and go."""

import subprocess
from pathlib import Path

import pytest

from tests.native.test_sanitizers import compiled
from traincope.native.build import find_compiler
from traincope.native.nccl import PLUGIN_SOURCES

PROGRAM = Path(__file__).parent / "stress.cpp"
OPTIONS = ("-fno-strict-aliasing", f"-I{PLUGIN_SOURCES}", str(PLUGIN_SOURCES / "plugin.cpp"))


@pytest.mark.sweep
@pytest.mark.timeout(600)
@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler is installed")
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_threads_of_nccl_while_segments_are_freed(tmp_path: Path, sanitizer: str) -> None:
    (tmp_path / "empty.cpp").write_text("int main() {}")
    if compiled(tmp_path / "empty.cpp", tmp_path / "empty", sanitizer).returncode:
        pytest.skip(f"this compiler has no {sanitizer} sanitizer")
    built = compiled(PROGRAM, tmp_path / "stress", sanitizer, *OPTIONS)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(tmp_path / "stress")], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
