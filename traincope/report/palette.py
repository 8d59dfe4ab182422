"""One colour per ledger term, the same in text, HTML, viewer and dashboards.

Hues are Okabe & Ito's eight, which stay apart under every common colour blindness (Okabe & Ito
2008, "Color Universal Design"). A hue is a family of terms, its tints are the members: green is
work that trains, orange and vermillion are communication, blue is the pipeline, purple is waiting
for storage, yellow is the host, grey is what nothing explains.
"""

from traincope.topology import KNOWN_AXES

GREEN = "#009E73"
ORANGE = "#E69F00"
VERMILLION = "#D55E00"
BLUE = "#0072B2"
SKY_BLUE = "#56B4E9"
PURPLE = "#CC79A7"
YELLOW = "#F0E442"
GREY = "#999999"

_WHITE = 255
_AXIS_TINT = 0.07
"""How much lighter each further axis is; ten axes still are not white."""


def tint(colour: str, amount: float) -> str:
    """`colour` ("#RRGGBB") mixed with white, `amount` in [0, 1]."""
    channels = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(channel + (_WHITE - channel) * amount):02X}" for channel in channels)


_TERMS = {
    "forward": GREEN,
    "backward": tint(GREEN, 0.3),
    "recompute": tint(GREEN, 0.5),
    "optimizer": tint(GREEN, 0.7),
    "bubble.schedule": BLUE,
    "bubble.imbalance": SKY_BLUE,
    "bubble.jitter": tint(SKY_BLUE, 0.5),
    "data_wait": PURPLE,
    "checkpoint_stall": tint(PURPLE, 0.3),
    "evaluation": tint(PURPLE, 0.6),
    "exposed_memory": tint(YELLOW, 0.6),
    "gc": YELLOW,
    "compile": tint(YELLOW, 0.2),
    "sync": tint(YELLOW, 0.4),
    "launch_gap": tint(YELLOW, 0.75),
    "unattributed": GREY,
}
_PER_AXIS = {"exposed_transfer": ORANGE, "exposed_wait": VERMILLION}

SEVERE = VERMILLION
"""Something is wrong and named."""
GOOD = GREEN
"""Nothing is wrong."""


def colour(term: str) -> str:
    """The colour of a ledger term, e.g. "forward" or "exposed_wait[fsdp]", as "#RRGGBB".

    A term the palette does not know is grey, as unexplained time is.
    """
    name, _, axis = term.partition("[")
    if name in _PER_AXIS:
        return tint(_PER_AXIS[name], _AXIS_TINT * _axis_index(axis.rstrip("]")))
    return _TERMS.get(term, GREY)


def _axis_index(axis: str) -> int:
    return KNOWN_AXES.index(axis) if axis in KNOWN_AXES else len(KNOWN_AXES)
