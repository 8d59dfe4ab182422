"""One colour per ledger term, the same in text, figures, HTML, viewer and dashboards.

The hues are Okabe & Ito's eight, which remain distinct under every common colour blindness (Okabe & Ito 2008, "Color
Universal Design"). Each hue is a family of terms and its tints are the members: green is productive work, orange and
vermillion are communication, blue is the pipeline and the parts of a step that are not training, purple is waiting for
storage, yellow is the host, grey is unexplained time. Shades of a hue are the parts of the job's time that contain a
family.
"""

from collections.abc import Mapping

from traincope.plan.pipeline.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD
from traincope.topology import KNOWN_AXES

GREEN = "#009E73"
ORANGE = "#E69F00"
VERMILLION = "#D55E00"
BLUE = "#0072B2"
SKY_BLUE = "#56B4E9"
PURPLE = "#CC79A7"
YELLOW = "#F0E442"
GREY = "#999999"

_WHITE, _BLACK = 255, 0
_AXIS_TINT = 0.07
"""Tint added per axis; ten axes still do not reach white."""


def tint(colour: str, amount: float) -> str:
    """Mix `colour` ("#RRGGBB") with white; `amount` in [0, 1]."""
    return _mixed(colour, _WHITE, amount)


def shade(colour: str, amount: float) -> str:
    """Mix `colour` ("#RRGGBB") with black; `amount` in [0, 1]."""
    return _mixed(colour, _BLACK, amount)


def channels(colour: str) -> tuple[int, int, int]:
    """Return red, green and blue of `colour` ("#RRGGBB"), in [0, 255]."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return red, green, blue


def translucent(colour: str, opacity: float) -> str:
    """Return `colour` ("#RRGGBB") as CSS with an opacity in [0, 1]."""
    red, green, blue = channels(colour)
    return f"rgba({red},{green},{blue},{opacity:g})"


def _mixed(colour: str, other: int, amount: float) -> str:
    mixed = (round(channel + (other - channel) * amount) for channel in channels(colour))
    return "#" + "".join(f"{channel:02X}" for channel in mixed)


_TERMS = {
    "ideal": shade(GREEN, 0.35),
    "redundant_compute": shade(ORANGE, 0.5),
    "kernel_inefficiency": shade(YELLOW, 0.35),
    "forward": GREEN,
    "backward": tint(GREEN, 0.3),
    "recompute": tint(GREEN, 0.5),
    "optimizer": tint(GREEN, 0.7),
    "other_compute": tint(GREEN, 0.85),
    "bubble.schedule": BLUE,
    "bubble.imbalance": SKY_BLUE,
    "bubble.jitter": tint(SKY_BLUE, 0.5),
    "generate": tint(BLUE, 0.25),
    "reward": tint(BLUE, 0.45),
    "logprob": tint(BLUE, 0.6),
    "advantage": tint(BLUE, 0.7),
    "weight_sync": shade(BLUE, 0.2),
    "environment": shade(BLUE, 0.4),
    "data_wait": PURPLE,
    "job_wait": shade(PURPLE, 0.3),
    "objects": shade(PURPLE, 0.55),
    "checkpoint_stall": tint(PURPLE, 0.3),
    "evaluation": tint(PURPLE, 0.6),
    "exposed_memory": tint(YELLOW, 0.6),
    "gc": YELLOW,
    "compile": tint(YELLOW, 0.2),
    "sync": tint(YELLOW, 0.4),
    "launch_gap": tint(YELLOW, 0.75),
    "kernel_wait": shade(YELLOW, 0.15),
    "unattributed": GREY,
    "productive": shade(GREEN, 0.2),
    "lost": shade(VERMILLION, 0.3),
    "rolled_back": shade(VERMILLION, 0.5),
    "skipped": shade(ORANGE, 0.25),
    "startup": shade(SKY_BLUE, 0.25),
    "restart": shade(SKY_BLUE, 0.5),
    "other": tint(GREY, 0.5),
}
"""Terms of the ledger, of utilization, and of the job's time."""
_PER_AXIS = {"exposed_transfer": ORANGE, "exposed_wait": VERMILLION}

ACTIONS: Mapping[str, str] = {
    FORWARD: _TERMS["forward"],
    BACKWARD: tint(GREEN, 0.45),
    BACKWARD_INPUT: tint(GREEN, 0.45),
    BACKWARD_WEIGHT: tint(GREEN, 0.75),
}
"""Kind of pipeline action -> its colour. A backward is either whole or split."""

SEVERE = VERMILLION
"""Colour of faults and losses."""
GOOD = GREEN
"""Colour of a healthy run."""


def colour(term: str) -> str:
    """Return the colour of a ledger term, e.g. "forward" or "exposed_wait[fsdp]", as "#RRGGBB".

    An unknown term is grey, like unexplained time, and so is a part of a step that the training names, but lighter.
    """
    name, _, axis = term.partition("[")
    if name in _PER_AXIS:
        return tint(_PER_AXIS[name], _AXIS_TINT * _axis_index(axis.rstrip("]")))
    return _TERMS.get(term, tint(GREY, 0.3) if term.startswith("span.") else GREY)


def _axis_index(axis: str) -> int:
    return KNOWN_AXES.index(axis) if axis in KNOWN_AXES else len(KNOWN_AXES)
