"""The predicted step time after changes, as a document and as text."""

from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from traincope.analysis import Prediction, SettingsPrediction
from traincope.lines import Trimmed, indented, text
from traincope.report import schema
from traincope.units import count, duration, share

MIN_SHARE = 0.001
"""Share of step time below which an uncertainty is not printed."""


def prediction_document(prediction: Prediction) -> schema.Prediction:
    """Return the prediction as the object that `--format json` prints."""
    known = prediction.reason is None
    return schema.Prediction(
        changes=[change.text for change in prediction.changes],
        steps=len(prediction.steps),
        step_ns=prediction.mean_ns if known else None,
        predicted_step_ns=prediction.predicted_mean_ns if known else None,
        predicted_least_ns=prediction.lower_bound_mean_ns if known else None,
        change_ratio=prediction.ratio - 1 if known else None,
        median_step_ns=prediction.median_ns if known else None,
        predicted_median_step_ns=prediction.predicted_median_ns if known else None,
        replay_error_ratio=prediction.replay_error_ratio if known else None,
        reason=prediction.reason,
    )


def render_prediction(prediction: Prediction, console: Console) -> None:
    """Print the prediction as text."""
    head = Text("WHAT IF  ", style="bold")
    console.print(head.append_text(text(", ".join(change.text for change in prediction.changes), style="not bold")))
    lines = _lines(prediction) if prediction.reason is None else [f"unknown: {prediction.reason}"]
    console.print(Trimmed(indented(text(line) for line in lines)), end="")


def _lines(prediction: Prediction) -> list[str]:
    recorded, predicted, change = prediction.mean_ns, prediction.predicted_mean_ns, prediction.ratio - 1
    sense = "less" if change < 0 else "more"
    lines = [
        f"mean step: {duration(predicted)} instead of {duration(recorded)}, {share(abs(change))} {sense} "
        f"(replay of the last {count(len(prediction.steps), 'step')})",
        f"median step: {duration(prediction.predicted_median_ns)} instead of {duration(prediction.median_ns)}",
    ]
    lowest = prediction.lower_bound_mean_ns
    if predicted - lowest > MIN_SHARE * recorded:
        lines.append(f"lower bound: {duration(lowest)}, because the duration of some transfers is unknown")
    replay_error = prediction.replay_error_ratio
    lines.append(f"accuracy: a replay without changes differs by {share(abs(replay_error))} from the recorded steps")
    return lines


def settings_document(prediction: SettingsPrediction) -> schema.SettingsPrediction:
    """Return the prediction as the object that `--format json` prints."""
    known = prediction.reason is None
    return schema.SettingsPrediction(
        settings={name: value for name, value in asdict(prediction.settings).items() if value is not None},
        step_ns=prediction.step_ns if known else None,
        predicted_step_ns=prediction.predicted_ns if known else None,
        predicted_least_ns=prediction.least_ns if known else None,
        predicted_most_ns=prediction.most_ns if known else None,
        change_ratio=prediction.change_ratio if known else None,
        stands_on=list(prediction.stands_on),
        reason=prediction.reason,
    )


def render_settings(prediction: SettingsPrediction, console: Console) -> None:
    """Print the prediction as text."""
    head = Text("WHAT IF  ", style="bold")
    console.print(head.append_text(text(prediction.settings.text, style="not bold")))
    if prediction.reason is None:
        sense = "less" if prediction.change_ratio < 0 else "more"
        lines = [
            f"median step: {duration(prediction.predicted_ns)} instead of {duration(prediction.step_ns)}, "
            f"{share(abs(prediction.change_ratio))} {sense}",
            f"interval: {duration(prediction.least_ns)} to {duration(prediction.most_ns)}",
            "stands on:",
            *(f"- {fact}" for fact in prediction.stands_on),
        ]
        if prediction.settings.changes_memory:
            lines.append("memory is not checked: `traincope plan memory` computes it")
    else:
        lines = [f"unknown: {prediction.reason}"]
    console.print(Trimmed(indented(text(line) for line in lines)), end="")
