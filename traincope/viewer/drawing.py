"""A view of a run -> the picture of its timeline."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.terms import exposed_transfer, exposed_wait
from traincope.analysis.zoom import Bars, Raster, Window, zoom
from traincope.figures.arrangement import Arrangement, arranged
from traincope.figures.timeline import Mark, Part, Picture
from traincope.report.schema import Document
from traincope.store.tiles import Header, Tiles
from traincope.units import duration, numbers, share
from traincope.viewer.library import Opened
from traincope.viewer.picking import Picked, find, parts_of, pick, spans_of
from traincope.viewer.telling import class_name, hover, title
from traincope.viewer.view import View

COLUMNS = 1024
BESIDE = 0.05
"""Of a step's length, shown before and after it."""
AROUND = 0.02
"""Of the run's length, shown around an instant."""
LETTER = 7 / 1000
"""Of the window's width, that a letter takes."""
SHORTEST = 2.0
"""Letters that a bar has to have room for before it is worth a look what it is called."""
MOST_MARKS = 500


def window_of(view: View, header: Header) -> tuple[int, int]:
    """[begin, end), ns since the run began: what the address says, else the step, else around the instant, else all.

    Not more than its length before and behind the run, where nothing is.
    """
    whole = max(header.length_ns, 1)
    begin, end = view.whole("from"), view.whole("to")
    if begin is not None and end is not None:
        begin, end = max(begin, -whole), min(end, 2 * whole)
        if end > begin:
            return begin, end
    number = view.whole("step")
    for step, start, stop in header.steps:
        if step == number:
            beside = round((stop - start) * BESIDE)
            return start - beside, stop + beside
    at = view.whole("at")
    if at is not None:
        around = round(header.length_ns * AROUND)
        return at - around, at + around
    return 0, whole


def arrangement_of(view: View, tiles: Tiles) -> Arrangement:
    return _arranged(tiles, view.ranks(), view.texts("lanes"))


@lru_cache(maxsize=8)
def _arranged(tiles: Tiles, ranks: tuple[int, ...] | None, lanes: tuple[str, ...]) -> Arrangement:
    """A zoom changes nothing of it."""
    return arranged(tiles.header, ranks=ranks, lanes=lanes or None)


def picture(view: View, opened: Opened, tiles: Tiles) -> Picture:
    """Everything of the timeline that the view shows."""
    header = tiles.header
    arrangement, (begin, end) = arrangement_of(view, tiles), window_of(view, header)
    window = Window(begin_ns=begin, end_ns=end, columns=COLUMNS)
    drawn = zoom(tiles, [line.rows for line in arrangement.lines], window, waiting=waiting(header.classes))
    picked = find(tiles, view.text("pick") or "")
    return Picture(
        arrangement=arrangement,
        drawn=drawn,
        begin_ns=begin,
        end_ns=end,
        classes=header.classes,
        steps=header.steps,
        marks=marks(opened.document, header),
        parts=_parts(tiles, arrangement, picked) if picked else (),
        **(_told(opened, tiles, drawn, begin_ns=begin, end_ns=end) if isinstance(drawn, Bars) else {}),
    )


@lru_cache(maxsize=8)
def waiting(classes: tuple[str, ...]) -> NDArray[np.uint8]:
    """Class of a transfer that a thread stood still for -> class of the waiting before it."""
    table = np.arange(256).astype(np.uint8)
    prefix = exposed_transfer("").removesuffix("]")
    for number, name in enumerate(classes):
        if name.startswith(prefix):
            wait = exposed_wait(name.removeprefix(prefix).removesuffix("]"))
            table[number] = classes.index(wait) if wait in classes else number
    return table


def marks(document: Document | None, header: Header) -> tuple[Mark, ...]:
    """Faults, and what they are read beside; faults first where they are many."""
    if document is None:
        return ()
    found = sorted(document["faults"], key=lambda fault: fault["mark"])[:MOST_MARKS]
    return tuple(
        Mark(
            at_ns=fault["at_ns"] - header.origin_ns,
            text=f"{fault['kind'].replace('_', ' ')}: {fault['what']}\n"
            + (numbers(fault["ranks"], "rank") if fault["ranks"] else "the job"),
            severe=not fault["mark"] and fault["kind"] != "no_end",
        )
        for fault in found
    )


def _told(opened: Opened, tiles: Tiles, bars: Bars, *, begin_ns: int, end_ns: int) -> dict[str, list[str]]:
    """Of each bar: what the address calls it, what is known of it, what is written in it."""
    spans, owners = spans_of(tiles.spans[bars.span]), [opened.row_of(at) for at in bars.span.tolist()]
    hovers = [hover(tiles, span, row, of) for span, row, of in zip(spans, owners, bars.of.tolist(), strict=True)]
    seen_ns = np.minimum(bars.end_ns, end_ns) - np.maximum(bars.start_ns, begin_ns)
    letters = (seen_ns / (end_ns - begin_ns) / LETTER).tolist()
    titles = [title(tiles, span) if room > SHORTEST else "" for span, room in zip(spans, letters, strict=True)]
    return {
        "picks": [pick(span, row) for span, row in zip(spans, owners, strict=True)],
        "hovers": hovers,
        "labels": [one if len(one) + 1 < room else "" for one, room in zip(titles, letters, strict=True)],
    }


def _parts(tiles: Tiles, arrangement: Arrangement, picked: Picked) -> Sequence[Part]:
    """On the lines of the collective's lane, where they are shown, else of the ranks."""
    lines = {(rank, line.lane): at for at, line in enumerate(arrangement.lines) for rank in line.ranks}
    any_line = {rank: at for at, line in reversed(list(enumerate(arrangement.lines))) for rank in line.ranks}
    found = []
    for part in parts_of(tiles, picked):
        at = lines.get((part.rank, picked.row.lane), any_line.get(part.rank))
        if at is not None:
            bound = (
                "nothing bounds its clock" if part.bound_ns is None else f"its clock within {duration(part.bound_ns)}"
            )
            text = f"rank {part.rank}: {duration(part.end_ns - part.start_ns)}, {bound}"
            found.append(Part(line=at, start_ns=part.start_ns, end_ns=part.end_ns, bound_ns=part.bound_ns, text=text))
    return found


def shares_at(view: View, tiles: Tiles, *, at_ns: float, height: float) -> tuple[str, list[tuple[str, str]]] | None:
    """Of a pixel of a raster: whose it is, and what share each class has; None beside all lines."""
    arrangement, (begin, end) = arrangement_of(view, tiles), window_of(view, tiles.header)
    line = next((one for one in arrangement.lines if one.top <= height < one.top + one.height), None)
    if line is None:
        return None
    half = max((end - begin) // COLUMNS // 2, 1)
    window = Window(begin_ns=int(at_ns) - half, end_ns=int(at_ns) + half, columns=1)
    drawn = zoom(tiles, [line.rows], window, waiting=waiting(tiles.header.classes), most_bars=-1)
    if not isinstance(drawn, Raster):
        return None
    shares = drawn.shares[0].mean(axis=1)
    order = np.argsort(-shares, kind="stable").tolist()
    named = [(class_name(tiles.header.classes[drawn.classes[at]]), float(shares[at])) for at in order]
    return arrangement.name(line), [(name, share(ratio)) for name, ratio in named if ratio > 0]
