"""Watchdog: notices that the job stands still, looks at the ranks' processes, and lets the hang analysis judge.

It runs in the agent, so a training that hangs with Python's lock held does not stop it. How long a job may stand still
is learned from its own steps and pauses. The ranks are asked for their stacks once per stop; then their processes are
looked at again whenever the stop has lasted twice as long. The analysis reads the whole run, so it runs in a process of
its own.
"""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from traincope.analysis.faults.faults import Fault
from traincope.analysis.faults.hangs.evidence.patience import (
    FLOOR_NS,
    UNSEEN_NS,
    Patience,
    given_seconds,
    lengths_without_pauses,
    open_phase,
    pauses,
)
from traincope.analysis.faults.hangs.hang import HangKind, fault_kind
from traincope.analysis.faults.hangs.noticed import announced, in_brief
from traincope.errors import TraincopeError
from traincope.live.node.noticing.looking import Subject, look_at_ranks
from traincope.live.node.rank import RankTail, over
from traincope.live.termination_log import write_termination_message
from traincope.record.session.identity import this_host
from traincope.store.job.hang_notices import HangNotice, StopState, append_notice, read_notices
from traincope.store.job.looks import append_look
from traincope.store.job.manifests import read_run_info
from traincope.store.job.witness import compared_directory
from traincope.store.layout import LOOKS_FILE, WITNESS_DIRECTORY, attempt_directory
from traincope.store.segments.segments import first_begun_ns
from traincope.store.side_tables.rows import Row
from traincope.units import duration

logger = logging.getLogger(__name__)

PROGRAM = "import sys; sys.path.append(sys.argv.pop(1)); from traincope.cli.main import main; main()"
"""traincope comes last on the path: files next to it must not hide modules of the interpreter."""
PACKAGES = Path(__file__).parents[3]
JUDGE_SECONDS = 120.0
MAX_COMPARED_TRIES = 5
"""Analyses of a mismatch between hosts, if they fail."""
END_NS = 300_000_000_000
"""Length from which a stop that cannot end by itself ends the job (`--on-hang=exit`), unless the user sets another."""
MAX_STOPS = 100
"""Stops of one attempt at which ranks are asked for their stacks. Each answer takes some kilobytes on disk."""


