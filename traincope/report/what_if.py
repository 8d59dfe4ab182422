"""What a step would take with something of it changed."""

from rich.console import Console
from rich.text import Text

from traincope.analysis import Prediction
from traincope.report import schema
from traincope.report.plain import text
from traincope.report.tables import indented
from traincope.report.trimmed import Trimmed
from traincope.units import count, duration, share

WORTH_SAYING = 0.001
"""Share of a step from which a doubt is mentioned."""


def prediction_document(prediction: Prediction) -> schema.Prediction:
    """As JSON has it."""
    told = prediction.reason is None
    return schema.Prediction(
        changes=[change.text for change in prediction.changes],
        steps=len(prediction.steps),
        step_ns=prediction.mean_ns if told else None,
        predicted_step_ns=prediction.predicted_mean_ns if told else None,
        predicted_least_ns=prediction.least_mean_ns if told else None,
        change_ratio=prediction.ratio - 1 if told else None,
        median_step_ns=prediction.median_ns if told else None,
        predicted_median_step_ns=prediction.predicted_median_ns if told else None,
        replay_error_ratio=prediction.replay_error_ratio if told else None,
        reason=prediction.reason,
    )


def render_prediction(prediction: Prediction, console: Console) -> None:
    """For people."""
    head = Text("WHAT IF  ", style="bold")
    console.print(head.append_text(text(", ".join(change.text for change in prediction.changes), style="not bold")))
    lines = _lines(prediction) if prediction.reason is None else [f"unknown: {prediction.reason}"]
    console.print(Trimmed(indented(text(line) for line in lines)), end="")


def _lines(prediction: Prediction) -> list[str]:
    now, then, change = prediction.mean_ns, prediction.predicted_mean_ns, prediction.ratio - 1
    sense = "less" if change < 0 else "more"
    lines = [
        f"a step of {duration(now)} would take {duration(then)}, {share(abs(change))} {sense}: "
        f"mean of the last {count(len(prediction.steps), 'step')}",
        f"in the median {duration(prediction.predicted_median_ns)} instead of {duration(prediction.median_ns)}",
    ]
    least = prediction.least_mean_ns
    if then - least > WORTH_SAYING * now:
        lines.append(f"perhaps only {duration(least)}: of some transfers nobody saw how long they took")
    missed = prediction.replay_error_ratio
    lines.append(f"played as they were, the steps come out {share(abs(missed))} off: no prediction is better than that")
    return lines
