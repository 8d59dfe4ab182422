"""The fields of the plan page, and the question to `plan search` that their values ask."""

from collections.abc import Mapping
from dataclasses import dataclass

from traincope.errors import UsageError
from traincope.plan.layout.layout import ZERO_STAGES, Place
from traincope.plan.model.sources import PRESETS
from traincope.plan.search.clusters import ACCELERATORS
from traincope.plan.search.question import Question
from traincope.plan.search.space import SEARCHED
from traincope.units import CURRENCY
from traincope.viewer.planning.one_layout import CURRENCIES, MAX
from traincope.viewer.view import View

TRIED = "tried"
"""Value of a field whose option is a flag."""
PLACE, LIKE = "place", "like"
"""Parameters: the chosen layout's place in the search, counted from 1; position of the run whose rates count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A field whose name is that of an option of `plan search`."""

    name: str
    label: str
    usual: str = ""
    """Value without one in the address; empty: the option is left out."""
    choices: tuple[str, ...] = ()
    whole: bool = True


MODEL = (
    Option(name="model", label="model", usual="llama3-70b", choices=tuple(PRESETS)),
    Option(name="seq", label="tokens per sequence", usual="8192"),
    Option(name="batch", label="sequences per step", usual="1024"),
    Option(name="gpu", label="GPU", usual="h100", choices=tuple(ACCELERATORS)),
    Option(name="gpus", label="GPUs", usual="512"),
    Option(name="pod", label="GPUs below the spine"),
    Option(name="oversubscription", label="oversubscription", whole=False),
)
JOB = (
    Option(name="tokens", label="training tokens", whole=False),
    Option(name="price_per_gpu_hour", label="price per GPU-hour", usual="2", whole=False),
    Option(name="currency", label="currency", usual=CURRENCY, choices=CURRENCIES),
    Option(name="pue", label="PUE of the site", whole=False),
    Option(name="reserve", label="memory kept free", whole=False),
)
FILTERS = (
    *(Option(name=name, label=name) for name in ("dp", "tp", "pp", "cp", "ep")),
    Option(name="zero", label="ZeRO stage", choices=tuple(map(str, ZERO_STAGES))),
    Option(name="schedule", label="schedule", choices=(*SEARCHED, "interleaved")),
    Option(name="micro_batch", label="sequences per microbatch"),
    Option(name="quantized", label="int8 of ZeRO++", choices=(TRIED,)),
    Option(name="offload", label="offload to", choices=(Place.CPU.value, Place.NVME.value)),
    Option(name="top", label="layouts to list"),
)
OPTIONS = (*MODEL, *JOB, *FILTERS)


def typed(view: View) -> Mapping[str, str]:
    """Option -> its text in the address, or its usual one."""
    return {option.name: view.text(option.name) or option.usual for option in OPTIONS}


def usual_question() -> Question:
    """The question of an address without parameters."""
    return question(typed(View()))


def question(texts: Mapping[str, str], *, like: str | None = None) -> Question:
    """The question of these texts. Raises UsageError for what is not a number, not a choice, or impossible."""
    values = {option.name: _value(option, texts[option.name]) for option in OPTIONS if texts[option.name]}
    return Question(**values, like=like)  # type: ignore[arg-type]


def _value(option: Option, text: str) -> object:
    if option.choices:
        chosen = _chosen(option, text)
        return int(chosen) if option.name == "zero" else chosen == TRIED or chosen
    digits = text.replace(",", "")
    try:
        number = float(digits)
    except ValueError:
        number = -1.0
    if not 0 <= number <= MAX * 1000 or (option.whole and number != int(number)):
        kind = "whole number" if option.whole else "number"
        raise UsageError(f"{option.label} = {text!r} is not a {kind} from 0 to {MAX * 1000:g}")
    return int(number) if option.whole else number


def _chosen(option: Option, text: str) -> str:
    if text not in option.choices:
        raise UsageError(f"{option.label} = {text!r} is not one of {', '.join(option.choices)}")
    return text