class Watchdog:
    """Watchdog of one attempt on this node."""

    def __init__(self, run: Path, *, attempt: int = 0, looks: bool) -> None:
        """`looks`: look at the processes, and announce a hang. Otherwise another agent does, and this one only judges
        what it saw.
        """
        self._run, self._attempt, self._looks = run, attempt, looks
        self._patience = Patience(hang_seconds=_given_seconds(run))
        self._stop: _Stop | None = None
        self._num_stops = 0
        self._num_bytes = self._others_bytes = 0
        attempt_path = attempt_directory(run, attempt)
        self._seen_by_others, self._compared = (
            attempt_path / WITNESS_DIRECTORY,
            compared_directory(attempt_path, this_host()),
        )
        self._has_judged_compared, self._compared_tries = False, 0
        self._positions: list[tuple[int, int]] = []
        self._quiet_since_ns = self._noticed_ns = 0

    def learn(self, rows: Iterable[Row], *, warm_up: int | None, tails: Iterable[RankTail] = ()) -> None:
        """Learn from finished steps how long a step and its pauses may take. `tails`: ranks that still hold the events
        of these steps; of other ranks a step counts with its pauses.
        """
        lengths = {(row.rank, row.step): row.wall_ns for row in rows if row.merged is None and row.step != warm_up}
        for tail in tails:
            main, finished = tail.main(), tail.finished_steps()
            new = finished[np.array([(tail.rank, step) in lengths for step in finished["step"].tolist()], dtype=bool)]
            without_pauses_ns = lengths_without_pauses(main, new["start_ns"], new["end_ns"])
            lengths |= {(tail.rank, step): ns for step, ns in zip(new["step"].tolist(), without_pauses_ns, strict=True)}
            self._patience = self._patience.with_pauses(pauses(main))
        self._patience = self._patience.with_steps(lengths.values())

    def notices(self, tails: Iterable[RankTail], *, now_ns: int) -> bool:
        """Compare the ranks' positions, between two looks of the agent. Returns True if it is time for a look: the job
        is quiet, for the first time since its last event and its latest lesson; or ranks of several hosts disagree.
        """
        if self._has_mismatch():
            return True
        positions = [tail.position() for tail in tails]
        if positions != self._positions:
            self._positions, self._quiet_since_ns, self._noticed_ns = positions, now_ns, 0
            if self._stop is not None and self._stop.hang:
                return True  # it may be over
        patience_ns = self._patience.training_ns if self._patience.has_learned else FLOOR_NS
        if now_ns - self._quiet_since_ns < patience_ns or patience_ns <= self._noticed_ns:
            return False
        self._noticed_ns = patience_ns
        return True

    def look(self, tails: Sequence[RankTail], *, now_ns: int) -> tuple[Fault, ...]:
        """Look at the job. Returns what is newly known: the hang with its culprits if the evidence shows them, and a
        mismatch between hosts, which needs no stop.
        """
        mismatch = self._judge_mismatch() if self._has_mismatch() else ()
        return mismatch or self._look_for_stop(tails, now_ns=now_ns)

    def _has_mismatch(self) -> bool:
        """True if the records of ranks that disagree were kept (`live.peers.comparing`), and are not judged yet."""
        return not self._has_judged_compared and self._compared.exists()

    def _judge_mismatch(self) -> tuple[Fault, ...]:
        answer, self._compared_tries = self._ask_analysis(), self._compared_tries + 1
        self._has_judged_compared = bool(answer) or self._compared_tries >= MAX_COMPARED_TRIES
        pairs = zip(answer.get("hangs", []), answer.get("verdict", []), strict=True)
        mismatched = [(hang, finding) for hang, finding in pairs if hang["kind"] == HangKind.MISMATCH]
        for hang, finding in mismatched:
            logger.warning("mismatch: %s. %s", hang["evidence"], finding["advice"])
        return tuple(_fault(hang) for hang, _ in mismatched)

    def _look_for_stop(self, tails: Sequence[RankTail], *, now_ns: int) -> tuple[Fault, ...]:
        last_ns = max((tail.last_progress_ns for tail in tails), default=0)
        silent_ns = now_ns - last_ns
        patience_ns = max((self._patience.of(open_phase(tail.main())) for tail in tails), default=0)
        if self._stop is not None and self._stop.since_ns != last_ns:
            self._announce_end(self._stop, tails)
        if not last_ns or over(tail.status() for tail in tails) or silent_ns < patience_ns:
            self._stop = None
            return ()
        if self._stop is None or self._stop.since_ns != last_ns:
            self._num_stops += 1
            self._stop = _Stop(last_ns)
        return self._judge(self._stop) if self._has_new_evidence(self._stop, tails, silent_ns=silent_ns) else ()

    def _has_new_evidence(self, stop: "_Stop", tails: Sequence[RankTail], *, silent_ns: int) -> bool:
        if not self._looks:
            before, self._num_bytes = self._num_bytes, sum(map(_num_bytes, tails))
            return self._num_bytes != before
        if silent_ns < stop.next_look_ns:
            return not stop.named and self._others_saw_more()
        with_stacks = not stop.next_look_ns and self._num_stops <= MAX_STOPS
        limits_ns = (self._patience.hang_ns + FLOOR_NS, END_NS + FLOOR_NS)  # the stop may have begun a little later
        stop.next_look_ns = min([2 * silent_ns, *(limit_ns for limit_ns in limits_ns if limit_ns > silent_ns)])
        running = {tail.rank: tail.directory for tail in tails if not tail.status().over}
        subjects = [Subject(directory=tail.directory, info=tail.info) for tail in tails if tail.rank in running]
        for rank, look in look_at_ranks(subjects, with_stacks=with_stacks).items():
            try:
                append_look(running[rank], look)
            except OSError as error:
                logger.warning("the look at rank %d could not be written: %s", rank, error)
        return True

    def _others_saw_more(self) -> bool:
        """True if witness copies of looks of other hosts' agents arrived since the last call."""
        before, self._others_bytes = (
            self._others_bytes,
            sum(map(_size, self._seen_by_others.glob(f"*/rank-*/{LOOKS_FILE}"))),
        )
        return self._others_bytes != before

    def _judge(self, stop: "_Stop") -> tuple[Fault, ...]:
        answer = self._ask_analysis()
        hangs, findings = answer.get("hangs", []), answer.get("verdict", [])
        named, hung = any(map(_is_named, hangs)), any(hang["state"] == StopState.HANG for hang in hangs)
        settled = [pair for pair in zip(hangs, findings, strict=True) if _is_settled(pair[0])]
        self._announce(stop, settled, next_step=answer.get("next_step"))
        if stop.reported and (stop.named or not named) and (stop.hung or not hung):
            return ()
        stop.reported, stop.named, stop.hung = bool(hangs), named, hung
        for hang, finding in zip(hangs, findings, strict=True):
            logger.warning("%s: %s. %s", hang["state"], hang["evidence"], finding["advice"])
        return tuple(map(_fault, hangs))

    def _announce(
        self,
        stop: "_Stop",
        settled: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
        *,
        next_step: int | None,
    ) -> None:
        """Announce the first settled answer about a stop to the command that started the job, and a hang to Kubernetes;
        once more if later evidence shows the culprit or a hang, and if the job is to be ended.
        """
        if not settled or not self._looks:
            return
        hang, finding = settled[0]
        known = (_is_named(hang), hang["state"] == StopState.HANG, self._ends_job(hang))
        if stop.hang and all(before or not now for before, now in zip(stop.announced, known, strict=True)):
            return
        stop.announced, stop.hang, stop.next_step = known, dict(hang), next_step
        self._append(stop, sentence=f"{hang['state']}: {hang['evidence']}. {finding['advice']}")

    def _ends_job(self, hang: Mapping[str, Any]) -> bool:
        """True if the stop has lasted for the time that the user set, or for long with evidence that it goes on."""
        if self._patience.hang_seconds is not None:
            return bool(hang["lasted_ns"] >= self._patience.hang_ns)
        return hang["cannot_go_on"] is not None and bool(hang["lasted_ns"] >= END_NS)

    def _announce_end(self, stop: "_Stop", tails: Iterable[RankTail]) -> None:
        """Announce that an announced stop ended by itself: a culprit on this node began something."""
        mains = [tail.main() for tail in tails if tail.rank in stop.hang.get("culprits", ())]
        began_ns = [at_ns for main in mains if (at_ns := first_begun_ns(main, after_ns=stop.since_ns)) is not None]
        if not began_ns or not self._looks:
            return
        lasted_ns = min(began_ns) - stop.since_ns
        stop.hang |= {"state": StopState.OVER, "lasted_ns": lasted_ns, "cannot_go_on": None}
        stop.announced = (True, False, False)
        self._append(stop, sentence=f"over: rank {stop.hang['culprits'][0]} went on after {duration(lasted_ns)}")
        stop.hang = {}

    def _append(self, stop: "_Stop", *, sentence: str) -> None:
        """Write the announcement of a stop's answer."""
        hang = stop.hang
        try:
            if hang["state"] == StopState.HANG:
                write_termination_message(sentence, os.environ)
            before = [notice for notice in read_notices(self._run) if notice.attempt == self._attempt]
            notice = HangNotice(
                attempt=self._attempt,
                at_wall_ns=time.time_ns(),
                culprits=tuple(hang["culprits"]),
                sentence=in_brief(sentence),
                state=hang["state"],
                ends_job=stop.announced[-1],
                judged=announced(hang, before=before),
                next_step=stop.next_step,
            )
            append_notice(self._run, notice)
        except OSError as error:
            logger.warning("the stop could not be announced: %s", error)

    def _ask_analysis(self) -> dict[str, Any]:
        """Judge by the evidence alone: an answer of before, also a wrong one, would confirm itself."""
        arguments = ["hang", str(self._run), "--format", "json", "--without-notices"]
        command = [sys.executable, "-P", "-c", PROGRAM, str(PACKAGES), *arguments]
        try:
            done = subprocess.run(command, check=True, capture_output=True, timeout=JUDGE_SECONDS, text=True)
            answer = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            logger.warning("the hang could not be analysed: %s", error)
            return {}
        return answer if isinstance(answer, dict) else {}


