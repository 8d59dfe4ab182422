"""Dashboard: the ledger over time, from the hardware's peak down to MFU."""

from collections.abc import Iterator

from traincope.metrics.catalogue import LEDGER, LEDGER_CLOCK, MODULE_TIME, RUN_AHEAD, STEPS, WALL
from traincope_dashboards.boards.terms import ledger_shares
from traincope_dashboards.panels.board import Board
from traincope_dashboards.panels.colours import EXTRA, IDEAL, INEFFICIENCY, TERM_COLOURS
from traincope_dashboards.panels.panels import (
    FULL,
    HALF,
    RATIO,
    SECONDS,
    Column,
    Panel,
    Query,
    bars,
    listing,
    over_time,
)
from traincope_dashboards.panels.variables import RANKS_NEED, Scopes, per_host
from traincope_dashboards.rules.recorded import HFU_MEAN, MFU_MEAN, MODEL_WORK_SHARE
from traincope_dashboards.scope import Scope

_NONE, _SOME = '=""', '!=""'
_NOT_MODEL_WORK = '!~"forward|backward|recompute"'
_LOSSES = '!~"forward|backward|recompute|optimizer"'


def waterfall(scope: Scope) -> list[Query]:
    """Shares of the peak: the model's FLOPs (MFU), other work in its forward and backward, and every other term.

    They add up to 1, because forward + backward + recompute = mfu + (hfu - mfu) + (the rest of their time).
    """
    mfu, hfu, work = (scope.recorded(rule) for rule in (MFU_MEAN, HFU_MEAN, MODEL_WORK_SHARE))
    others = scope.where(term=_NOT_MODEL_WORK)
    return [
        Query(expression=mfu, legend=IDEAL),
        Query(expression=f"{hfu} - {mfu}", legend=EXTRA),
        Query(expression=f"{work} - {hfu}", legend=INEFFICIENCY),
        *ledger_shares(others),
    ]


def _panels(scopes: Scopes) -> Iterator[Panel]:
    job, shown = scopes.job, scopes.shown
    yield over_time(
        "MFU ledger",
        text=(
            "100 % is the hardware's peak. Dark green is MFU; each band above it is a loss. Work on the "
            "thickest band: `traincope report RUN` gives the advice and the estimated gain. If the "
            "peak or the model's FLOPs are unknown, as on most CPUs, forward and backward are missing here: `traincope "
            "doctor RUN` names which."
        ),
        queries=waterfall(job),
        unit=RATIO,
        colours=TERM_COLOURS,
        stacked=True,
        width=FULL,
    )
    yield bars(
        "From peak to MFU, now",
        text="The same shares at this moment, one bar per term. To compare two runs, choose the other run above.",
        queries=waterfall(job),
        colours=TERM_COLOURS,
    )
    yield over_time(
        "Losses",
        text=(
            "Every term except computing, one line each, as a share of step time. Sudden rise: click it for the "
            "step in the viewer. Slow rise: memory, data order, or a GPU that gets hotter."
        ),
        queries=ledger_shares(job.where(term=_LOSSES)),
        unit=RATIO,
        colours=TERM_COLOURS,
    )
    yield over_time(
        "Seconds per step, chosen ranks",
        text=(
            "Mean seconds per step over the chosen hosts and ranks. Unlike a share, a term here does not shrink "
            "when another one grows."
        ),
        queries=_seconds(shown),
        unit=SECONDS,
        colours=TERM_COLOURS,
        stacked=True,
    )
    yield over_time(
        "Time in training steps",
        text=(
            "Seconds per second that each host's ranks spend in steps: near 1 while training, lower while the "
            "job evaluates, saves or starts. For goodput see Faults and goodput."
        ),
        queries=[Query(expression=f"sum by (host) ({shown.rate(WALL)}) / {per_host(shown)}", legend="{{host}}")],
        unit=RATIO,
    )
    yield listing(
        "Ranks",
        text=(
            "Share of step time of each chosen rank by term, one row per rank and term, largest first. To "
            f"compare ranks, sort by term: the slow rank has more compute and less wait than the others. {RANKS_NEED}"
        ),
        keys=["host", "rank", "term", "axis"],
        columns=[Column(name="share of steps", expression=_by_rank(shown), unit=RATIO)],
    )
    yield listing(
        "Clock of the ledger",
        text=(
            "Clock of each chosen host's latest steps and terms. device: marks on the compute streams of the GPUs. "
            "host: the hosts, which queue work ahead, so that a wait there may delay no GPU."
        ),
        keys=["host", "clock"],
        columns=[Column(name="is used", expression=f"max by (host, clock) ({shown.series_of(LEDGER_CLOCK)})")],
        width=HALF,
    )
    yield over_time(
        "Run-ahead",
        text=(
            "Time by which the ten ranks, or hosts, with the least run-ahead queue work before a GPU reaches it. "
            f"{RANKS_NEED} Near zero, the host limits the GPU: use larger kernels, torch.compile or CUDA graphs."
        ),
        queries=[
            Query(
                expression=f"bottomk(10, min by (host, rank) ({shown.series_of(RUN_AHEAD)}))",
                legend="{{host}} {{rank}}",
            )
        ],
        unit=SECONDS,
        if_empty="no GPU, or no ledger on its clock",
        per_rank=True,
    )
    yield over_time(
        "Modules",
        text=(
            "Forward time of the slowest modules, per second of training. It is recorded only at level 2: "
            "traincope.run(level=2). If a module's time grows, its shapes changed or its experts are uneven."
        ),
        queries=[Query(expression=f"topk(20, sum by (module) ({shown.rate(MODULE_TIME)}))", legend="{{module}}")],
        unit=RATIO,
        if_empty="recorded at level 2 only",
        width=FULL,
    )


def _seconds(scope: Scope) -> list[Query]:
    num_steps = f"on () group_left sum ({scope.rate(STEPS)})"
    return [
        Query(
            expression=f"sum by (term) ({scope.rate(LEDGER, axis=_NONE)}) / {num_steps}",
            legend="{{term}}",
        ),
        Query(
            expression=f"sum by (term, axis) ({scope.rate(LEDGER, axis=_SOME)}) / {num_steps}",
            legend="{{term}}[{{axis}}]",
        ),
    ]


def _by_rank(scope: Scope) -> str:
    steps = f"sum by (host, rank) ({scope.rate(WALL)})"
    return f"topk(200, sum by (host, rank, term, axis) ({scope.rate(LEDGER)}) / on (host, rank) group_left {steps})"


MFU_LEDGER = Board(
    uid="traincope-ledger",
    title="traincope / MFU ledger",
    about="Which share of the hardware's peak is MFU, and which terms take the rest?",
    panels=_panels,
)
