"""The watchdog on real processes: when it looks, what it sees, and the culprit that it names."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import traincope
from evaluation.score import training
from tests.live.processes import DEADLINE_SECONDS, agents_of, start_rank, until
from tests.live.recorded import rank_of
from traincope.analysis.context import Context
from traincope.analysis.faults.faults import FaultKind
from traincope.analysis.faults.hangs.evidence.patience import FLOOR_NS, MULTIPLE
from traincope.analysis.faults.hangs.hangs import hangs
from traincope.analysis.faults.stacks import interrupted_thread
from traincope.events import Kind, Phase
from traincope.live.node.noticing import looking
from traincope.live.node.noticing.looking import Subject, look_at_ranks
from traincope.live.node.noticing.watchdog import Watchdog
from traincope.live.node.rank import RankTail
from traincope.store.job.hang_notices import HangNotice, append_notice, read_notices
from traincope.store.job.looks import read_looks
from traincope.store.job.manifests import read_rank_info
from traincope.store.layout import AGENT_LOG, LOOKS_FILE, METRICS_FILES
from traincope.store.segments.segments import RECORD_DTYPE
from traincope.store.side_tables.rows import Row
from traincope.timeline import open_run

S = 1_000_000_000
STEP_NS = 10_000_000


def rows(*, wall_ns: int = STEP_NS) -> list[Row]:
    return [
        Row(rank=0, step=step, start_ns=step * S, wall_ns=wall_ns, terms={}, own_ns=0, anomalous=False)
        for step in range(5)
    ]


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of one rank, whose process is stopped in the middle of its training."""
    folder = tmp_path_factory.mktemp("stopped")
    out = folder / "run"
    with running(out, folder / "stop") as process:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        yield out


@pytest.fixture
def stopped(stopped_run: Path, tmp_path: Path) -> RankTail:
    """The stopped rank, in a copy of its run."""
    return RankTail(rank_of(shutil.copytree(stopped_run, tmp_path / "run")), attempt=0)


