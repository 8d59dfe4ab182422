"""The decoder of traces under sanitizers, with texts that are cut and changed at random."""

import subprocess
from pathlib import Path

import pytest

from tests.native.test_sanitizers import compiled
from traincope.native.build import find_compiler
from traincope.native.decoder import DECODER_SOURCES

PROGRAM = Path(__file__).parent / "mutated.cpp"
SANITIZERS = "address,undefined"


@pytest.mark.sweep
@pytest.mark.timeout(300)
@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler is installed")
def test_changed_texts_are_read_inside_their_bounds(tmp_path: Path) -> None:
    (tmp_path / "empty.cpp").write_text("int main() {}")
    if compiled(tmp_path / "empty.cpp", tmp_path / "empty", SANITIZERS).returncode:
        pytest.skip(f"this compiler has no {SANITIZERS} sanitizer")
    built = compiled(PROGRAM, tmp_path / "mutated", SANITIZERS, f"-I{DECODER_SOURCES}")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(tmp_path / "mutated")], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
