"""One case: the training on its hosts, its fault, and the verdicts while it runs and after."""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.score.hosts.cases import MBIT_PER_SECOND, Case
from evaluation.score.hosts.training import LATE_SECONDS
from tests.live.peers.hosts import CLOCK_SECONDS, hosts
from tests.live.peers.jobs import LOCAL_RUN, ROOT, Job, report, started
from tests.live.processes import agents_of
from traincope.events import Kind
from traincope.store import read_run
from traincope.store.segments.segments import last_instant_ns
from traincope.store.side_tables.rows import read_rows

TRAINING = "evaluation.score.hosts.training"
SIGNALS = "signals"
WAIT = "exposed_wait[dp]"
WATCHED_STEPS = 150
"""Steps of a job that goes on after its fault."""
LATE_STEPS = 300
"""The same for a late rank. Where noise lasts for several steps, half as many do not show yet that it is late step
after step.
"""
BETWEEN = re.compile(r"between steps (\d+) and (\d+)")
ALLOWED_NS = 5_000_000_000
"""Longest time of a lost host's records that its copies may lack."""
SHIFTED = """
import os, time
lead = float(os.environ.get("WALL_LEAD_SECONDS", "0"))
now, now_ns = time.time, time.time_ns
time.time, time.time_ns = lambda: now() + lead, lambda: now_ns() + int(lead * 1e9)
"""
"""A host whose wall clock is ahead: Python imports it first. Namespaces shift monotonic clocks only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Verdicts about one case."""

    live: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    lost_ns: int | None = None
    """Records of a lost host that no copy holds: time from the last copied one to its last."""


def signature(document: dict[str, Any], *, step: int) -> tuple[object, ...]:
    """The part of a report that a job of several hosts and the same on one have in common: the first finding about
    ranks, and the place of a hang relative to the injected step.
    """
    hangs = [(each["kind"], tuple(each["culprits"]), _place(each, step=step)) for each in document["hangs"]]
    if hangs:
        return ("hang", *hangs)
    kinds = ("killed_rank", "no_end_recorded", "failed_rank", "straggler", "lost_host")
    named = [(each["kind"], tuple(each["ranks"])) for each in document["verdict"] if each["kind"] in kinds]
    return tuple(named[:1])


def _place(hang: dict[str, Any], *, step: int) -> int | None:
    """Step of the hang relative to the injected one; None if it is unknown.

    Only some steps record collectives. A mismatch in another one is known to lie between two steps: 0 if it does.
    """
    if hang["step"] is not None:
        return int(hang["step"]) - step
    bounds = BETWEEN.search(hang["evidence"])
    return 0 if bounds is not None and int(bounds[1]) <= step <= int(bounds[2]) else None


class Running:
    """A started case."""

    def __init__(self, case: Case, job: Job, directory: Path) -> None:
        self.case, self.job, self._directory, self._signals = case, job, directory, directory / SIGNALS
        self.local_run = directory / LOCAL_RUN

    def meet(self) -> None:
        """Wait until each agent keeps copies of all other hosts, and all ranks train."""
        others = {name: len(self.job.runs) - 1 for name in self.job.runs}
        self.job.until(
            lambda: all(
                len({path.parent for path in run.glob("attempt-000/witness/*/rank-*/main-*.seg")})
                >= others[name] * self.case.ranks
                for name, run in self.job.runs.items()
            ),
            "the agents' meeting",
        )

    def go(self) -> int:
        """Begin the fault of the rank. Returns its step."""
        (self._signals / "go").touch()
        path = self._signals / "step"
        self.job.until(lambda: path.exists() and path.read_text() != "", "the fault", may_end=True)
        return int(path.read_text())

    def stop(self) -> list[int]:
        (self._signals / "stop").touch()
        self.until_ended()
        return [process.returncode for process in self.job.processes.values()]

    def until_ended(self) -> None:
        """Wait until all launchers have ended."""
        processes = self.job.processes.values()
        self.job.until(lambda: all(process.poll() is not None for process in processes), "the job's end", may_end=True)

    def end_at_once(self) -> None:
        """Kill all processes of all hosts."""
        for host in self.job.hosts:
            host.close()

    def merged(self) -> Path:
        """The run with the records of all hosts."""
        first, *others = self.job.runs.values()
        run = self._directory / "merged"
        shutil.copytree(first, run)
        for path in (path for other in others for path in other.glob("attempt-000/rank-*")):
            shutil.copytree(path, run / "attempt-000" / path.name, dirs_exist_ok=True)
        return run

    def train(self, steps: int) -> None:
        """Wait until all ranks of this job have done this many more steps with a row."""
        before = self.num_rows()
        self.job.until(
            lambda: all(count >= before[rank] + steps for rank, count in self.num_rows().items()),
            f"{steps} steps",
            progress=self.num_rows,
        )

    def num_rows(self) -> dict[int, int]:
        paths = [path for run in self.job.runs.values() for path in run.glob("attempt-000/rank-*")]
        return {int(path.name[5:]): len(list(read_rows(path, rank=int(path.name[5:])))) for path in paths}

    def reports_have(self, kind: str) -> bool:
        """Whether the reports of all hosts have a hang of this kind."""
        documents = (report(run) for run in self.job.runs.values())
        return all(any(hang["kind"] == kind for hang in document["hangs"]) for document in documents)

    def logs_have(self, sentence: str, *, but: str = "") -> bool:
        return all(sentence in self.job.agent_log(name) for name in self.job.runs if name != but)


