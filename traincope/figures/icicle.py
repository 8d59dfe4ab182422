"""Communication as an icicle: axis, operation, and of that waiting, exposed transfer, hidden transfer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from traincope.analysis import AxisOperation
from traincope.analysis.terms import exposed_transfer, exposed_wait
from traincope.figures.canvas import canvas
from traincope.figures.labels import label
from traincope.palette import GREY, colour, tint
from traincope.units import duration

HIDDEN = 0.6
"""How much lighter a transfer is that computing hides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    key: str
    parent: str
    name: str
    ns: float
    colour: str


def communication_icicle(operations: Sequence[AxisOperation], *, rank_steps: int) -> go.Figure:
    """Of one rank in one step; `rank_steps` is what the sums of `operations` hold, at least 1."""
    boxes = [box for box in _boxes(operations, rank_steps=rank_steps) if box.ns > 0]
    trace = go.Icicle(
        ids=[box.key for box in boxes],
        parents=[box.parent for box in boxes],
        labels=[box.name for box in boxes],
        values=[box.ns for box in boxes],
        branchvalues="total",
        text=[duration(box.ns) for box in boxes],
        texttemplate="%{label}<br>%{text}",
        marker={"colors": [box.colour for box in boxes], "line": {"width": 1}},
        hovertemplate="%{label}<br>%{text} a step, %{percentRoot:.1%} of all<extra></extra>",
        tiling={"orientation": "v", "pad": 1},
        pathbar={"visible": False},
        leaf={"opacity": 1},
        sort=False,
        textfont={"color": "#0b0f14"},
    )
    return canvas([trace], height=340)


def _boxes(operations: Sequence[AxisOperation], *, rank_steps: int) -> Iterator[_Box]:
    yield _Box(
        key="all", parent="", name="communication", ns=sum(map(_all, operations)) / rank_steps, colour=tint(GREY, 0.5)
    )
    for number, axis in enumerate(dict.fromkeys(operation.axis for operation in operations)):
        own = [operation for operation in operations if operation.axis == axis]
        paint = tint(colour(exposed_transfer(axis)), 0.3)
        whole = sum(map(_all, own)) / rank_steps
        yield _Box(key=f"{number}", parent="all", name=label(axis), ns=whole, colour=paint)
        for position, operation in enumerate(own):
            yield from _parts(operation, f"{number}", f"{number}.{position}", rank_steps=rank_steps)


def _parts(operation: AxisOperation, parent: str, key: str, *, rank_steps: int) -> Iterator[_Box]:
    sent = colour(exposed_transfer(operation.axis))
    name = label(operation.operation)
    yield _Box(key=key, parent=parent, name=name, ns=_all(operation) / rank_steps, colour=tint(sent, 0.45))
    parts = (
        ("wait", operation.wait_ns, colour(exposed_wait(operation.axis))),
        ("exposed transfer", _exposed_transfer(operation), sent),
        ("hidden transfer", _hidden(operation), tint(sent, HIDDEN)),
    )
    for what, ns, paint in parts:
        yield _Box(key=f"{key}.{what}", parent=key, name=what, ns=ns / rank_steps, colour=paint)


def _exposed_transfer(operation: AxisOperation) -> int:
    return max(operation.exposed_ns - operation.wait_ns, 0)


def _hidden(operation: AxisOperation) -> int:
    """Of its transfers, what no thread stood still for."""
    return max(operation.transfer_ns - _exposed_transfer(operation), 0)


def _all(operation: AxisOperation) -> int:
    return operation.wait_ns + _exposed_transfer(operation) + _hidden(operation)
