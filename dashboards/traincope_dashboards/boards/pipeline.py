"""Is the pipeline's bubble what the schedule promises?"""

from collections.abc import Iterator

from traincope.metrics import ACTION_TIME, BUBBLE, BUBBLE_PART
from traincope_dashboards.board import Board
from traincope_dashboards.colours import TERM_COLOURS
from traincope_dashboards.panels import FULL, RATIO, Panel, Query, bars, over_time, rows
from traincope_dashboards.recorded import BUBBLE_BY_THEORY, BUBBLE_MEAN
from traincope_dashboards.variables import Scopes

_IMBALANCE = '="imbalance"'


def _panels(scopes: Scopes) -> Iterator[Panel]:
    job, shown = scopes.job, scopes.shown
    bubble, theory = job.recorded(BUBBLE_MEAN), job.recorded(BUBBLE_BY_THEORY)
    yield over_time(
        "Bubble and theory",
        how="Share of a step in which stages idle, mean over stages, beside what the schedule has by theory. Far"
        " above: see the parts. At theory and still too much: more microbatches, interleaving, or zero bubble;"
        " `traincope plan bubble` compares them. No data: the job has no pipeline.",
        queries=[Query(expression=bubble, legend="bubble"), Query(expression=theory, legend="theory")],
        unit=RATIO,
        colours={"bubble": TERM_COLOURS["bubble"]},
        none="the job has no pipeline",
    )
    yield over_time(
        "Parts of the bubble",
        how="Schedule is what equal stages would idle; imbalance is stages of unequal length: move layers between"
        " them; jitter is late peers: look for the straggler. Parts are differences, so one may be negative.",
        queries=[Query(expression=f"avg by (part) ({job.of(BUBBLE_PART)})", legend="{{part}}")],
        unit=RATIO,
        colours=TERM_COLOURS,
        stacked=True,
        none="the job has no pipeline",
    )
    yield rows(
        "Bubble of each stage",
        how="A row a stage, darker where it idles more. A light row among dark ones is the longest stage, for which"
        " the others wait: give it fewer layers.",
        query=Query(expression=f"avg by (stage) ({job.of(BUBBLE)})", legend="{{stage}}"),
        unit=RATIO,
        none="the job has no pipeline",
    )
    yield bars(
        "Imbalance of each stage, now",
        how="How much more a stage idles because stages are of unequal length. The shortest bar is the longest stage.",
        queries=[
            Query(expression=f"avg by (stage) ({job.of(BUBBLE_PART, part=_IMBALANCE)})", legend="stage {{stage}}")
        ],
        none="the job has no pipeline",
    )
    yield over_time(
        "Actions of each stage",
        how="Seconds a second in a stage's forwards (F) and backwards (B, or I and W where they are split), over the"
        " chosen ranks. Only recorded at level 2: traincope.run(level=2). Stages should be alike.",
        queries=[
            Query(expression=f"avg by (stage, action) ({shown.rate(ACTION_TIME)})", legend="stage {{stage}} {{action}}")
        ],
        unit=RATIO,
        none="recorded at level 2 only",
        width=FULL,
    )


PIPELINE = Board(
    uid="traincope-pipeline",
    title="traincope / Pipeline",
    about="Is the pipeline's bubble what the schedule promises, and which stage is to blame?",
    panels=_panels,
)
