"""One case of the score: the training, its fault, and the verdict while it stands still and after its end."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from evaluation.score.cases import HANGING, LINK_CUT, RECORDINGS, Case
from traincope import analyze, open_run
from traincope.analysis import FindingKind, HangKind
from traincope.analysis.confidence import UNKNOWN
from traincope.analysis.faults.hangs.evidence.patience import open_phase, patience
from traincope.errors import TraincopeError
from traincope.inject import read_truths
from traincope.store.layout import INJECTED_FILE
from traincope.timeline import Timeline

STEPS = 150
STOPS = frozenset({FindingKind.HANG, FindingKind.STALL, FindingKind.MISMATCH})
"""Findings about a stop: a right name counts, whether it is called a stall or a hang."""
NAMING = frozenset({*STOPS, FindingKind.KILLED_RANK, FindingKind.FAILED_RANK, FindingKind.STOPPED_JOB})
"""Findings that say which rank stopped or ended a run, or that none did."""
CLEARING = frozenset({FindingKind.STOPPED_JOB.value, HangKind.NONE_COMPLETES.value})
"""Kinds that say that no rank is to blame."""
RIGHT, WRONG, NOT_KNOWN = "right", "WRONG", "unknown"
START_SECONDS = 300.0
END_SECONDS = 60.0
CUT_END_SECONDS = 5.0
"""A job without a network does not end by itself."""
ENDING_SECONDS = 2.0
GRACE_SECONDS = 10.0
"""A culprit must be named within the learned timeout and this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The first finding, if it is about a stop or an end."""

    named: tuple[int, ...] = ()
    """Empty if no rank is named."""
    kind: str = "none"
    """The hang's kind; of other findings, that of the finding."""
    is_known: bool = False
    text: str = ""
    seconds: float | None = None
    """Time from the fault to the verdict; None if it was read after the end."""
    timeout_seconds: float | None = None
    """Learned time up to which a stop does not count as a hang."""

    def score(self, case: Case) -> str:
        """Right: the culprits and the kind are those of the fault. Wrong: a name, or that no rank is to blame, although
        one is. That the job was stopped is true of a hang, which the score ends by SIGTERM.
        """
        if not self.is_known:
            return NOT_KNOWN
        if self.named == case.culprits and self.kind in case.kinds:
            return RIGHT
        if self.kind == FindingKind.STOPPED_JOB and case.fault in HANGING:
            return NOT_KNOWN
        return WRONG if self.named or self.kind in CLEARING else NOT_KNOWN

    @property
    def is_late(self) -> bool:
        if self.seconds is None or self.timeout_seconds is None:
            return False
        return self.seconds > self.timeout_seconds + GRACE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    case: Case
    directory: Path
    injected: bool
    live: Verdict | None
    """None if the job ended by itself."""
    after: Verdict

    @property
    def run(self) -> Path:
        return self.directory / "run"


def judge(case: Case, directory: Path, *, wait_seconds: float | None = None) -> Outcome:
    """Train, and read the verdict while the job stands still and after its end. `wait_seconds`: None: the case's."""
    run, live = directory / "run", None
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            _command(case, directory),
            env={**os.environ, "OMP_NUM_THREADS": "1", "TRAINCOPE_AGENT": "on", **RECORDINGS[case.recording]},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        began = _await_fault(process, run)
        if began is not None and case.fault == LINK_CUT:
            _cut(process.pid)
        if began is not None and case.fault in HANGING:
            live = _live(process, run, case, until=began + (wait_seconds or case.wait_seconds), began=began)
            process.send_signal(signal.SIGTERM)
        live = _await_end(process, run, case) or live
    finally:
        _kill_all(str(directory))
        process.wait()
    return Outcome(
        case=case,
        directory=directory,
        injected=began is not None,
        live=live,
        after=verdict(run),
    )


def _command(case: Case, directory: Path) -> list[str]:
    python, script = Path(sys.executable).parent, Path(__file__).with_name("training.py")
    # A delay of no length only writes when the step is reached.
    fault = "slow@seconds=0," if case.fault == LINK_CUT else f"{case.fault}@"
    command = [
        *(python / "traincope", "run", "--out", directory / "run"),
        *("--fault", f"{fault}rank={case.rank},step={case.step}", "--"),
        *(python / "torchrun", "--standalone", "--nproc-per-node", case.size),
        *(script, case.layout, STEPS, directory),
    ]
    own_network = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    return [*(own_network if case.fault == LINK_CUT else []), *map(str, command)]


def _cut(pid: int) -> None:
    subprocess.run(["nsenter", "--target", str(pid), "--net", "ip", "link", "set", "lo", "down"], check=True)


def _await_fault(process: subprocess.Popen[bytes], run: Path) -> float | None:
    """Instant at which the fault happened; None if it never did."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if read_truths(run / INJECTED_FILE):
            return time.monotonic()
        if process.poll() is not None:
            return None
        time.sleep(0.1)
    return None


def _kill_all(text: str) -> None:
    """Kill the processes of the case, and wait until none is left: the verdict looks at them.

    A process that ends has no command line any more, and still exists for a moment.
    """
    while subprocess.run(["pkill", "-KILL", "-f", text], check=False).returncode == 0:
        time.sleep(ENDING_SECONDS)


def _await_end(process: subprocess.Popen[bytes], run: Path, case: Case) -> Verdict | None:
    """Wait for the end. A job that should have ended by itself is read while it stands, and then ended by SIGTERM."""
    try:
        process.wait(CUT_END_SECONDS if case.fault == LINK_CUT else END_SECONDS)
    except subprocess.TimeoutExpired:
        if case.fault in HANGING:
            return None  # the caller kills it
        stood = verdict(run)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return stood
        return stood
    return None


def _live(process: subprocess.Popen[bytes], run: Path, case: Case, *, began: float, until: float) -> Verdict | None:
    """Read the verdict until it names a rank, or what else is right, or the job ended."""
    found: Verdict | None = None
    while time.monotonic() < until:
        time.sleep(1.0)
        if process.poll() is not None:
            return found
        found = replace(verdict(run), seconds=time.monotonic() - began)
        if found.score(case) != NOT_KNOWN:
            break
    return found


def verdict(run: Path) -> Verdict:
    try:
        return verdict_of(open_run(run))
    except TraincopeError as error:
        return Verdict(kind="error", text=str(error))


def verdict_of(timeline: Timeline) -> Verdict:
    analysis = analyze(timeline)
    learned, phases = patience(timeline), [open_phase(rank.main) for rank in timeline.ranks]
    timeout_seconds = max([learned.training_ns, *map(learned.of, phases)]) / 1e9
    first = next(iter(analysis.verdict), None)
    if first is None or first.kind not in NAMING:
        return Verdict(text="" if first is None else first.evidence, timeout_seconds=timeout_seconds)
    of_hang = first.kind in STOPS
    return Verdict(
        named=first.ranks,
        kind=(analysis.hangs[0].kind if of_hang else first.kind).value,
        is_known=first.confidence != UNKNOWN,
        text=first.evidence,
        timeout_seconds=timeout_seconds,
    )
