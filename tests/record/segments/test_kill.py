"""A rank killed by SIGKILL leaves every record that it began, open ones included."""

import signal
import subprocess
import sys
from pathlib import Path

from traincope.events import OPEN, Kind
from traincope.store import read_run

VICTIM = """
import os, signal, sys
import traincope

with traincope.run(sys.argv[1]) as run:
    for step in range(50):
        run.step()
        for _ in range(100):
            with traincope.span("work"):
                pass
    with traincope.span("outer"):
        with traincope.span("inner"):
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_every_record_begun_before_sigkill_survives(tmp_path: Path) -> None:
    process = subprocess.run([sys.executable, "-c", VICTIM, str(tmp_path / "run")], check=False, timeout=150)
    assert process.returncode == -signal.SIGKILL
    (rank,) = read_run(tmp_path / "run").ranks
    assert rank.info.ending is None
    assert rank.problems == ()
    records = rank.thread("main")
    spans = records[records["kind"] == Kind.SPAN]
    assert [rank.name(int(r["name"])) for r in spans[-2:]] == ["outer", "inner"]
    assert (spans["end_ns"][:-2] != OPEN).all()
    assert spans["end_ns"][-2:].tolist() == [OPEN, OPEN]
    assert len(spans) == 50 * 100 + 2
    steps = records[records["kind"] == Kind.STEP]
    assert len(steps) == 50
    assert steps["end_ns"][-1] == OPEN
