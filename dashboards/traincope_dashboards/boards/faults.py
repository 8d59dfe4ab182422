"""What went wrong, and what did it cost?"""

from collections.abc import Iterator

from traincope.metrics import (
    CHECKPOINT_AGE,
    CHECKPOINTS,
    DATA_AGE,
    FAULTS,
    GOODPUT,
    JOB_TIME,
    LAST_STEP,
    LOGGED,
    RANKS,
)
from traincope_dashboards.board import Board
from traincope_dashboards.colours import JOB_COLOURS
from traincope_dashboards.panels import (
    FULL,
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
from traincope_dashboards.scope import Scope
from traincope_dashboards.variables import Scopes


def _panels(scopes: Scopes) -> Iterator[Panel]:
    job, shown = scopes.job, scopes.shown
    yield over_time(
        "Goodput",
        how="Productive share of all the job's time since its first attempt, lost steps and restarts included. It"
        " falls after a fault and recovers slowly: compare its value, not its slope.",
        queries=[Query(expression=f"avg by (run) ({job.of(GOODPUT)})", legend="goodput")],
        unit=RATIO,
        colours={"goodput": JOB_COLOURS["productive"]},
    )
    yield bars(
        "What became of the job's time",
        how="All attempts together. Long startup or restart: load checkpoints faster, keep compiled code. Long lost:"
        " save more often; `traincope plan cadence` says how often.",
        queries=[Query(expression=f"max by (part) ({job.of(JOB_TIME)})", legend="{{part}}")],
        unit=SECONDS,
        colours=JOB_COLOURS,
    )
    yield over_time(
        "Faults by kind",
        how="Events since the attempt began. Click a step upwards for the training step in the viewer.",
        queries=[Query(expression=f"sum by (kind) ({shown.of(FAULTS)})", legend="{{kind}}")],
        none="no fault so far",
    )
    yield over_time(
        "Ranks by state",
        how="Alive, ended (cleanly) or gone. A rank that is gone left no word: killed by the system (out of memory,"
        " see dmesg), by the scheduler, or the host is down.",
        queries=[Query(expression=f"sum by (state) ({job.of(RANKS)})", legend="{{state}}")],
    )
    yield listing(
        "Faults by rank",
        how="Which rank had which fault, most first, and the step it has reached; click a rank for its timeline."
        " What came first is what to mend: `traincope report RUN` orders them.",
        keys=["host", "rank", "kind"],
        columns=_faults(shown),
        none="no fault so far",
        width=FULL,
        rank_links=True,
    )
    yield over_time(
        "Age of the last checkpoint",
        how="What would be lost if the job died now. It falls to zero at each checkpoint; a climb past the usual"
        " tops: saving fails or hangs.",
        queries=[Query(expression=f"min by (run) ({job.of(CHECKPOINT_AGE)})", legend="age")],
        unit=SECONDS,
    )
    yield over_time(
        "Checkpoints",
        how="Checkpoints finished since the attempt began. Flat for long: none is being made.",
        queries=[Query(expression=f"max by (run) ({job.of(CHECKPOINTS)})", legend="checkpoints")],
    )
    yield over_time(
        "Silent longest",
        how="Time since the last record of the five ranks that are silent longest. A line that climbs at one second a"
        " second: that rank hangs or is gone; all climb: the job hangs.",
        queries=[Query(expression=f"topk(5, max by (rank) ({shown.of(DATA_AGE)}))", legend="rank {{rank}}")],
        unit=SECONDS,
        per_rank=True,
    )
    yield over_time(
        "Logged by the training",
        how="What the training gave to run.log(): read the loss beside the faults above. A gap is NaN.",
        queries=[Query(expression=f"avg by (name) ({job.of(LOGGED)})", legend="{{name}}")],
    )


def _faults(scope: Scope) -> list[Column]:
    faults = f"sum by (host, rank, kind) ({scope.of(FAULTS)})"
    step = f"max by (host, rank) ({scope.of(LAST_STEP)})"
    return [
        Column(name="events", expression=faults, unit="none"),
        # The step repeated for every kind, so that both columns have the same keys.
        Column(name=STEP, expression=f"0 * {faults} + on (host, rank) group_left {step}", unit="none"),
    ]


FAULTS_AND_GOODPUT = Board(
    uid="traincope-faults",
    title="traincope / Faults and goodput",
    about="What went wrong, on which rank, and what did it cost?",
    panels=_panels,
)
