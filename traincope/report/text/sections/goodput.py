"""Goodput: the productive share of the job's time, the parts of the rest, and all attempts."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rich.text import Text

from traincope.analysis import FaultKind, Goodput
from traincope.analysis.efficiency.background_saves import BackgroundSaves
from traincope.analysis.faults.anomalies.data_order import DataOrder
from traincope.lines import text
from traincope.report.schema import Fault
from traincope.store import Attempt
from traincope.units import count, duration, numbers, share

WHOLE_PER_PART = 1000
"""A part below 1/1000 of the job's time is not printed."""


MAX_ATTEMPTS = 8
"""Maximum number of attempts that are printed, the last ones; JSON has all."""


def goodput(
    job: Goodput, saves: BackgroundSaves | None, order: DataOrder | None, faults: Sequence[Fault] = ()
) -> Iterator[Text]:
    """One line, one for each of several attempts, one for background saves, and one for each continuation of the data.

    Parts below a thousandth of the elapsed time are only in JSON.
    """
    facts = [f"{share(job.productive_ratio)} of {duration(job.elapsed_ns)} was productive"]
    if job.productive_ratio is None:
        took = f"{count(job.steps_done, 'step')} took {duration(job.steps_ns)} of {duration(job.elapsed_ns)}"
        facts = [f"unknown: {job.reason}", took]
    parts = {
        "start-up": job.startup_ns,
        "restarts": job.restart_ns,
        "checkpoint stalls": job.checkpoint_stall_ns,
        "evaluation": job.evaluation_ns,
        f"{count(job.steps_lost, 'lost step')}": job.lost_ns,
        f"{count(job.steps_rolled_back, 'rolled back step')}": job.rolled_back_ns,
        f"{count(job.steps_skipped, 'skipped step')}": job.skipped_ns,
        "outside complete steps": job.other_ns,
    }
    facts += [f"{what} {duration(ns)}" for what, ns in parts.items() if ns and ns * WHOLE_PER_PART >= job.elapsed_ns]
    yield Text("GOODPUT", style="bold").append_text(text(f"  {'; '.join(facts)}", style="not bold"))
    yield from map(text, _attempts(job.attempts, faults))
    if saves is not None:
        yield Text("BACKGROUND SAVES", style="bold").append_text(text(f"  {_cost_of_saves(saves)}", style="not bold"))
    for each in () if order is None else order.continuations:
        yield Text("DATA ORDER", style="bold").append_text(
            text(f"  {numbers(each.ranks, 'rank')}: {each.what}", style="not bold")
        )


def _attempts(attempts: Sequence[Attempt], faults: Sequence[Fault]) -> Iterator[str]:
    """Steps and time of each attempt, and why it ended, as the restart after it says."""
    ends = {fault["at_ns"]: fault["what"].partition(": ")[2] for fault in faults if fault["kind"] == FaultKind.RESTART}
    shown = attempts[-MAX_ATTEMPTS:] if len(attempts) > 1 else ()
    if len(attempts) > len(shown) > 0:
        yield f"    {count(len(attempts) - len(shown), 'earlier attempt')} (see --format json)"
    for attempt, after in zip_longest(shown, shown[1:]):
        how = ends.get(after.began_ns, "ended well") if after is not None else "the other sections describe it"
        took = duration(max(attempt.last_ns - attempt.began_ns, 0))
        yield f"    attempt {attempt.number}: {count(attempt.num_steps, 'step')} in {took}; {how}"


def _cost_of_saves(saves: BackgroundSaves) -> str:
    extra, touched = saves.extra_ns, f"{count(saves.saves, 'save')} during {count(saves.steps, 'step')}"
    if extra is None:
        return f"{touched}; their cost to these steps is unknown: {saves.reason}"
    low, high = duration(extra.low), duration(extra.high)
    return (
        f"{touched}; each adds {duration(extra.estimate)} to its steps ({low} to {high}), "
        f"an estimated {share(saves.ratio)} of step time"
    )
