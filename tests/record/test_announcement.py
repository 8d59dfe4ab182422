"""`with traincope.run():` says on a terminal where its run is; nothing else is written there."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import traincope
for _ in range(2):
    with traincope.run() as run:
        run.step()
"""


@pytest.mark.parametrize(
    ("environment", "lines"),
    [
        ({}, 1),
        ({"TRAINCOPE_NOTES": os.devnull}, 0),
        ({"TRAINCOPE_FIRST_ATTEMPT": "0"}, 0),
        ({"TRAINCOPE": "off"}, 0),
    ],
)
def test_rank_0_names_the_next_command_once(environment: dict[str, str], lines: int, tmp_path: Path) -> None:
    """Below `traincope run` and `traincope train` it is silent: they print the outcome."""
    outer, inner = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        stderr=inner,
        env={**os.environ, "TRAINCOPE_AGENT": "off"} | environment,
    )
    os.close(inner)
    printed = b""
    while True:
        try:
            printed += os.read(outer, 4096)
        except OSError:  # the program has closed its end
            break
    os.close(outer)
    assert program.wait() == 0
    shown = printed.decode().splitlines()
    assert len(shown) == lines
    names = {run.name for run in tmp_path.glob("traincope_runs/*")}
    assert all(line.split(" traincope report ")[1] in names for line in shown)


def test_a_file_gets_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