class _Stop:
    """One stop of the job."""

    def __init__(self, since_ns: int) -> None:
        self.since_ns = since_ns
        """The last record of any rank."""
        self.next_look_ns = 0
        """Silence at which to look again; 0 before the first look."""
        self.reported = self.named = self.hung = False
        self.announced = (False, False, False)
        """Kind of answer that was announced: it names a culprit, it is a hang, it ends the job."""
        self.hang: dict[str, Any] = {}
        """The announced answer; empty before, and once the stop is over."""
        self.next_step: int | None = None


def _is_settled(hang: Mapping[str, Any]) -> bool:
    """True for a stop whose culprits are known, or that has lasted for long without."""
    lasted_ns = hang["lasted_ns"]
    return lasted_ns is not None and (_is_named(hang) or lasted_ns >= UNSEEN_NS)


def _is_named(hang: Mapping[str, Any]) -> bool:
    """True if the culprits or the lost host are known."""
    return bool(hang["culprits"]) or hang["kind"] == HangKind.LOST_HOST


def _fault(hang: Mapping[str, Any]) -> Fault:
    """The entry of the stream that `analysis.faults.stream` makes of the same hang."""
    lost = hang["kind"] == HangKind.LOST_HOST
    return Fault(
        kind=fault_kind(hang["kind"], hang["state"]),
        at_ns=hang["since"],
        ranks=tuple(hang["suspects"] if lost else hang["culprits"]),
        step=hang["step"],
        what=hang["evidence"],
        confidence=hang["confidence"],
        lasted_ns=hang["lasted_ns"],
    )


def _given_seconds(run: Path) -> float | None:
    """The time that the user set for the training. Its agent has the training's environment."""
    try:
        recorded = read_run_info(run).environment
    except TraincopeError:
        recorded = {}
    return given_seconds({**recorded, **os.environ})


def _num_bytes(tail: RankTail) -> int:
    return _size(tail.directory / LOOKS_FILE)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
