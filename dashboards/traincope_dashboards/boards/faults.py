"""Dashboard: what failed, and how much time did it cost?"""

from collections.abc import Iterator

from traincope.metrics.catalogue import (
    BADPUT,
    CHECKPOINT_AGE,
    CHECKPOINTS,
    DATA_AGE,
    FAULTS,
    GOODPUT,
    INTERRUPTIONS,
    JOB_TIME,
    LAST_STEP,
    LOGGED,
    MTBF,
    RANKS,
)
from traincope_dashboards.panels.board import Board
from traincope_dashboards.panels.colours import JOB_COLOURS
from traincope_dashboards.panels.panels import (
    FULL,
    HALF,
    RATIO,
    SECONDS,
    STEP,
    Column,
    Panel,
    Query,
    bars,
    listing,
    over_time,
)
from traincope_dashboards.panels.variables import Scopes
from traincope_dashboards.rules.recorded import GOODPUT_DAY, GOODPUT_HOUR
from traincope_dashboards.scope import Scope


def _panels(scopes: Scopes) -> Iterator[Panel]:
    job, shown = scopes.job, scopes.shown
    badput = f"max by (part, cause) ({job.series_of(BADPUT)})"
    yield over_time(
        "Goodput",
        text=(
            "Productive share of the job's time since its first attempt, including lost steps and restarts, and of "
            "its last hour and day. The first falls after a fault and recovers slowly; the others show how it is now."
        ),
        queries=[
            Query(expression=f"avg by (run) ({job.series_of(GOODPUT)})", legend="goodput"),
            Query(expression=job.recorded(GOODPUT_HOUR), legend="last hour"),
            Query(expression=job.recorded(GOODPUT_DAY), legend="last day"),
        ],
        unit=RATIO,
        colours={"goodput": JOB_COLOURS["productive"]},
    )
    yield bars(
        "Use of the job's time",
        text=(
            "Time of all attempts by use. If startup or restart is long, load checkpoints faster and keep "
            "compiled code. If lost is long, save more often: `traincope plan cadence` computes the interval."
        ),
        queries=[Query(expression=f"max by (part) ({job.series_of(JOB_TIME)})", legend="{{part}}")],
        unit=SECONDS,
        colours=JOB_COLOURS,
    )
    yield over_time(
        "Faults by kind",
        text=(
            "Faults since the attempt began, by kind. To see the training step in the viewer, click the point "
            "where a line rises."
        ),
        queries=[Query(expression=f"sum by (kind) ({shown.series_of(FAULTS)})", legend="{{kind}}")],
        if_empty="no fault so far",
    )
    yield over_time(
        "Ranks by state",
        text=(
            "Ranks that are alive, ended cleanly, or gone. A rank is gone if its process ended without a "
            "recorded end: killed by the system (out of memory, see dmesg) or by the scheduler, or the host is "
            "down."
        ),
        queries=[Query(expression=f"sum by (state) ({job.series_of(RANKS)})", legend="{{state}}")],
    )
    yield over_time(
        "Time between interruptions",
        text=(
            "Mean time that the job's attempts ran between interruptions, with its 95 % interval. If it is short, "
            "repair the most common cause: the next panel lists the causes, and what each cost."
        ),
        queries=[Query(expression=f"max by (bound) ({job.series_of(MTBF)})", legend="{{bound}}")],
        unit=SECONDS,
    )
    yield listing(
        "Interruptions by cause",
        text=(
            "Attempts that did not end well, by cause, and the time that their restarts and lost steps cost. Repair "
            "the most expensive cause first: `traincope report RUN` lists each interruption."
        ),
        keys=["cause"],
        columns=[
            Column(name="interruptions", expression=f"max by (cause) ({job.series_of(INTERRUPTIONS)})", unit="none"),
            Column(name="time lost", expression=f"sum by (cause) ({badput})", unit=SECONDS),
        ],
        if_empty="no interruption so far",
        width=HALF,
    )
    yield listing(
        "Faults by rank",
        text=(
            "Faults of each rank, most first, and its latest step; click a rank for its timeline. Repair the "
            "first fault: `traincope report RUN` lists them in order."
        ),
        keys=["host", "rank", "kind"],
        columns=_faults(shown),
        if_empty="no fault so far",
        width=FULL,
        rank_links=True,
    )
    yield over_time(
        "Age of the last checkpoint",
        text=(
            "Time that would be lost if the job died now. It falls to zero at each checkpoint. If it rises "
            "above its usual peaks, saving fails or hangs."
        ),
        queries=[Query(expression=f"min by (run) ({job.series_of(CHECKPOINT_AGE)})", legend="age")],
        unit=SECONDS,
        if_empty="no checkpoint so far",
    )
    yield over_time(
        "Checkpoints",
        text=("Checkpoints completed since the attempt began. A line that stays flat for long: the job does not save."),
        queries=[Query(expression=f"max by (run) ({job.series_of(CHECKPOINTS)})", legend="checkpoints")],
        if_empty="no checkpoint so far",
    )
    yield over_time(
        "Longest silence",
        text=(
            "Time since the last record, for the five ranks with the oldest data. If one line rises by one "
            "second per second, that rank hangs or is gone; if all rise, the job hangs."
        ),
        queries=[Query(expression=f"topk(5, max by (rank) ({shown.series_of(DATA_AGE)}))", legend="rank {{rank}}")],
        unit=SECONDS,
        per_rank=True,
    )
    yield over_time(
        "Logged values",
        text="Values given to run.log(): compare the loss with the faults above. A gap is NaN.",
        queries=[Query(expression=f"avg by (name) ({job.series_of(LOGGED)})", legend="{{name}}")],
        if_empty="nothing is logged: call run.log()",
    )


def _faults(scope: Scope) -> list[Column]:
    faults = f"sum by (host, rank, kind) ({scope.series_of(FAULTS)})"
    step = f"max by (host, rank) ({scope.series_of(LAST_STEP)})"
    return [
        Column(name="events", expression=faults, unit="none"),
        # The step is repeated for every kind, so that both columns have the same keys.
        Column(name=STEP, expression=f"0 * {faults} + on (host, rank) group_left {step}", unit="none"),
    ]


FAULTS_AND_GOODPUT = Board(
    uid="traincope-faults",
    title="traincope / Faults and goodput",
    about="What failed, on which rank, and how much time did it cost?",
    panels=_panels,
)
