"""`traincope hang`: which ranks stand still, who waits for whom, and where to look."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from traincope.analysis.context import Context
from traincope.analysis.faults.endings import endings
from traincope.analysis.faults.hangs.hang import Hang
from traincope.analysis.faults.hangs.hangs import hangs
from traincope.analysis.faults.marks import marks
from traincope.analysis.faults.stacks import training_thread
from traincope.analysis.verdict.hang_findings import hang_findings
from traincope.cli.answers import add_format, print_answer
from traincope.cli.given_runs import given_run
from traincope.errors import MissingDependencyError, UsageError
from traincope.ingest import may_hold_dumps, read_dumps
from traincope.live.node.noticing.looking import Subject, look_at_ranks
from traincope.live.unrecorded.job import look_at_job
from traincope.report.schema import NativeStack
from traincope.report.text.hangs import hang_document, render_hangs
from traincope.store import Look, RunRecords
from traincope.store.job.outside_stacks import PROGRAM, find_py_spy, read_stacks
from traincope.store.layout import rank_directory
from traincope.timeline import Timeline, build_timeline, open_run
from traincope.units import numbers

ASKED, BY_SIGNAL = "asked", "signal"
"""Ways to get stacks."""
MAX_NATIVE = 8
"""Number of ranks whose C frames are shown."""


class HangCommand:
    name = "hang"
    example = "traincope hang traincope_runs/my-job"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "evidence",
            type=Path,
            nargs="*",
            metavar="RUN|DUMP|PID",
            help="run directory of a job that runs or has ended, by default the newest; or dumps of torch's flight "
            "recorder, one per rank, or their folder; or a process of a job that was started without traincope",
        )
        add_format(parser)
        parser.add_argument(
            "--stacks",
            action="store_const",
            const=ASKED,
            help="first get the stacks of the ranks that run on this host, as the agent does when it notices a hang: "
            "a rank that does not answer is read from outside (pip install 'traincope[stacks]')",
        )
        parser.add_argument(
            "--stacks=signal",
            dest="stacks",
            action="store_const",
            const=BY_SIGNAL,
            help="the same, and send SIGURG to a rank that does not answer, if its run has `signal_stacks`: that may "
            "end the system call in which the rank stands",
        )
        parser.add_argument(
            "--native",
            action="store_true",
            help="also show the C frames of the named ranks that run on this host, by py-spy (pip install "
            "'traincope[stacks]'), which stops each of them for some milliseconds",
        )
        parser.add_argument("--without-notices", action="store_true", help=argparse.SUPPRESS)  # for the node's agent

    def run(self, arguments: argparse.Namespace) -> int:
        timeline, lacks = _open(arguments.evidence, stacks=arguments.stacks)
        if arguments.without_notices:
            timeline = replace(timeline, run=replace(timeline.run, notices=()))
        ends = endings(timeline)
        judged = hangs(timeline, Context(timeline).instances, ends)
        answer = hang_document(
            judged,
            tuple(hang_findings(timeline, judged, (*marks(timeline), *ends))),
            next_step=max((rank.steps[-1].number + 1 for rank in timeline.ranks if rank.steps), default=0),
            lacks=lacks,
            native_stacks=tuple(_native_stacks(timeline.run, judged)) if arguments.native else (),
        )
        print_answer(answer, render_hangs, format=arguments.format)
        return 0


def _open(paths: list[Path], *, stacks: str | None) -> tuple[Timeline, tuple[str, ...]]:
    """The timeline, and what it lacks. Raises UsageError if --stacks is used without a run."""
    pids = [int(path.name) for path in paths if str(path).isdecimal() and not path.exists()]
    if stacks and (pids or any(map(may_hold_dumps, paths))):
        raise UsageError("--stacks asks the ranks of a run; leave it out for dumps and processes")
    if pids:
        if len(pids) < len(paths):
            raise UsageError("give processes only, or paths only")
        job = look_at_job(pids)
        return build_timeline(job.records), job.lacks
    if any(map(may_hold_dumps, paths)):
        records = read_dumps(paths)
        return build_timeline(records), tuple(_lacks(records))
    return _recorded(paths, stacks=stacks), ()


def _lacks(dumps: RunRecords) -> Iterator[str]:
    yield from dumps.problems
    if dumps.missing:
        yield (
            f"no dump of {numbers(dumps.missing, 'rank')} of the {dumps.info.world_size:,} in the groups: give one of "
            "each rank, because one that did not join has not written why"
        )


def _recorded(paths: list[Path], *, stacks: str | None) -> Timeline:
    if len(paths) > 1:
        raise UsageError("give one run directory, or dumps of torch's flight recorder")
    run = given_run(paths[0] if paths else None)
    timeline = open_run(run)
    if not stacks:
        return timeline
    looks = _looks(timeline.run, by_signal=stacks == BY_SIGNAL)
    timeline = open_run(run)  # with what the ranks wrote
    ranks = [
        replace(rank, looks=(*rank.looks, replace(looks[rank.rank], by_agent=False))) if rank.rank in looks else rank
        for rank in timeline.run.ranks
    ]
    return replace(timeline, run=replace(timeline.run, ranks=tuple(ranks)))


def _native_stacks(run: RunRecords, judged: Sequence[Hang]) -> Iterator[NativeStack]:
    """Stacks of the culprits or suspects, without any of all ranks; of those that run on this host.

    Raises UsageError if none of them does, MissingDependencyError without py-spy.
    """
    py_spy = find_py_spy()
    if py_spy is None:
        raise MissingDependencyError(f"--native needs {PROGRAM}: pip install 'traincope[stacks]'")
    named = {rank for hang in judged for rank in hang.culprits or hang.suspects}
    here = [rank for rank in run.ranks if rank.running and (not named or rank.rank in named)]
    if not here:
        raise UsageError(f"no rank of {run.path} that is named runs on this host; leave out --native")
    for rank in here[:MAX_NATIVE]:
        stacks = read_stacks(rank.info.pid, py_spy=py_spy, native=True)
        frames = [str(frame) for frame in training_thread(stacks.text)]
        yield NativeStack(rank=rank.rank, pid=rank.info.pid, frames=frames, problem=stacks.problem or None)


def _looks(run: RunRecords, *, by_signal: bool) -> dict[int, Look]:
    """Look at the ranks that run on this host, with their stacks. Raises UsageError if none can be had."""
    subjects = [
        Subject(directory=rank_directory(run.path, attempt=rank.attempt, rank=rank.rank), info=rank.info)
        for rank in run.ranks
        if rank.running
    ]
    looks = look_at_ranks(subjects, with_stacks=True, by_signal=by_signal)
    if not any(look.stack for look in looks.values()):
        reasons = dict.fromkeys(look.no_stack for look in looks.values() if look.no_stack)
        why = "; ".join(reasons) or "none of them runs on this host, or they are stopped"
        raise UsageError(
            f"no stack of a rank of {run.path} is known: {why}; leave out --stacks to see what the records show"
        )
    return looks
