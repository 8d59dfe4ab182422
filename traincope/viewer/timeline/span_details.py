"""Details of a span in words, for the inspector and for hovering."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from traincope.events import DEVICE_MESSAGE, NO_PEER, NO_STEP, Flag, Kind
from traincope.figures.drawing.time_axis import instant
from traincope.tiles.storage import NOTHING, Row, Tiles
from traincope.units import duration, numbers, size
from traincope.viewer.timeline.picking import RankPart, Span

MAX_RANKS = 24
_STEP, _ACTION, _STALL, _COLLECTIVE = (int(kind) for kind in (Kind.STEP, Kind.ACTION, Kind.STALL, Kind.COLLECTIVE))
_MEANINGS = {
    "exposed_transfer": "exposed transfer",
    "exposed_wait": "exposed wait",
    "overlapped": "overlapped with compute",
}
_NOTES = tuple(
    (int(flag), text)
    for flag, text in (
        (Flag.ASYNC, "asynchronous"),
        (Flag.DONE_BEFORE_WAIT, "complete before the wait began, so the recorded end is an upper bound"),
        (Flag.RAISED, "raised an exception"),
        (Flag.GUESSED, "boundaries inferred"),
        (Flag.DEVICE, "measured on the device"),
        (Flag.SKIPPED, "optimizer step skipped"),
    )
)
_SIDES = {"send": "to rank", "recv": "from rank"}


def class_name(name: str) -> str:
    """Display name of a class of spans, e.g. "fsdp: exposed wait"."""
    kind, bracket, axis = name.partition("[")
    if bracket and kind in _MEANINGS:
        return f"{axis.removesuffix(']')}: {_MEANINGS[kind]}"
    return name.replace("_", " ")


def title(tiles: Tiles, span: Span) -> str:
    """Name of a span."""
    kind, number = span["kind"], span["name"]
    if kind == _STEP:
        return f"step {span['step']}"
    name = tiles.header.names[number] if 0 <= number < len(tiles.header.names) else "?"
    if kind == _ACTION:
        return f"{name}{span['sequence']}"
    return f"{name} (stall)" if kind == _STALL else name


def describe(tiles: Tiles, span: Span, row: Row) -> Iterator[tuple[str, str]]:
    """Names and values of every recorded detail."""
    name, kind = title(tiles, span), class_name(tiles.header.classes[span["class"]])
    yield "span", name + (f", {kind}" if kind not in (name, "unattributed") else "")
    yield from _details(tiles, span, row)


def hover(tiles: Tiles, span: Span, row: Row, class_number: int) -> str:
    """The same details as lines of text; `class_number` is the class of the hovered part."""
    first = f"{title(tiles, span)}, {class_name(tiles.header.classes[class_number])}"
    return "\n".join([first, *(f"{name}: {value}" for name, value in _details(tiles, span, row))])


def _details(tiles: Tiles, span: Span, row: Row) -> Iterator[tuple[str, str]]:
    start, end, kind = span["start_ns"], span["end_ns"], span["kind"]
    yield "location", f"rank {row.rank}, {row.lane}" + (f", step {span['step']}" if span["step"] != NO_STEP else "")
    yield "duration", f"{duration(end - start)}{' so far, no end was recorded' if span['open'] else ''}"
    yield "time", f"{instant(start, step_ns=1)} to {instant(end, step_ns=1)}"
    if kind == _ACTION:
        yield "pipeline", f"stage {span['peer']}, microbatch {span['sequence']}"
    if kind in (_COLLECTIVE, _STALL):
        yield from _collective(tiles, span)
    notes = ", ".join(_flags(span["flags"])) if span["flags"] else ""
    if notes:
        yield "notes", notes


def _collective(tiles: Tiles, span: Span) -> Iterator[tuple[str, str]]:
    if 0 <= span["group"] < len(tiles.header.groups):
        group = tiles.header.groups[span["group"]]
        yield (
            "group",
            f"{group.axis} ({_members(group.ranks[: MAX_RANKS + 1])}), collective {span['sequence']}",
        )
    if span["peer"] != NO_PEER:
        side = _SIDES.get(tiles.header.names[span["name"]], "root")
        yield side, f"{span['peer']}"
    if span["kind"] != _STALL or span["flags"] & DEVICE_MESSAGE != DEVICE_MESSAGE:
        yield "message size", size(span["value"])
    if span["wait_ns"] != NOTHING:
        yield "wait", f"{duration(span['wait_ns'])} for other ranks"
    elif span["instance"] == NOTHING:
        yield "wait", "unknown, no other rank recorded this collective"


@lru_cache(maxsize=4096)
def _members(ranks: tuple[int, ...]) -> str:
    """The first members of a group."""
    return numbers(ranks[:MAX_RANKS], "rank") + (" ..." if len(ranks) > MAX_RANKS else "")


def _flags(flags: int) -> Iterator[str]:
    return (text for flag, text in _NOTES if flags & flag)


def last_arrival(parts: Sequence[RankPart]) -> str:
    """The rank that arrived last, named only where the clocks' error bounds allow no other."""
    *others, last = sorted(parts, key=lambda part: part.start_ns)
    doubtful = []
    for part in others:
        if part.bound_ns is None or last.bound_ns is None:
            return "last rank unknown, the clocks have no error bound"
        apart = part.bound_ns + last.bound_ns
        if last.start_ns - part.start_ns <= apart:
            doubtful.append(apart)
    if doubtful and not any(doubtful):
        return "several ranks arrived last, at the same instant"
    if doubtful:
        return f"last rank unknown, the clocks may differ by {duration(max(doubtful))}"
    return f"rank {last.rank} arrived last, at {instant(last.start_ns, step_ns=1)}"
