"""Is it well? The job on one screen."""

from collections.abc import Iterator

from traincope.metrics import DATA_AGE, FAULTS, LOGGED, RANKS, RUN_INFO, STEP_TIMES, STEPS
from traincope_dashboards.board import Board
from traincope_dashboards.boards.terms import ledger_shares
from traincope_dashboards.colours import TERM_COLOURS
from traincope_dashboards.panels import (
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
from traincope_dashboards.recorded import (
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
from traincope_dashboards.variables import Scopes

_INFO = "host, world_size, mesh, attempt, torch, traincope"


def _panels(scopes: Scopes) -> Iterator[Panel]:
    job = scopes.job
    yield from _numbers(job)
    yield over_time(
        "Step time",
        how="Wall time of the latest step: median and slowest of all ranks. The two apart: some ranks end their"
        " steps later, see Ranks and hosts. Both up together: see which term grew in Where the time goes.",
        queries=[
            Query(expression=job.recorded(STEP_MEDIAN), legend="median rank"),
            Query(expression=job.recorded(STEP_SLOWEST), legend="slowest rank"),
        ],
        unit=SECONDS,
    )
    yield over_time(
        "Where the time goes",
        how="Shares of step time over all ranks; they add up to 100 %. The band that grows is what to look into:"
        " orange and red are communication (dashboard Communication), blue is the pipeline, purple is data and"
        " checkpoints.",
        queries=ledger_shares(job),
        unit=RATIO,
        colours=TERM_COLOURS,
        stacked=True,
    )
    yield over_time(
        "Utilization",
        how="MFU counts the model's own FLOPs, HFU what was executed. HFU well above MFU: recomputation; both down:"
        " see MFU ledger for what took the difference. The paper's MFU does not halve causal attention.",
        queries=[
            Query(expression=job.recorded(MFU_MEAN), legend="MFU"),
            Query(expression=job.recorded(MFU_PAPER_MEAN), legend="MFU as papers have it"),
            Query(expression=job.recorded(HFU_MEAN), legend="HFU"),
        ],
        unit=RATIO,
    )
    yield times(
        "Step times",
        how="How many steps took how long; darker is more. Two bands: some steps are of another kind (checkpoint,"
        " evaluation, another length of sequences). A dot is a step that one can open in the viewer.",
        buckets=f"sum by (le) ({job.rate(STEP_TIMES, suffix='_bucket')})",
    )
    yield over_time(
        "Logged by the training",
        how="What the training gave to run.log(), such as the loss. A spike or a gap (NaN) is also counted among the"
        " faults; a point's link opens its step in the viewer.",
        queries=[Query(expression=f"avg by (name) ({job.of(LOGGED)})", legend="{{name}}")],
    )
    yield over_time(
        "Faults so far",
        how="Fault events by kind since the attempt began. Any step upwards is news: Faults and goodput says which"
        " rank, `traincope report RUN` says what came first.",
        queries=[Query(expression=f"sum by (kind) ({job.of(FAULTS)})", legend="{{kind}}")],
        none="no fault so far",
    )
    yield listing(
        "Hosts",
        how="The run on each host: its world size, mesh and versions. Hosts with different versions are a mistake.",
        keys=["host", "world_size", "mesh", "attempt", "torch", "traincope"],
        columns=[Column(name="is running", expression=f"max by ({_INFO}) ({job.of(RUN_INFO)})")],
        width=FULL,
    )


def _numbers(job: Scope) -> Iterator[Panel]:
    yield number(
        "MFU",
        how="Model FLOPs utilization now, causal attention halved. No data: the peak or the model's FLOPs are not"
        " known; `traincope doctor RUN` says which.",
        expression=job.recorded(MFU_MEAN),
        unit=RATIO,
        none="not known",
    )
    yield number(
        "Step time",
        how="Median over ranks of the latest step. Click Step time below for its history.",
        expression=job.recorded(STEP_MEDIAN),
        unit=SECONDS,
    )
    yield number(
        "Tokens a second",
        how="Of the whole job. No data: the training did not tell how many tokens a step has,"
        " run.describe(tokens_per_step=...).",
        expression=job.recorded(TOKEN_RATE),
        none="not told",
    )
    yield number(
        "Goodput",
        how="Productive share of all the job's time, restarts and lost steps included. Low: see Faults and goodput.",
        expression=job.recorded(GOODPUT_MEAN),
        unit=RATIO,
    )
    yield number(
        "Last step",
        how="The training step that was finished last; click it to open it in the viewer.",
        expression=STEP_NOW,
        unit="none",
        links_to_step=True,
    )
    yield number(
        "Ranks alive",
        how="Ranks whose process is there, over all hosts. Fewer than the world size: see Faults and goodput.",
        expression=f"sum({job.of(RANKS, state=ALIVE)})",
        unit="none",
    )
    yield number(
        "Oldest data",
        how="Time since the last record of the rank that is silent longest. It grows: that rank, or all, hang.",
        expression=f"max({job.of(DATA_AGE)})",
        unit=SECONDS,
        bad_above=120,
    )
    yield number(
        "Steps an hour",
        how="Progress of the rank that is furthest. Zero while ranks are alive: the job hangs, or starts.",
        expression=f"max({job.rate(STEPS)}) * 3600",
    )


OVERVIEW = Board(
    uid="traincope-overview",
    title="traincope / Overview",
    about="Is the job well, and if not, where to look?",
    panels=_panels,
)