def run_case(case: Case, directory: Path) -> Outcome:
    """Train on the hosts of the case. Raises AssertionError if an awaited verdict does not come."""
    signals, shifted = directory / SIGNALS, directory / "shifted"
    signals.mkdir(parents=True)
    shifted.mkdir()
    (shifted / "sitecustomize.py").write_text(SHIFTED)
    leads = dict(zip(case.names, case.clock_seconds, strict=True))
    walls = {
        name: {"WALL_LEAD_SECONDS": str(seconds), "PYTHONPATH": f"{shifted}:{ROOT}"}
        for name, seconds in zip(case.names, case.wall_seconds, strict=True)
    }
    of_rank = {"lost": "none", "cut": "none"}.get(case.fault, case.fault)
    training = (TRAINING, of_rank, case.rank, signals)
    with (
        hosts(*case.names, clock_seconds={**CLOCK_SECONDS, **leads}) as made,
        started(directory, made, training=training, ranks=case.ranks, variables_of=walls) as job,
    ):
        if len(made) > 1:
            made[case.slow_host].slow_down(mbit_per_second=MBIT_PER_SECOND)
        running = Running(case, job, directory)
        if len(made) > 1:
            running.meet()
        else:
            job.until(lambda: len(running.num_rows()) == case.ranks, "the ranks")
            running.train(20)
        return JUDGES[case.fault](running)


def _sleep(running: Running) -> Outcome:
    step, case = running.go(), running.case
    running.job.until(lambda: running.logs_have(f"hang: rank {case.rank} stood at"), "the name in all agents' logs")
    live = {name: signature(report(run), step=step) for name, run in running.job.runs.items()}
    running.end_at_once()
    after = {name: signature(report(run), step=step) for name, run in running.job.runs.items()}
    return Outcome(live=live, after=after, problems=list(_unless(live, ("hang", ("stuck", (case.rank,), 0)))))


def _skip(running: Running) -> Outcome:
    """Agents announce a mismatch between hosts. One within a host is in the report, also while the job runs."""
    step, case = running.go(), running.case
    if len(running.job.runs) > 1:
        running.job.until(lambda: running.logs_have(" mismatch: "), "the mismatch in all agents' logs")
    else:
        running.job.until(lambda: running.reports_have("mismatch"), "the mismatch in the report")
    live = {name: signature(report(run), step=step) for name, run in running.job.runs.items()}
    running.end_at_once()
    after = {name: signature(report(run), step=step) for name, run in running.job.runs.items()}
    return Outcome(live=live, after=after, problems=list(_unless(live, ("hang", ("mismatch", (case.rank,), 0)))))


