"""SLOWDOWN: what stragglers cost a job, from replays of its table of operations."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from traincope.analysis.stragglers.slowdown import Slowdown
from traincope.lines import indented, text
from traincope.units import duration, numbers, share


def slowdown(job: Slowdown) -> Iterator[RenderableType]:
    """S and its cause, then the shares of the loss."""
    head = "unknown" if job.ratio is None else f"S = {job.ratio:.3f}, cause: {job.cause}"
    yield Text("SLOWDOWN", style="bold").append_text(text(f"  {head}", style="not bold"))
    yield indented(text(line, style="dim") for line in lines(job))


def lines(job: Slowdown) -> Iterator[str]:
    """One line per fact."""
    if job.replayed_ns is not None:
        yield (
            f"step {duration(job.step_ns)} as recorded, {duration(job.replayed_ns)} without delays before "
            f"operations, {duration(job.ideal_ns)} with average operations"
        )
    if job.reason is not None:
        yield job.reason
    if job.worker_share is not None:
        slowest, worker, last = (
            numbers(job.slowest, "rank"),
            share(job.worker_share),
            share(job.last_stage_share),
        )
        yield f"{worker} of the loss is due to {slowest} (the slowest 3 % of the workers), {last} to the last stage"
        yield f"{share(job.sequence_length_share)} of the loss remains if only microbatches differ"
    if job.correlation is not None:
        along = "" if job.stage_correlation is None else f", along the stages {job.stage_correlation:.2f}"
        yield f"correlation of a microbatch's forward and backward times {job.correlation:.2f}{along}"
