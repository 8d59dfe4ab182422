"""Dashboard: the state of the job on one screen."""

from collections.abc import Iterator

from traincope.metrics.catalogue import DATA_AGE, FAULTS, LOGGED, RANKS, RUN_INFO, STEP_TIMES, STEPS
from traincope_dashboards.boards.terms import ledger_shares
from traincope_dashboards.panels.board import Board
from traincope_dashboards.panels.colours import TERM_COLOURS
from traincope_dashboards.panels.panels import (
    FULL,
    RATIO,
    SECONDS,
    STEP_NOW,
    Column,
    Panel,
    Query,
    listing,
    number,
    over_time,
    times,
)
from traincope_dashboards.panels.variables import Scopes, per_host
from traincope_dashboards.rules.recorded import (
    ALIVE,
    GOODPUT_MEAN,
    HFU_MEAN,
    MFU_MEAN,
    MFU_PAPER_MEAN,
    STEP_MEDIAN,
    STEP_SLOWEST,
    TOKEN_RATE,
)
from traincope_dashboards.scope import Scope

_INFO = "host, world_size, mesh, attempt, torch, traincope"


def _panels(scopes: Scopes) -> Iterator[Panel]:
    job = scopes.job
    yield from _numbers(job)
    yield over_time(
        "Step time",
        text=(
            "Wall time of the latest step: median and slowest rank. If they differ, some ranks end their steps "
            "later: see Ranks and hosts. If both rise, see which term grew in Where the time goes."
        ),
        queries=[
            Query(expression=job.recorded(STEP_MEDIAN), legend="median rank"),
            Query(expression=job.recorded(STEP_SLOWEST), legend="slowest rank"),
        ],
        unit=SECONDS,
    )
    yield over_time(
        "Where the time goes",
        text=(
            "Shares of step time over all ranks; they add up to 100 %. Look into the band that grows: orange "
            "and red are communication (dashboard Communication), blue is the pipeline, purple is data and "
            "checkpoints."
        ),
        queries=ledger_shares(job),
        unit=RATIO,
        colours=TERM_COLOURS,
        stacked=True,
    )
    yield over_time(
        "Utilization",
        text=(
            "MFU counts model FLOPs, HFU executed FLOPs. If HFU is well above MFU, the job recomputes; if both "
            "fall, see MFU ledger. MFU (paper) counts causal attention in full, the others count half."
        ),
        queries=[
            Query(expression=job.recorded(MFU_MEAN), legend="MFU"),
            Query(expression=job.recorded(MFU_PAPER_MEAN), legend="MFU (paper)"),
            Query(expression=job.recorded(HFU_MEAN), legend="HFU"),
        ],
        unit=RATIO,
        if_empty="peak or FLOPs unknown: see traincope doctor RUN",
    )
    yield times(
        "Step times",
        text=(
            "Number of steps by duration; darker is more. Two bands: some steps are different (checkpoint, "
            "evaluation, another sequence length). Click a dot to open its step in the viewer."
        ),
        buckets=f"sum by (le) ({job.rate(STEP_TIMES, suffix='_bucket')})",
    )
    yield over_time(
        "Logged values",
        text=(
            "Values given to run.log(), such as the loss. A spike or a gap (NaN) also counts as a fault. To "
            "open the step in the viewer, use the link of a point."
        ),
        queries=[Query(expression=f"avg by (name) ({job.series_of(LOGGED)})", legend="{{name}}")],
        if_empty="nothing is logged: call run.log()",
    )
    yield over_time(
        "Faults so far",
        text=(
            "Faults by kind since the attempt began. If a line rises, see Faults and goodput for the rank; "
            "`traincope report RUN` shows which fault came first."
        ),
        queries=[Query(expression=f"sum by (kind) ({job.series_of(FAULTS)})", legend="{{kind}}")],
        if_empty="no fault so far",
    )
    yield listing(
        "Hosts",
        text=(
            "The run on each host: world size, mesh and versions. If hosts have different versions, correct that first."
        ),
        keys=["host", "world_size", "mesh", "attempt", "torch", "traincope"],
        columns=[Column(name="is running", expression=f"max by ({_INFO}) ({job.series_of(RUN_INFO)})")],
        width=FULL,
    )


def _numbers(job: Scope) -> Iterator[Panel]:
    yield number(
        "MFU",
        text=(
            "Model FLOPs utilization now; causal attention counts half. No data: the peak or the model FLOPs "
            "are unknown; `traincope doctor RUN` names which."
        ),
        expression=job.recorded(MFU_MEAN),
        unit=RATIO,
        if_empty="no peak or FLOPs",
    )
    yield number(
        "Step time",
        text="Median over ranks of the latest step. Its history is in Step time below.",
        expression=job.recorded(STEP_MEDIAN),
        unit=SECONDS,
    )
    yield number(
        "Tokens per second",
        text=(
            "Tokens per second of the whole job. No data: the tokens per step are not declared; call "
            "run.describe(tokens_per_step=...)."
        ),
        expression=job.recorded(TOKEN_RATE),
        if_empty="not declared",
    )
    yield number(
        "Goodput",
        text=(
            "Productive share of the job's time, including restarts and lost steps. If it is low, see Faults "
            "and goodput."
        ),
        expression=job.recorded(GOODPUT_MEAN),
        unit=RATIO,
    )
    yield number(
        "Last step",
        text="The training step that completed last. Click the number to open this step in the viewer.",
        expression=STEP_NOW,
        unit="none",
        links_to_step=True,
    )
    yield number(
        "Ranks alive",
        text=(
            "Ranks with a running process, over all hosts. If there are fewer than the world size, see Faults "
            "and goodput."
        ),
        expression=f"sum({job.series_of(RANKS, state=ALIVE)})",
        unit="none",
    )
    yield number(
        "Oldest data",
        text=(
            "Time since the last record of the rank with the oldest data. If it rises, that rank or the whole "
            "job hangs."
        ),
        expression=f"max({job.series_of(DATA_AGE)})",
        unit=SECONDS,
        bad_above=120,
    )
    yield number(
        "Steps per hour",
        text="Steps per hour of the fastest host. Zero while ranks are alive: the job hangs or starts.",
        expression=f"max(sum by (host) ({job.rate(STEPS)}) / {per_host(job)}) * 3600",
    )


OVERVIEW = Board(
    uid="traincope-overview",
    title="traincope / Overview",
    about="Is the job healthy, and if not, where is the problem?",
    panels=_panels,
)
