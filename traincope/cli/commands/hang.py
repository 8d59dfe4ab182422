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
from traincope.errors import MissingDependencyError, UsageError
from traincope.ingest import holds_dumps, read_dumps
from traincope.live.node.noticing.looking import Subject, look_at_ranks
from traincope.live.unrecorded.job import look_at_job
from traincope.live.unrecorded.stacks import PROGRAM, find_py_spy, read_stacks
from traincope.report import hang_document, render_hangs
from traincope.report.schema import NativeStack
from traincope.store import RunRecords
from traincope.store.layout import rank_directory
from traincope.timeline import Timeline, build_timeline, open_run

MAX_NATIVE = 8
"""Number of ranks whose C frames are shown."""


class HangCommand:
    name = "hang"
    help = "say which ranks of a run stand still, who waits for whom, and where to look"
    example = "traincope hang traincope_runs/my-job"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "evidence",
            type=Path,
            nargs="+",
            metavar="RUN|DUMP|PID",
            help="run directory of a job that runs or has ended; or dumps of torch's flight recorder, one per rank, or "
            "their folder; or a process of a job that was started without traincope",
        )
        add_format(parser)
        parser.add_argument(
            "--stacks",
            action="store_true",
            help="first let the ranks that run on this host write their stacks, as the agent does when it notices a "
            "hang",
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
        judged = hangs(timeline, Context(timeline).instances, endings(timeline))
        answer = hang_document(
            judged,
            tuple(hang_findings(timeline, judged, tuple(marks(timeline)))),
            next_step=max((rank.steps[-1].number + 1 for rank in timeline.ranks if rank.steps), default=0),
            lacks=lacks,
            native_stacks=tuple(_native_stacks(timeline.run, judged)) if arguments.native else (),
        )
        print_answer(answer, render_hangs, format=arguments.format)
        return 0


def _open(paths: list[Path], *, stacks: bool) -> tuple[Timeline, tuple[str, ...]]:
    """The timeline, and what it lacks. Raises UsageError if --stacks is used without a run."""
    pids = [int(path.name) for path in paths if str(path).isdecimal() and not path.exists()]
    if stacks and (pids or any(map(holds_dumps, paths))):
        raise UsageError("--stacks asks the ranks of a run; leave it out for dumps and processes")
    if pids:
        if len(pids) < len(paths):
            raise UsageError("give processes only, or paths only")
        job = look_at_job(pids)
        return build_timeline(job.records), job.lacks
    return _recorded(paths, stacks=stacks), ()


def _recorded(paths: list[Path], *, stacks: bool) -> Timeline:
    if any(map(holds_dumps, paths)):
        return build_timeline(read_dumps(paths))
    if len(paths) > 1:
        raise UsageError("give one run directory, or dumps of torch's flight recorder")
    timeline = open_run(paths[0])
    if stacks:
        _ask_for_stacks(timeline.run)
        timeline = open_run(paths[0])
    return timeline


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


def _ask_for_stacks(run: RunRecords) -> None:
    """Raises UsageError if no rank answers."""
    subjects = [
        Subject(directory=rank_directory(run.path, attempt=rank.attempt, rank=rank.rank), info=rank.info)
        for rank in run.ranks
        if rank.running
    ]
    looks = look_at_ranks(subjects, with_stacks=True)
    if not any(look.stack for look in looks.values()):
        raise UsageError(
            f"no rank of {run.path} wrote its stacks: none of them runs on this host, or they are stopped; "
            "leave out --stacks to see what the records show"
        )
