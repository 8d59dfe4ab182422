"""The pipeline's idle time: what the schedule costs, what uneven stages cost, what is noise."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from traincope.report.plain import text
from traincope.report.schema import Bubble
from traincope.report.tables import table
from traincope.report.units import count, share


def pipeline(bubble: Bubble) -> Iterator[RenderableType]:
    """One row a stage, shares of that stage's step time; the schedule's theory in the head."""
    head = Text("PIPELINE BUBBLE", style="bold")
    yield head.append_text(text(f"  {_against_theory(bubble)}", style="not bold dim"))
    rows = table("stage", "schedule", "imbalance", "jitter", "bubble")
    for stage in bubble["stages"]:
        parts = (stage["schedule_ns"], stage["imbalance_ns"], stage["jitter_ns"])
        shares = (share(part / stage["wall_ns"] if stage["wall_ns"] else None) for part in parts)
        rows.add_row(f"    {stage['stage']}", *shares, share(stage["fraction_ratio"]))
    yield rows


def _against_theory(bubble: Bubble) -> str:
    theory = bubble["theory_ratio"]
    formula = "no formula for this schedule" if theory is None else f"theory {share(theory)}"
    layout = f"{bubble['schedule']}, {count(bubble['microbatches'])} microbatches"
    return f"{share(bubble['fraction_ratio'])} of step time, {formula} ({layout})"
