"""Dashboard: is the pipeline's bubble as small as the schedule allows?"""

from collections.abc import Iterator

from traincope.metrics.catalogue import ACTION_TIME, BUBBLE, BUBBLE_PART
from traincope_dashboards.panels.board import Board
from traincope_dashboards.panels.colours import TERM_COLOURS
from traincope_dashboards.panels.panels import FULL, RATIO, Panel, Query, bars, over_time, rows
from traincope_dashboards.panels.variables import PANEL_NEEDS, Scopes
from traincope_dashboards.rules.recorded import BUBBLE_BY_THEORY, BUBBLE_MEAN

_IMBALANCE = '="imbalance"'


def _panels(scopes: Scopes) -> Iterator[Panel]:
    job, shown = scopes.job, scopes.shown
    bubble, theory = job.recorded(BUBBLE_MEAN), job.recorded(BUBBLE_BY_THEORY)
    yield over_time(
        "Bubble and theory",
        text=(
            "Bubble, mean over stages, and its theoretical value. Far above theory: see Parts of the bubble. At "
            "theory but too large: use more microbatches, or an interleaved or zero-bubble schedule; `traincope "
            "plan bubble` compares them. No data: the job has no pipeline."
        ),
        queries=[Query(expression=bubble, legend="bubble"), Query(expression=theory, legend="theory")],
        unit=RATIO,
        colours={"bubble": TERM_COLOURS["bubble"]},
        if_empty="the job has no pipeline",
    )
    yield over_time(
        "Parts of the bubble",
        text=(
            "schedule: idle time with equal stages. imbalance: unequal stages; move layers between them. "
            "jitter: late peers; look for the straggler. The parts are differences, so a part may be negative."
        ),
        queries=[Query(expression=f"avg by (part) ({job.series_of(BUBBLE_PART)})", legend="{{part}}")],
        unit=RATIO,
        colours=TERM_COLOURS,
        stacked=True,
        if_empty="the job has no pipeline",
    )
    yield rows(
        "Bubble of each stage",
        text=(
            "One row per stage; darker is more idle time. A light row among dark ones is the slowest stage, and "
            "the others wait for it: give it fewer layers."
        ),
        query=Query(expression=f"avg by (stage) ({job.series_of(BUBBLE)})", legend="{{stage}}"),
        unit=RATIO,
        if_empty="the job has no pipeline",
    )
    yield bars(
        "Imbalance of each stage, now",
        text=(
            "Additional idle time of each stage because stages take unequal time. The shortest bar belongs to "
            "the slowest stage."
        ),
        queries=[
            Query(
                expression=f"avg by (stage) ({job.series_of(BUBBLE_PART, part=_IMBALANCE)})", legend="stage {{stage}}"
            )
        ],
        if_empty="the job has no pipeline",
    )
    yield over_time(
        "Actions of each stage",
        text=(
            "Seconds per second in a stage's forward (F) and backward (B, or I and W) actions, over the chosen "
            f"ranks. They are recorded only at level 2: traincope.run(level=2). {PANEL_NEEDS} Stages should be equal."
        ),
        queries=[
            Query(expression=f"avg by (stage, action) ({shown.rate(ACTION_TIME)})", legend="stage {{stage}} {{action}}")
        ],
        unit=RATIO,
        if_empty="no pipeline, or not at level 2 with TRAINCOPE_METRICS_PER_RANK=on",
        width=FULL,
    )


PIPELINE = Board(
    uid="traincope-pipeline",
    title="traincope / Pipeline",
    about="Is the pipeline's bubble as small as the schedule allows, and which stage causes it?",
    panels=_panels,
)
