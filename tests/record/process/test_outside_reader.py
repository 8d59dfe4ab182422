"""Which process a rank allows to read it: the shell that waits for the node's agent, and no other."""

import os
import re
import subprocess
from pathlib import Path

from tests.debian import need
from tests.live.processes import WITHOUT_TORCH, agents_of, until
from tests.security.traced import TWO_RANKS

TRAINING = f"""{WITHOUT_TORCH}
import os
import time
import traincope
from traincope.record.session.agent import supervisor_of
from traincope.store.job.process import children_of_all
def is_agent(pid):  # not yet, if it is a fork of the shell
    return b"traincope.cli.commands.agent" in open(f"/proc/{{pid}}/cmdline", "rb").read()
with traincope.run(sys.argv[1]) as run:
    run.step()
    while (supervisor := supervisor_of(run.place)) is None or not any(
        is_agent(child) for child in children_of_all().get(supervisor.pid, ())
    ):
        time.sleep(0.01)
    os.write(1, f"{{supervisor.pid}}\\n".encode())  # a print may be two writes, and the other rank's come between
    time.sleep(1.1)  # what a rank does now and then, it does after a second
    run.step()
"""


def test_every_rank_names_the_parent_of_the_agent_once(tmp_path: Path) -> None:
    """Without yama the kernel refuses the call, so strace shows it with its error."""
    script, log = tmp_path / "train.py", tmp_path / "log"
    script.write_text(TRAINING)
    sizes = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "TRAINCOPE_AGENT": "on"}
    strace = [need("strace", package="strace"), "-f", "--seccomp-bpf", "-e", "prctl", "-o", log]
    done = subprocess.run(
        [*strace, *TWO_RANKS, script, tmp_path / "run"],
        env={**os.environ, **sizes},
        check=True,
        capture_output=True,
        text=True,
        timeout=200,
    )
    (printed,) = set(done.stdout.splitlines())
    named = re.findall(r"prctl\(PR_SET_PTRACER, (\d+)", log.read_text())
    assert named == [printed] * 2
    until(lambda: not agents_of(tmp_path / "run"), "the agent's end")
