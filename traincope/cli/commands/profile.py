"""`traincope profile`: record the next steps of a running job in detail."""

import argparse
import time
from pathlib import Path

from traincope.cli.given_runs import add_run, given_run
from traincope.cli.quantities import whole
from traincope.errors import RunDirectoryError, UsageError
from traincope.events import Flag
from traincope.store.job.manifests import read_run_info
from traincope.store.job.requesting import JobProgress, job_progress, recent_steps, request_window
from traincope.store.job.requests import MAX_STEPS, Cause, WindowRequest
from traincope.store.layout import REQUESTS_FILE, attempt_directory, rank_number, window_file
from traincope.store.places.node_local import named_run, recorded_at
from traincope.store.reading import find_run
from traincope.units import count, duration, numbers

DEFAULT_STEPS = 20
MAX_KERNEL_STEPS = 64
"""Most steps whose kernels a run traces on request (`record/gpu/windows.py`)."""
POLL_SECONDS = 0.5
PATIENCE_STEPS = 20
MIN_PATIENCE_SECONDS = 120.0
"""Time without a new step, at least this and at least `PATIENCE_STEPS` steps, after which the wait ends."""


class Profile:
    name = "profile"
    example = "traincope profile traincope_runs/my-job --steps 20 --kernels"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_run(parser)
        parser.add_argument(
            "--steps",
            type=_steps,
            default=DEFAULT_STEPS,
            metavar="N",
            help=f"number of steps, 1 to {MAX_STEPS} (default: %(default)s)",
        )
        parser.add_argument(
            "--kernels",
            action="store_true",
            help=f"trace these steps with torch's profiler too, at most {MAX_KERNEL_STEPS}; each delays the training",
        )
        parser.add_argument(
            "--stacks",
            type=_rank,
            nargs="+",
            default=[],
            metavar="RANK",
            help="ranks that sample their Python stacks, 100 times a second: give a slow rank and one that is not",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        if arguments.kernels and arguments.steps > MAX_KERNEL_STEPS:
            raise UsageError(f"a run traces the kernels of at most {MAX_KERNEL_STEPS} steps; give a smaller --steps")
        run = find_run(recorded_at(given_run(arguments.run_directory))).resolve()
        world_size, largest = read_run_info(run).world_size, max(arguments.stacks, default=0)
        if largest >= world_size:
            raise UsageError(f"{run} has no rank {largest}; give --stacks ranks from 0 to {world_size - 1}")
        request = request_window(
            run,
            num_steps=arguments.steps,
            cause=Cause.PROFILE,
            kernels=arguments.kernels,
            stacks=tuple(arguments.stacks),
            named=named_run(run),
        )
        try:
            _wait(run, request)
        except KeyboardInterrupt:
            print(f"\nThe request stays: the ranks record {_steps_of(request)}.")
            raise
        _show(run, request)
        return 0


def _wait(run: Path, request: WindowRequest) -> None:
    """Wait until all ranks have made the steps. Raises RunDirectoryError if they do not."""
    progress = job_progress(run, attempt=request.attempt)
    step, moved_at = progress.behind_step, time.monotonic()
    print(
        f"Requested {_steps_of(request)}. The job is in step {progress.step}{_remaining(progress, request)}.",
        flush=True,
    )
    while not progress.over and (step is None or step <= request.last_step + 1):
        waited_seconds = time.monotonic() - moved_at
        if waited_seconds > _patience_seconds(progress):
            raise RunDirectoryError(
                f"the job has begun no step for {duration(waited_seconds * 1e9)} and is in step {step}; "
                f"`traincope report {run}` shows what each rank is in; the request stays"
            )
        time.sleep(POLL_SECONDS)
        progress = job_progress(run, attempt=request.attempt)
        if progress.behind_step != step:
            step, moved_at = progress.behind_step, time.monotonic()
    if progress.over and (progress.step or 0) <= request.first_step:
        raise RunDirectoryError(f"the job ended in step {progress.step}, before {_steps_of(request)}")


def _remaining(progress: JobProgress, request: WindowRequest) -> str:
    if progress.longest_step_ns is None or progress.step is None:
        return ""
    return (
        f" and ends the window in about {duration((request.last_step + 2 - progress.step) * progress.longest_step_ns)}"
    )


def _patience_seconds(progress: JobProgress) -> float:
    return max(PATIENCE_STEPS * (progress.longest_step_ns or 0) / 1e9, MIN_PATIENCE_SECONDS)


def _show(run: Path, request: WindowRequest) -> None:
    """Print what the ranks recorded, where it is, and what to do next. Raises RunDirectoryError if it is nothing."""
    directories = sorted(attempt_directory(run, request.attempt).glob("rank-*"))
    detailed = [_detailed_steps(directory, request) for directory in directories]
    common = len(set.intersection(*detailed)) if detailed else 0
    late = [
        rank_number(path) for path, steps in zip(directories, detailed, strict=True) if len(steps) < request.num_steps
    ]
    why = f"{numbers([rank for rank in late if rank is not None], 'rank')} read {REQUESTS_FILE} too late or never"
    if not common:
        raise RunDirectoryError(f"no step was recorded in detail on all ranks: {why}; try again")
    which = "" if common == request.num_steps else f", {common} of them on all ranks ({why})"
    print(f"Recorded in detail: {_steps_of(request)}{which}.")
    if request.kernels:
        traces = [path for directory in directories for path in _traces(directory, request)]
        left_out = len(directories) * request.num_steps - len(traces)
        reasons = f" ({left_out:,} left out; the report lists the reasons)" if left_out else ""
        print(f"Kernel traces: {count(len(traces), 'file')} kernels-step-*.json in the ranks' directories{reasons}.")
    if request.stacks:
        print(f"Stacks of {numbers(request.stacks, 'rank')}: the report compares them under SAMPLED STACKS.")
    print(f"""In {run}. Next:
  traincope view {run}      shows them at the address /timeline?step={request.first_step + 1}
  traincope report {run}    lists the window under RECORDING{", and the kernels" if request.kernels else ""}""")


def _detailed_steps(directory: Path, request: WindowRequest) -> set[int]:
    """Requested steps that a rank recorded in detail."""
    steps = recent_steps(directory, back_to=request.first_step)
    detailed = steps["step"][steps["flags"] & Flag.DETAILED > 0]
    return {int(step) for step in detailed if request.first_step < step <= request.last_step}


def _traces(directory: Path, request: WindowRequest) -> list[Path]:
    files = [directory / window_file(step) for step in range(request.first_step + 1, request.last_step + 1)]
    return [file for file in files if file.exists()]


def _steps_of(request: WindowRequest) -> str:
    return f"steps {request.first_step + 1} to {request.last_step}"


def _rank(text: str) -> int:
    rank = whole(text)
    if rank < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a rank; give a number from 0, e.g. 1")
    return rank


def _steps(text: str) -> int:
    number = whole(text)
    if not 1 <= number <= MAX_STEPS:
        raise argparse.ArgumentTypeError(
            f"{text} is not a number of steps; give 1 to {MAX_STEPS}, e.g. {DEFAULT_STEPS}"
        )
    return number
