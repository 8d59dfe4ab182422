"""Where does the time go? From the hardware's peak down to the model's own math, over time."""

from collections.abc import Iterator

from traincope.metrics import LEDGER, MODULE_TIME, STEPS, WALL
from traincope_dashboards.board import Board
from traincope_dashboards.boards.terms import ledger_shares
from traincope_dashboards.colours import BELOW_PEAK, EXTRA, IDEAL, TERM_COLOURS
from traincope_dashboards.panels import FULL, RATIO, SECONDS, Column, Panel, Query, bars, listing, over_time
from traincope_dashboards.recorded import HFU_MEAN, MFU_MEAN, MODEL_WORK_SHARE
from traincope_dashboards.scope import Scope
from traincope_dashboards.variables import Scopes

_NONE, _SOME = '=""', '!=""'
_NOT_MODEL_WORK = '!~"forward|backward|recompute"'
_LOSSES = '!~"forward|backward|recompute|optimizer"'


def waterfall(scope: Scope) -> list[Query]:
    """From 100 % of the peak: the model's math, what else ran in its forward and backward, every other term.

    They add up to 1, for forward + backward + recompute = mfu + (hfu - mfu) + (the rest of their time).
    """
    mfu, hfu, work = (scope.recorded(one) for one in (MFU_MEAN, HFU_MEAN, MODEL_WORK_SHARE))
    others = scope.where(term=_NOT_MODEL_WORK)
    return [
        Query(expression=mfu, legend=IDEAL),
        Query(expression=f"{hfu} - {mfu}", legend=EXTRA),
        Query(expression=f"{work} - {hfu}", legend=BELOW_PEAK),
        *ledger_shares(others),
    ]


def _panels(scopes: Scopes) -> Iterator[Panel]:
    job, shown = scopes.job, scopes.shown
    yield over_time(
        "MFU ledger",
        how="100 % is the hardware's peak. Dark green is model math, which is the MFU; each band above it is what"
        " took the rest. The thickest band is the one to work on: `traincope report RUN` says what to do about it"
        " and what it saves. Where FLOPs are not known, forward and backward are missing here.",
        queries=waterfall(job),
        unit=RATIO,
        colours=TERM_COLOURS,
        stacked=True,
        width=FULL,
    )
    yield bars(
        "From peak to MFU, now",
        how="The same at this moment, one bar a term. Compare two runs by choosing the other one above.",
        queries=waterfall(job),
        colours=TERM_COLOURS,
    )
    yield over_time(
        "Losses",
        how="Every term that is not computing, one line each, as a share of step time. A step upwards at an instant:"
        " click it for the step in the viewer; a slow climb: memory, data order or a GPU that warms up.",
        queries=ledger_shares(job.where(term=_LOSSES)),
        unit=RATIO,
        colours=TERM_COLOURS,
    )
    yield over_time(
        "Seconds of a step, chosen ranks",
        how="Means of a step over the chosen hosts and ranks, in seconds: unlike a share, a term here does not"
        " shrink because another one grew.",
        queries=_seconds(shown),
        unit=SECONDS,
        colours=TERM_COLOURS,
        stacked=True,
    )
    yield over_time(
        "Time in training steps",
        how="Seconds a second that each host's ranks spend in training steps: near 1 while training, lower while"
        " the job evaluates, saves or starts. For goodput see Faults and goodput.",
        queries=[Query(expression=f"avg by (host) ({shown.rate(WALL)})", legend="{{host}}")],
        unit=RATIO,
    )
    yield listing(
        "Ranks",
        how="The chosen ranks' share of step time by term, one row a rank and term, the largest first. Sort by rank"
        " to compare one term over ranks: a rank whose compute is larger and whose wait is smaller is the slow one.",
        keys=["host", "rank", "term", "axis"],
        columns=[Column(name="share of steps", expression=_by_rank(shown), unit=RATIO)],
    )
    yield over_time(
        "Modules",
        how="Forward time of the slowest modules, per second of training. Only recorded at level 2:"
        " traincope.run(level=2). One that grows: its shapes changed, or its experts are uneven.",
        queries=[Query(expression=f"topk(20, sum by (module) ({shown.rate(MODULE_TIME)}))", legend="{{module}}")],
        unit=RATIO,
        none="recorded at level 2 only",
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
    about="Of the hardware's peak, how much was model math, and what took the rest?",
    panels=_panels,
)