def _kill(running: Running) -> Outcome:
    """No launcher of ours noted the signal, and this machine is none of the hosts: that the rank has no end is all that
    its records show.
    """
    step, case = running.go(), running.case
    running.until_ended()
    running.job.until(lambda: not agents_of(running.local_run), "the agents' last look", may_end=True)
    document = report(running.merged())
    after = {"all": signature(document, step=step)}
    (own,) = (report(running.job.runs[name]) for name in case.names[case.host])
    after["own"] = signature(own, step=step)
    return Outcome(after=after, problems=list(_unless(after, (("no_end_recorded", (case.rank,)),))))


def _late(running: Running) -> Outcome:
    step, case = running.go(), running.case
    running.train(LATE_STEPS)
    codes = running.stop()
    run = running.merged()
    after = {"all": signature(report(run), step=step)}
    problems = [*_unless(after, (("straggler", (case.rank,)),)), *_healthy_end(codes)]
    live = {}
    for rank in range(case.hosts * case.ranks):
        rows = read_rows(run / f"attempt-000/rank-{rank:05d}", rank=rank)
        waits = [row.terms.get(WAIT, 0) for row in rows if row.terms and step < row.step < step + LATE_STEPS]
        live[f"rank {rank}"] = median_ms = round(float(np.median(waits or [0])) / 1e6)
        if rank != case.rank and median_ms < 0.8e3 * LATE_SECONDS:
            problems.append(f"live: the wait of rank {rank} is {median_ms} ms")
    return Outcome(live=live, after=after, problems=problems)


def _cut(running: Running) -> Outcome:
    case = running.case
    host = running.job.hosts[case.host]
    host.unplug()
    time.sleep(case.cut_seconds)
    host.plug_in_again()
    running.train(WATCHED_STEPS)
    codes = running.stop()
    run = running.merged()
    document = report(run)
    after = {"all": signature(document, step=0)} | {
        name: signature(report(path), step=0) for name, path in running.job.runs.items()
    }
    problems = [*_unless(after, ()), *_healthy_end(codes)]
    for rank in read_run(run).ranks:
        main = rank.thread("main")
        steps = np.unique(main["step"][main["kind"] == Kind.STEP])
        if rank.dropped:
            problems.append(f"rank {rank.rank} dropped {rank.dropped} records")
        if len(steps) and len(steps) != int(steps[-1]) - int(steps[0]) + 1:
            problems.append(f"rank {rank.rank} lacks steps")
    return Outcome(after=after, problems=problems)


def _lost(running: Running) -> Outcome:
    case = running.case
    name = case.names[case.host]
    host = running.job.hosts[case.host]
    host.unplug()
    host.kill()
    (others := dict(running.job.runs)).pop(name)
    records = {rank.rank: rank for rank in read_run(running.job.runs[name]).ranks}
    running.job.until(
        lambda: running.logs_have(f"hang: host {name} was lost", but=name), "the watchdogs' sentence", may_end=True
    )
    after, problems, lost_ns = {}, [], 0
    for other, run in others.items():
        document = report(run)
        first = document["verdict"][0]
        after[other] = (first["kind"], tuple(first["ranks"]))
        copies = {copy.rank: copy for host in read_run(run).witnessed for copy in host.ranks}
        for rank in case.ranks_of_host:
            if rank not in copies:
                problems.append(f"{other} has no copy of rank {rank}")
                continue
            lost_ns = max(lost_ns, _last_ns(records[rank]) - _last_ns(copies[rank]))
    problems += _unless(after, ("lost_host", tuple(case.ranks_of_host)))
    if lost_ns > ALLOWED_NS:
        problems.append(f"{lost_ns / 1e9:.1f} s of records are lost")
    return Outcome(after=after, problems=problems, lost_ns=lost_ns)


JUDGES: dict[str, Callable[[Running], Outcome]] = {
    "late": _late,
    "sleep": _sleep,
    "skip": _skip,
    "kill": _kill,
    "cut": _cut,
    "lost": _lost,
}


def _last_ns(records: Any) -> int:
    return max(last_instant_ns(segment.records) for segment in records.segments)


def _unless(verdicts: dict[str, Any], expected: tuple[object, ...]) -> Iterator[str]:
    for where, verdict in verdicts.items():
        if verdict != expected:
            yield f"{where}: {verdict} instead of {expected}"


def _healthy_end(codes: list[int]) -> Iterator[str]:
    if any(codes):
        yield f"exit codes {codes}"