@contextmanager
def running(out: Path, stop: Path, *, with_torch: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """The process of a rank that has recorded some steps."""
    process = start_rank(out, stop, rank=0, ranks=1, with_torch=with_torch, TRAINCOPE_AGENT="off")
    try:
        until(lambda: (rank_of(out) / "main-00000.seg").exists(), "its records")
        tail = RankTail(rank_of(out), attempt=0)
        until(lambda: tail.position()[1] > 50, "some steps")
        yield process
    finally:
        process.kill()
        process.communicate()


def watchdog(tail: RankTail, *, wall_ns: int = STEP_NS, looks: bool = True) -> Watchdog:
    """One that has learned from five steps."""
    made = Watchdog(tail.directory.parents[1], looks=looks)
    made.learn(rows(wall_ns=wall_ns), warm_up=0)
    return made


def test_it_looks_when_the_job_stands_still_for_longer_than_its_steps_explain(stopped: RankTail) -> None:
    dog = watchdog(stopped, wall_ns=3 * S)
    stopped.read(now_ns=0)
    last_ns, patience_ns = stopped.last_record_ns, 3 * S * MULTIPLE
    dog.look([stopped], now_ns=last_ns + patience_ns - 1)
    assert read_looks(stopped.directory) == ()
    dog.look([stopped], now_ns=last_ns + patience_ns)
    (look,) = read_looks(stopped.directory)
    assert (look.state, look.by_agent) == ("T", True)
    dog.look([stopped], now_ns=last_ns + 2 * patience_ns - 1)
    assert len(read_looks(stopped.directory)) == 1
    dog.look([stopped], now_ns=last_ns + 2 * patience_ns)
    assert len(read_looks(stopped.directory)) == 2


def test_garbage_collection_and_the_recorders_own_events_are_no_progress(stopped: RankTail) -> None:
    stopped.read(now_ns=0)
    stood_ns = stopped.last_record_ns
    collected = np.zeros(3, dtype=RECORD_DTYPE)
    collected["kind"], collected["phase"] = (Kind.CLOCK, Kind.PHASE, Kind.EVENT), (0, Phase.GC, 0)
    collected["start_ns"] = collected["end_ns"] = stood_ns + 4 * S
    stopped._count_records(collected)
    assert (stopped.last_record_ns, stopped.last_progress_ns) == (stood_ns + 4 * S, stood_ns)
    dog = watchdog(stopped)
    dog.look([stopped], now_ns=stood_ns + 6 * S)
    assert dog._stop is not None


def test_before_it_has_learned_it_waits_ten_minutes(stopped: RankTail) -> None:
    dog = Watchdog(stopped.directory.parents[1], looks=True)
    stopped.read(now_ns=0)
    dog.look([stopped], now_ns=stopped.last_record_ns + 599 * S)
    assert read_looks(stopped.directory) == ()
    dog.look([stopped], now_ns=stopped.last_record_ns + 601 * S)
    assert len(read_looks(stopped.directory)) == 1


class SlowToSave:
    def __reduce__(self) -> tuple[type, tuple[()]]:
        time.sleep(0.3)
        return SlowToSave, ()


def test_it_learns_from_the_events_that_ranks_hold_how_long_a_pause_takes(tmp_path: Path) -> None:
    """One of the steps stands in a checkpoint for 0.3 s. The next checkpoint has 30 s instead of ten minutes,
    and the steps keep their own limit, unless a busy machine needs more.
    """
    with traincope.run(tmp_path / "run", agent=False) as run:
        began_ns = time.monotonic_ns()
        for number in range(5):
            if number == 2:
                torch.save(SlowToSave(), tmp_path / "checkpoint.pt")
            run.step()
        whole_ns = time.monotonic_ns() - began_ns
    tail = RankTail(rank_of(tmp_path / "run"), attempt=0)
    tail.read(now_ns=0)
    dog = Watchdog(tmp_path / "run", looks=False)
    dog.learn(rows(wall_ns=S // 3)[:4], warm_up=0, tails=[tail])
    step_ns, pause_ns = max(dog._patience.steps_ns), dog._patience.pauses_ns[Phase.CHECKPOINT_STALL]
    assert pause_ns >= 3 * S // 10
    assert step_ns + pause_ns < whole_ns
    assert dog._patience.of(Phase.CHECKPOINT_STALL) == max(30 * S, MULTIPLE * pause_ns, MULTIPLE * step_ns)
    assert dog._patience.of(None) == max(5 * S, MULTIPLE * step_ns)


def test_a_second_reader_never_looks_and_judges_what_the_agent_saw(stopped: RankTail) -> None:
    dog, judged = watchdog(stopped, looks=False), []
    dog._ask_analysis = lambda: judged.append(1) or {}  # type: ignore[method-assign,func-returns-value]
    stopped.read(now_ns=0)
    for more_ns in (6 * S, 7 * S):
        dog.look([stopped], now_ns=stopped.last_record_ns + more_ns)
    assert (read_looks(stopped.directory), judged) == ((), [])
    watchdog(stopped).look([stopped], now_ns=stopped.last_record_ns + 6 * S)
    for more_ns in (8 * S, 9 * S):
        dog.look([stopped], now_ns=stopped.last_record_ns + more_ns)
    assert judged == [1]


def test_between_two_looks_it_notices_silence_once(stopped: RankTail) -> None:
    dog = watchdog(stopped)
    assert [dog.notices([stopped], now_ns=at_ns) for at_ns in (S, FLOOR_NS, S + FLOOR_NS, 3 * FLOOR_NS)] == [
        False,
        False,
        True,
        False,
    ]


def test_the_number_of_events_is_found_by_probes(stopped: RankTail) -> None:
    stopped.read(now_ns=0)
    assert stopped.position() == (0, stopped.num_records)


def test_a_rank_that_ended_is_not_looked_at(tmp_path: Path) -> None:
    """Its process is this one, which runs on."""
    with traincope.run(tmp_path / "run") as run:
        run.step()
    tail = RankTail(rank_of(tmp_path / "run"), attempt=0)
    tail.read(now_ns=0)
    assert watchdog(tail).look([tail], now_ns=tail.last_record_ns + 3_600 * S) == ()
    assert not (tail.directory / LOOKS_FILE).exists()


def test_a_rank_writes_its_stacks_when_asked_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take its time: without an answer, its stacks would be read from outside."""
    monkeypatch.setattr(looking, "LOCKED_SECONDS", DEADLINE_SECONDS)
    out, stop = tmp_path / "run", tmp_path / "stop"
    with running(out, stop, with_torch=True) as process:
        for _ in range(3):
            (look,) = look_at_ranks(
                [Subject(directory=rank_of(out), info=read_rank_info(rank_of(out)))], with_stacks=True
            ).values()
            assert look.stack.count('File "<string>", line ') == 1
            assert look.stack.count("Current thread") == 1
            assert "traincope/record/process/flight.py" in interrupted_thread(look.stack)[0].path  # with Python's lock
        stop.touch()
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors


BUSY = """
import json, sys, threading, time
from pathlib import Path
import traincope
def work(depth=40):
    while depth == 40:
        json.dumps([{"a": work(depth - 1)}], indent=1)
    return depth and work(depth - 1)
with traincope.run(sys.argv[1]) as run:
    run.step()
    for _ in range(3):
        threading.Thread(target=work, daemon=True).start()
    print("ready", flush=True)
    while not Path(sys.argv[2]).exists():
        time.sleep(0.01)
"""
"""A run with threads whose frames change all the time."""


def test_threads_that_run_survive_the_reading_of_their_stacks(tmp_path: Path) -> None:
    """A thread of the process writes them, with Python's lock. The handler of a signal has no lock: five signals ended
    this process.
    """
    out, stop = tmp_path / "run", tmp_path / "stop"
    with subprocess.Popen([sys.executable, "-c", BUSY, str(out), str(stop)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            subject = Subject(directory=rank_of(out), info=read_rank_info(rank_of(out)))
            for _ in range(15):
                (look,) = look_at_ranks([subject], with_stacks=True).values()
                assert "in work" in look.stack
        finally:
            stop.touch()
        assert process.wait(timeout=100) == 0


def test_a_process_that_does_not_handle_the_signal_does_not_get_it(tmp_path: Path) -> None:
    """The file of stacks is left over from an earlier process of the number."""
    with traincope.run(tmp_path / "run") as run:
        run.step()
    directory = rank_of(tmp_path / "run")
    (directory / "stacks.txt").touch()
    before = signal.signal(signal.SIGURG, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGURG])
    try:
        (look,) = look_at_ranks(
            [Subject(directory=directory, info=read_rank_info(directory))], with_stacks=True, by_signal=True
        ).values()
        assert signal.SIGURG not in signal.sigpending()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGURG])
        signal.signal(signal.SIGURG, before)
    assert look.state == "R"
    assert (directory / "stacks.txt").read_bytes() == b""


@pytest.mark.sweep
@pytest.mark.parametrize("fault", ["sleep", "gil", "sigstop"])
def test_the_agent_names_the_culprit_while_the_job_hangs(tmp_path: Path, fault: str) -> None:
    """A real DDP training of two ranks stands still: the log, the metrics and the command name rank 1 and its line."""
    out, bin_directory = tmp_path / "run", Path(sys.executable).parent
    command = [
        *(bin_directory / "traincope", "run", "--out", out, "--fault", f"{fault}@rank=1,step=40", "--"),
        *(bin_directory / "torchrun", "--standalone", "--nproc-per-node", 2, training.__file__, "ddp", 150, tmp_path),
    ]
    variables = {
        "TRAINCOPE_METRICS": "127.0.0.1:0",
        "TRAINCOPE_BUDGET": "0.01",
        "TRAINCOPE_AGENT": "on",
        "TRAINCOPE_AGENT_INTERVAL": "0.5",
        "TRAINCOPE_AGENT_SHARE": "1",
    }
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            list(map(str, command)),
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        kind = "stall" if fault == "sleep" else "hang"
        until(lambda: f"{kind}: " in agent_log(out) or process.poll() is not None, "the watchdog")
        assert f"{kind}: rank 1 " in agent_log(out), agent_log(out)
        looks = read_looks(rank_of(out, 1))
        assert looks[0].state == ("T" if fault == "sigstop" else "S")
        answer = json.loads(
            subprocess.run(
                [bin_directory / "traincope", "hang", out, "--format", "json"], check=True, capture_output=True
            ).stdout
        )
        (hang,) = answer["hangs"]
        assert (hang["culprits"], hang["victims"]) == ([1], [0])
        assert hang["detected_after_seconds"] > 0
        assert (hang["call_site"] is None) == (fault == "sigstop")
        until(lambda: is_counted(scraped(out), kind), "the metric")
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=100)
        assert f"traincope: {kind} on rank 1" in (tmp_path / "log").read_text()
    finally:
        subprocess.run(["pkill", "-KILL", "-f", str(tmp_path)], check=False)
        process.wait()
    until(lambda: not agents_of(out), "the agent's end")


def is_counted(series: str, kind: str) -> bool:
    return any(
        f'kind="{kind}"' in line and 'rank="1"' in line and line.endswith(" 1.0") for line in series.splitlines()
    )


def agent_log(out: Path) -> str:
    return "".join(path.read_text() for path in out.glob(f"attempt-000/rank-*/{AGENT_LOG}"))


def scraped(out: Path) -> str:
    """The series of faults that the agent serves."""
    (path,) = out.glob(METRICS_FILES)
    with urllib.request.urlopen(json.loads(path.read_text())["prometheus"]) as response:
        lines = response.read().decode().splitlines()
    return "\n".join(line for line in lines if line.startswith("traincope_faults_total"))


def test_the_fault_of_a_hang_has_its_culprits(caplog: pytest.LogCaptureFixture, stopped: RankTail) -> None:
    """An unknown culprit first, and a known one at the next look: both are reported, each once."""
    hang = {
        "kind": "unknown",
        "state": "hang",
        "cannot_go_on": None,
        "culprits": [],
        "since": 5,
        "step": 3,
        "evidence": "ranks 0, 1 made no progress",
        "confidence": "unknown",
        "lasted_ns": 6 * S,
    }
    named = {**hang, "kind": "stuck", "culprits": [1], "evidence": "rank 1 stood at train.py:9", "confidence": "high"}
    dog, answers = watchdog(stopped), [hang, hang, named, named]
    dog._ask_analysis = lambda: {"hangs": [answers.pop(0)], "verdict": [{"advice": "Look."}]}  # type: ignore[method-assign]
    stopped.read(now_ns=0)
    with caplog.at_level(logging.WARNING):
        found = [dog.look([stopped], now_ns=stopped.last_record_ns + at_s * S) for at_s in (6, 12, 24, 48)]
    assert [[fault.ranks for fault in faults] for faults in found] == [[()], [], [(1,)], []]
    assert {fault.kind for faults in found for fault in faults} == {FaultKind.HANG}
    assert caplog.messages == ["hang: ranks 0, 1 made no progress. Look.", "hang: rank 1 stood at train.py:9. Look."]


def test_the_fault_of_a_lost_host_has_the_ranks_of_the_host(stopped: RankTail) -> None:
    """First no record shows the ranks of the other host, then its silence is long enough."""
    hang = {
        "kind": "unknown",
        "state": "hang",
        "cannot_go_on": None,
        "culprits": [],
        "suspects": [2],
        "since": 5,
        "step": 3,
        "evidence": "it left no records",
        "confidence": "unknown",
        "lasted_ns": 6 * S,
    }
    lost = {**hang, "kind": "lost_host", "suspects": [2, 3], "evidence": "host b was lost", "confidence": "medium"}
    dog, answers = watchdog(stopped), [hang, lost, lost]
    dog._ask_analysis = lambda: {"hangs": [answers.pop(0)], "verdict": [{"advice": "Check b."}]}  # type: ignore[method-assign]
    stopped.read(now_ns=0)
    found = [dog.look([stopped], now_ns=stopped.last_record_ns + at_s * S) for at_s in (6, 12, 24)]
    assert [[(fault.kind, fault.ranks) for fault in faults] for faults in found] == [
        [(FaultKind.HANG, ())],
        [(FaultKind.LOST_HOST, (2, 3))],
        [],
    ]


def test_an_earlier_answer_is_no_evidence(stopped: RankTail) -> None:
    """Nothing was seen of this rank. The command reads the notice back, and the agent does not."""
    since_ns = time.time_ns()
    hang = {"kind": "stuck", "since": since_ns, "lasted_ns": S, "step": 3, "evidence": "it stood", "confidence": "high"}
    unknown = dict.fromkeys(("host", "group", "axis", "collective", "call_site", "doing", "detected_after_seconds"))
    judged = {**hang, **unknown, "victims": [], "stack": []}
    run = stopped.directory.parents[1]
    append_notice(run, HangNotice(attempt=0, at_wall_ns=since_ns + S, culprits=(0,), sentence="", judged=judged))
    timeline = open_run(run)
    assert [each.culprits for each in hangs(timeline, Context(timeline).instances, ())] == [(0,)]
    assert watchdog(stopped)._ask_analysis()["hangs"] == []


ANNOUNCED = (
    ({"kind": "lost_host", "culprits": [], "suspects": [2], "lasted_ns": 6 * S}, True),
    ({"culprits": [1], "lasted_ns": 6 * S}, True),
    ({"culprits": [1], "lasted_ns": None}, False),  # a mismatch in a run that goes on
    ({"culprits": [], "lasted_ns": 59 * S}, False),
    ({"culprits": [], "lasted_ns": 60 * S}, True),
)


STOOD: dict[str, Any] = {
    "kind": "stuck",
    "state": "hang",
    "cannot_go_on": None,
    "since": 5,
    "step": 3,
    "evidence": "it stood",
    "confidence": "medium",
}


def answering(dog: Watchdog, *hangs: dict[str, Any]) -> Watchdog:
    """The watchdog whose analysis answers so, one answer per call."""
    answers = list(hangs)
    other = {"verdict": [{"advice": "Look."}], "next_step": 3}
    dog._ask_analysis = lambda: {"hangs": [answers.pop(0)], **other}  # type: ignore[method-assign]
    return dog


def test_a_stall_that_becomes_a_hang_is_reported_and_announced_as_both(stopped: RankTail) -> None:
    stopped.read(now_ns=0)
    stall = {**STOOD, "state": "stall", "culprits": [0], "lasted_ns": 6 * S}
    hang = {**stall, "state": "hang", "lasted_ns": 62 * S}
    dog = answering(watchdog(stopped), stall, stall, hang, hang)
    found = [dog.look([stopped], now_ns=stopped.last_record_ns + at_s * S) for at_s in (6, 12, 62, 124)]
    assert [[fault.kind for fault in faults] for faults in found] == [[FaultKind.STALL], [], [FaultKind.HANG], []]
    notices = read_notices(stopped.directory.parents[1])
    assert [(notice.state, notice.ends_job) for notice in notices] == [("stall", False), ("hang", False)]


@pytest.mark.parametrize(
    ("hang_seconds", "cannot_go_on", "ends_at_s"),
    [
        (None, "its process is stopped", 310),
        (None, None, None),
        (20.0, None, 24),
        (600.0, "its process is stopped", None),
    ],
)
def test_only_a_long_stop_with_evidence_or_a_time_of_the_user_ends_the_job(
    stopped: RankTail, hang_seconds: float | None, cannot_go_on: str | None, ends_at_s: int | None
) -> None:
    stopped.read(now_ns=0)
    dog, seconds = watchdog(stopped), (6, 12, 24, 62, 124, 248, 310)
    dog._patience = replace(dog._patience, hang_seconds=hang_seconds)
    made = {**STOOD, "culprits": [0], "cannot_go_on": cannot_go_on}
    answering(dog, *({**made, "lasted_ns": at_s * S} for at_s in seconds))
    ended_at = []
    for at_s in seconds:
        dog.look([stopped], now_ns=stopped.last_record_ns + at_s * S)
        if any(notice.ends_job for notice in read_notices(stopped.directory.parents[1])):
            ended_at.append(at_s)
    assert next(iter(ended_at), None) == ends_at_s


def test_the_end_of_an_announced_stop_is_announced_with_its_length(stopped: RankTail) -> None:
    """The next phase of the culprit begins 30 s after its last record. Garbage collection is no progress."""
    stopped.read(now_ns=0)
    stood_ns = stopped.last_progress_ns
    dog = answering(watchdog(stopped), {**STOOD, "state": "stall", "culprits": [0], "lasted_ns": 6 * S})
    assert len(dog.look([stopped], now_ns=stood_ns + 6 * S)) == 1
    new = np.zeros(2, dtype=RECORD_DTYPE)
    new["kind"], new["phase"], new["end_ns"] = Kind.PHASE, (Phase.GC, Phase.FORWARD), -1
    new["start_ns"] = stood_ns + 20 * S, stood_ns + 30 * S
    for tail in stopped.segments.values():
        tail.records = np.concatenate([tail.records, new])
    stopped._count_records(new)
    assert dog.look([stopped], now_ns=stood_ns + 31 * S) == ()
    first, over = read_notices(stopped.directory.parents[1])
    assert (first.state, over.state, over.culprits) == ("stall", "over", (0,))
    assert (over.judged["lasted_ns"], over.sentence) == (30 * S, "over: rank 0 went on after 30.0 s")


def test_a_culprit_that_is_known_later_is_announced_too(stopped: RankTail) -> None:
    """Copies of other hosts' looks arrive late. The report takes the answer from the notice."""
    stopped.read(now_ns=0)
    seen = {**STOOD, "state": "hang"}
    unnamed, named = ({**seen, "culprits": culprits, "lasted_ns": 60 * S} for culprits in ([], [1]))
    dog, answers = watchdog(stopped), [unnamed, unnamed, named, named, unnamed]
    other = {"verdict": [{"advice": "Look."}], "next_step": 3}
    dog._ask_analysis = lambda: {"hangs": [answers.pop(0)], **other}  # type: ignore[method-assign]
    for at_s in (6, 12, 24, 48, 96):
        dog.look([stopped], now_ns=stopped.last_record_ns + at_s * S)
    notices = read_notices(stopped.directory.parents[1])
    assert [(notice.culprits, notice.next_step) for notice in notices] == [((), 3), ((1,), 3)]


def test_a_settled_hang_is_announced_once(stopped: RankTail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the command that may end the job, and to Kubernetes. A second reader announces nothing."""
    message = tmp_path / "message"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("TRAINCOPE_TERMINATION_LOG", str(message))
    stopped.read(now_ns=0)
    written = 0
    for hang, announced in ANNOUNCED:
        message.write_text("")
        seen = {**STOOD, **hang}
        for looks in (True, False):
            dog = watchdog(stopped, looks=looks)
            dog._ask_analysis = lambda seen=seen: {"hangs": [seen], "verdict": [{"advice": "Look."}]}  # type: ignore[method-assign,misc]
            for at_s in (6, 12, 24):
                dog.look([stopped], now_ns=stopped.last_record_ns + at_s * S)
        written += announced
        assert message.read_text() == "traincope: hang: it stood. Look.\n" * announced
        notices = read_notices(stopped.directory.parents[1])
        assert len(notices) == written
        assert all(notice.judged["evidence"] == "it stood" for notice in notices)
