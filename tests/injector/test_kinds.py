"""Every fault in a real training of two ranks under torchrun: its effect, and the truth that it writes first."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from traincope.cli.launch.injecting import injecting_environment
from traincope.inject import FAULTS, Truth, read_truths
from traincope.store.layout import INJECTED_FILE

STEPS, STEP = 12, 5
HANGS = "hangs"
FAILS = "fails"
ENDS = "ends"
EFFECTS = {
    "slow": ENDS,
    "slow_gc": ENDS,
    "slow_link": ENDS,
    "missing_collective": FAILS,
    "other_collective": HANGS,
    "wrong_size": FAILS,
    "wrong_dtype": FAILS,
    "wrong_group": HANGS,
    "sleep": HANGS,
    "lock": HANGS,
    "loop": HANGS,
    "gil": HANGS,
    "sigstop": HANGS,
    "deadlock": HANGS,
    "exception": FAILS,
    "out_of_memory": FAILS,
    "sigkill": FAILS,
    "sigterm": FAILS,
    "exit_0": FAILS,
    "leave_early": FAILS,
    "nan_gradient": ENDS,
    "loss_spike": ENDS,
    "flipped_bit": ENDS,
    "disk_full": FAILS,
    "clock_jump": ENDS,
    "worker_killed": FAILS,
    "worker_stuck": HANGS,
    "checkpoint_stuck": HANGS,
    "teardown_stuck": HANGS,
    "agent_killed": ENDS,
}
"""Fault -> its effect on the job. gloo aborts on both ranks where the sizes of a collective differ."""
WATCHED_SECONDS = 5.0
"""A job that hangs is watched for so long; the steps that are left take a fraction of it."""
DEADLINE_SECONDS = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    effect: str
    output: str
    truths: tuple[Truth, ...]


def train(directory: Path, fault: str) -> Outcome:
    """Train until the job ends, or stands still after the fault."""
    directory.mkdir(parents=True, exist_ok=True)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    log, truths = directory / "log", directory / INJECTED_FILE
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*launcher, str(Path(__file__).with_name("victim.py")), str(STEPS), str(directory)],
            env={**os.environ, "OMP_NUM_THREADS": "1", **injecting_environment(fault, out=directory)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = _code(process, truths)
    finally:
        _kill(process, directory)
    effect = HANGS if code is None else FAILS if code else ENDS
    return Outcome(effect=effect, output=log.read_text(errors="replace"), truths=read_truths(truths))


def _code(process: subprocess.Popen[bytes], truths: Path) -> int | None:
    """The exit code; None if the job is still there long after the fault."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not truths.exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    try:
        return process.wait(timeout=DEADLINE_SECONDS if _ends(truths) else WATCHED_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _ends(truths: Path) -> bool:
    """True if a job with this fault ends."""
    return all(EFFECTS[truth.fault] != HANGS for truth in read_truths(truths))


def _kill(process: subprocess.Popen[bytes], directory: Path) -> None:
    """Kill torchrun first, so that it starts nothing, and then all that has its directory as an argument.

    Ranks have sessions of their own, and a worker of a loader that is stuck does not see that its rank has ended.
    """
    process.kill()
    process.wait()
    while pids := subprocess.run(["pgrep", "-f", f"{directory}$"], check=False, capture_output=True, text=True).stdout:
        for pid in map(int, pids.split()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def culprits(fault: str) -> tuple[int, ...]:
    return {"deadlock": (0, 1), "slow_link": (0, 1), "loss_spike": (), "agent_killed": ()}.get(fault, (1,))


@pytest.mark.sweep
@pytest.mark.parametrize("fault", EFFECTS)
def test_a_fault_has_its_effect_and_tells_the_truth(tmp_path: Path, fault: str) -> None:
    outcome = train(tmp_path / "job", f"{fault}@rank=1,step={STEP},seconds=0.01")
    assert outcome.effect == EFFECTS[fault], outcome.output[-4_000:]
    assert outcome.truths
    for truth in outcome.truths:
        assert (truth.fault, truth.culprits, truth.step) == (fault, culprits(fault), STEP)
    if outcome.effect == ENDS:
        for rank in (0, 1):
            assert f"rank {rank} step {STEPS - 1} " in outcome.output


def test_every_fault_is_tried() -> None:
    assert set(EFFECTS) == set(FAULTS)


@pytest.mark.sweep
def test_of_two_faults_both_tell_the_truth(tmp_path: Path) -> None:
    outcome = train(tmp_path / "job", f"slow@rank=0,step=2,seconds=0.01+exception@rank=1,step={STEP}")
    assert outcome.effect == FAILS
    assert [(truth.fault, truth.rank, truth.step) for truth in outcome.truths] == [("slow", 0, 2), ("exception", 1, 5)]


@pytest.mark.sweep
def test_a_slow_rank_and_a_flipped_bit_tell_the_truth_and_the_bit_stays_on_its_rank(tmp_path: Path) -> None:
    last = STEPS - 1
    outcome = train(tmp_path / "job", f"slow@rank=1,step={STEP},seconds=0.01+flipped_bit@rank=1,step={last}")
    assert outcome.effect == ENDS
    truths = [(truth.fault, truth.culprits, truth.step) for truth in outcome.truths]
    assert truths == [("slow", (1,), STEP), ("flipped_bit", (1,), last)]
    values = {line.split()[1]: float(line.split()[3]) for line in outcome.output.splitlines() if " values " in line}
    assert values["0"] != values["1"]
