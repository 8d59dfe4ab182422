"""The reason why the process that cuts the tiles ended is named, also if it ended before the analysis.

Each case runs in a process of its own, because only a process without other threads forks.
"""

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[3] / "sample_runs" / "demo"
PREPARE = """
import os, signal, sys
from pathlib import Path
from traincope.errors import TraincopeError
from traincope.executors import start_method
from traincope.viewer.library import preparing

def end(*_, **__):
    {end}

assert start_method() == "fork"
preparing.write_tiles = end if {replaced} else preparing.write_tiles
try:
    preparing.prepare(Path(sys.argv[1]), Path(sys.argv[2]))
except TraincopeError as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("", "RunDirectoryError: cannot write {tiles}: Not a directory; set XDG_CACHE_HOME to a writable directory"),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            "DataError: a process that worked on the run was killed, perhaps because memory ran out",
        ),
        (
            "raise PermissionError(13, 'Permission denied', os.fspath(Path(sys.argv[1], 'attempt-000')))",
            "UnreadableError: cannot read {run}/attempt-000: Permission denied; check its mode and disk",
        ),
    ],
)
def test_the_end_of_the_cutting_process_is_named(tmp_path: Path, end: str, message: str) -> None:
    (tmp_path / "file").touch()
    tiles = tmp_path / "file" / "tiles"
    code = PREPARE.format(end=end or "pass", replaced=bool(end))
    ran = subprocess.run([sys.executable, "-c", code, DEMO, tiles], capture_output=True, text=True, timeout=200)
    assert (ran.stdout, ran.stderr) == (f"{message.format(tiles=tiles, run=DEMO)}\n", "")
