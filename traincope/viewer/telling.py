"""What is known of a span, in words."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from traincope.events import NO_PEER, NO_STEP, Flag, Kind
from traincope.figures.time_axis import instant
from traincope.store.tiles import NOTHING, Row, Tiles
from traincope.units import duration, numbers, size
from traincope.viewer.picking import RankPart, Span

MOST_RANKS = 24
_STEP, _ACTION, _STALL, _COLLECTIVE = (int(kind) for kind in (Kind.STEP, Kind.ACTION, Kind.STALL, Kind.COLLECTIVE))
_MEANINGS = {
    "exposed_transfer": "the thread stood still for the transfer",
    "exposed_wait": "the thread waited for other ranks",
    "overlapped": "under way while the thread went on",
}
_NOTES = tuple(
    (int(flag), text)
    for flag, text in (
        (Flag.ASYNC, "asynchronous"),
        (Flag.DONE_BEFORE_WAIT, "complete before it was waited for, so that its end is later than the truth"),
        (Flag.RAISED, "raised an exception"),
        (Flag.GUESSED, "borders guessed"),
        (Flag.DEVICE, "measured on the device"),
        (Flag.SKIPPED, "the optimizer was not run"),
    )
)
_SIDES = {"send": "to rank", "recv": "from rank"}


def class_name(name: str) -> str:
    """Of a class, e.g. "fsdp: the thread waited for other ranks"."""
    kind, bracket, axis = name.partition("[")
    if bracket and kind in _MEANINGS:
        return f"{axis.removesuffix(']')}: {_MEANINGS[kind]}"
    return name.replace("_", " ")


def title(tiles: Tiles, span: Span) -> str:
    """What it is called."""
    kind, number = span["kind"], span["name"]
    if kind == _STEP:
        return f"step {span['step']}"
    name = tiles.header.names[number] if 0 <= number < len(tiles.header.names) else "?"
    if kind == _ACTION:
        return f"{name}{span['sequence']}"
    return f"{name} (the wait for it)" if kind == _STALL else name


def told(tiles: Tiles, span: Span, row: Row) -> Iterator[tuple[str, str]]:
    """Names and values of all that is known."""
    name, of = title(tiles, span), class_name(tiles.header.classes[span["of"]])
    yield "what", name + (f", {of}" if of not in (name, "unattributed") else "")
    yield from _details(tiles, span, row)


def hover(tiles: Tiles, span: Span, row: Row, of: int) -> str:
    """The same in a few lines; `of` is the class of the part that is pointed at."""
    first = f"{title(tiles, span)}, {class_name(tiles.header.classes[of])}"
    return "\n".join([first, *(f"{name}: {value}" for name, value in _details(tiles, span, row))])


def _details(tiles: Tiles, span: Span, row: Row) -> Iterator[tuple[str, str]]:
    start, end, kind = span["start_ns"], span["end_ns"], span["kind"]
    yield "where", f"rank {row.rank}, {row.lane}" + (f", step {span['step']}" if span["step"] != NO_STEP else "")
    yield "took", f"{duration(end - start)}{' so far: its end was not recorded' if span['open'] else ''}"
    yield "from", f"{instant(start, step_ns=1)} to {instant(end, step_ns=1)}"
    if kind == _ACTION:
        yield "pipeline", f"stage {span['peer']}, microbatch {span['sequence']}"
    if kind in (_COLLECTIVE, _STALL):
        yield from _collective(tiles, span)
    noted = ", ".join(_flags(span["flags"])) if span["flags"] else ""
    if noted:
        yield "noted", noted


def _collective(tiles: Tiles, span: Span) -> Iterator[tuple[str, str]]:
    if 0 <= span["group"] < len(tiles.header.groups):
        group = tiles.header.groups[span["group"]]
        yield "group", f"{group.axis} ({_members(group.ranks[: MOST_RANKS + 1])}), number {span['sequence']} on it"
    if span["peer"] != NO_PEER:
        side = _SIDES.get(tiles.header.names[span["name"]], "root")
        yield side, f"{span['peer']}"
    yield "moved", size(span["value"])
    if span["wait_ns"] != NOTHING:
        yield "of that", f"{duration(span['wait_ns'])} waiting for other ranks"
    elif span["instance"] == NOTHING:
        yield "of that", "no other rank's part is known"


@lru_cache(maxsize=4096)
def _members(ranks: tuple[int, ...]) -> str:
    """The first of them."""
    return numbers(ranks[:MOST_RANKS], "rank") + (" ..." if len(ranks) > MOST_RANKS else "")


def _flags(flags: int) -> Iterator[str]:
    return (text for flag, text in _NOTES if flags & flag)


def who_came_last(parts: Sequence[RankPart]) -> str:
    """Nobody is named whom another may have come after, as far as their clocks tell."""
    *others, last = sorted(parts, key=lambda part: part.start_ns)
    doubtful = []
    for part in others:
        if part.bound_ns is None or last.bound_ns is None:
            return "nobody knows who came last: nothing bounds how far their clocks are apart"
        apart = part.bound_ns + last.bound_ns
        if last.start_ns - part.start_ns <= apart:
            doubtful.append(apart)
    if doubtful and not any(doubtful):
        return "several came last, at one instant"
    if doubtful:
        return f"nobody knows who came last: their clocks may be {duration(max(doubtful))} apart"
    return f"rank {last.rank} came last, {instant(last.start_ns, step_ns=1)}"
