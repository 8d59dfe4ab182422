"""Make the timeline's picture from a view of a run."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from traincope.figures.run.arrangement import Arrangement, arranged
from traincope.figures.run.timeline import Gap, Mark, Part, Picture
from traincope.report.schema import Document
from traincope.tiles.storage import Header, Tiles
from traincope.tiles.zoom import Bars, Raster, Window, zoom
from traincope.units import duration, numbers, share
from traincope.viewer.library.library import Opened
from traincope.viewer.timeline.picking import Picked, find, parts_of, pick, spans_of
from traincope.viewer.timeline.span_details import class_name, hover, title
from traincope.viewer.view import View

COLUMNS = 1024
STEP_MARGIN = 0.05
"""Share of a step's length shown before and after it."""
INSTANT_MARGIN = 0.02
"""Share of the run's length shown before and after an instant."""
LETTER = 7 / 1000
"""Share of the window's width that a letter takes."""
MIN_LETTERS = 2.0
"""Letters that must fit into a bar before its name is looked up."""
MAX_MARKS = 500
SHORTEST_GAP = 0.003
"""Share of the run's length; shorter stretches without records are not hatched."""


def window_of(view: View, header: Header) -> tuple[int, int]:
    """[begin, end), ns since the run began: the address's window, its step, its instant, or the whole run.

    The window reaches at most one length of the run before its begin and after its end.
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
            margin = round((stop - start) * STEP_MARGIN)
            return start - margin, stop + margin
    at = view.whole("at")
    if at is not None:
        margin = round(header.length_ns * INSTANT_MARGIN)
        return at - margin, at + margin
    return 0, whole


def arrangement_of(view: View, tiles: Tiles) -> Arrangement:
    return _arranged(tiles, view.ranks(), view.texts("lanes"))


@lru_cache(maxsize=8)
def _arranged(tiles: Tiles, ranks: tuple[int, ...] | None, lanes: tuple[str, ...]) -> Arrangement:
    """The cached arrangement; zooming does not change it."""
    return arranged(tiles.header, ranks=ranks, lanes=lanes or None)


def picture(view: View, opened: Opened, tiles: Tiles) -> Picture:
    """The picture of the timeline in the view."""
    header = tiles.header
    arrangement, (begin, end) = arrangement_of(view, tiles), window_of(view, header)
    window = Window(begin_ns=begin, end_ns=end, columns=COLUMNS)
    drawn = zoom(tiles, [line.rows for line in arrangement.lines], window)
    picked = find(tiles, view.text("pick") or "")
    return Picture(
        arrangement=arrangement,
        drawn=drawn,
        begin_ns=begin,
        end_ns=end,
        classes=header.classes,
        steps=header.steps,
        marks=marks(opened.document, header),
        gaps=tuple(gaps(opened.document, tiles, arrangement)),
        selected=view.stretch("selected"),
        parts=_parts(tiles, arrangement, picked) if picked else (),
        **(_texts(opened, tiles, drawn, begin_ns=begin, end_ns=end) if isinstance(drawn, Bars) else {}),
    )


def marks(document: Document | None, header: Header) -> tuple[Mark, ...]:
    """Marks of faults and events; faults take precedence where there are too many."""
    if document is None:
        return ()
    own = [fault for fault in document["faults"] if fault["attempt"] in (None, document["run"]["attempt"])]
    faults = sorted(own, key=lambda fault: fault["mark"])[:MAX_MARKS]
    return tuple(
        Mark(
            at_ns=fault["at_ns"] - header.origin_ns,
            text=f"{fault['kind'].replace('_', ' ')}: {fault['what']}\n"
            + (numbers(fault["ranks"], "rank") if fault["ranks"] else "the job"),
            severe=not fault["mark"] and fault["kind"] != "no_end",
        )
        for fault in faults
    )


def gaps(document: Document | None, tiles: Tiles, arrangement: Arrangement) -> Iterator[Gap]:
    """Stretches before the first and after the last record of each rank, and steps without detail of all ranks.

    None where lines hold several ranks.
    """
    lines, header = arrangement.lines, tiles.header
    if not lines or any(len(line.rows) > 1 for line in lines):
        return
    shortest_ns = header.length_ns * SHORTEST_GAP
    for rank in dict.fromkeys(line.rows[0].rank for line in lines):
        own = [at for at, line in enumerate(lines) if line.rows[0].rank == rank]
        rows = [row for row in header.rows if row.rank == rank and row.num_pieces]
        if not rows or own != [*range(own[0], own[-1] + 1)]:
            continue
        first = min(int(tiles.starts[row.first_piece]) for row in rows)
        last = max(int(tiles.ends[row.first_piece + row.num_pieces - 1]) for row in rows)
        for start, end, where in ((0, first, "before the first"), (last, header.length_ns, "after the last")):
            if end - start > shortest_ns:
                text = f"rank {rank}: {duration(end - start)} {where} record"
                yield Gap(first_line=own[0], last_line=own[-1], start_ns=start, end_ns=end, text=text)
    times = {number: (start, end) for number, start, end in header.steps}
    for first, last in [] if document is None else document["recorder"]["unwatched_steps"]:
        if first in times and last in times:
            text = f"steps {first} to {last}: recorded without detail"
            start, end = times[first][0], times[last][1]
            yield Gap(first_line=0, last_line=len(lines) - 1, start_ns=start, end_ns=end, text=text)


def _texts(opened: Opened, tiles: Tiles, bars: Bars, *, begin_ns: int, end_ns: int) -> dict[str, list[str]]:
    """Address, hover text and label of each bar."""
    spans, owners = spans_of(tiles.spans[bars.span]), [opened.row_of(at) for at in bars.span.tolist()]
    hovers = [
        hover(tiles, span, row, class_number)
        for span, row, class_number in zip(spans, owners, bars.class_number.tolist(), strict=True)
    ]
    seen_ns = np.minimum(bars.end_ns, end_ns) - np.maximum(bars.start_ns, begin_ns)
    letters = (seen_ns / (end_ns - begin_ns) / LETTER).tolist()
    titles = [title(tiles, span) if room > MIN_LETTERS else "" for span, room in zip(spans, letters, strict=True)]
    return {
        "picks": [pick(span, row) for span, row in zip(spans, owners, strict=True)],
        "hovers": hovers,
        "labels": [text if len(text) + 1 < room else "" for text, room in zip(titles, letters, strict=True)],
    }


def _parts(tiles: Tiles, arrangement: Arrangement, picked: Picked) -> Sequence[Part]:
    """The ranks' parts of a collective, on its lane where that is shown, otherwise on any line of the rank."""
    lines = {(rank, line.lane): at for at, line in enumerate(arrangement.lines) for rank in line.ranks}
    any_line = {rank: at for at, line in reversed(list(enumerate(arrangement.lines))) for rank in line.ranks}
    parts = []
    for part in parts_of(tiles, picked):
        at = lines.get((part.rank, picked.row.lane), any_line.get(part.rank))
        if at is not None:
            bound = "clock error unknown" if part.bound_ns is None else f"clock error within {duration(part.bound_ns)}"
            text = f"rank {part.rank}: {duration(part.end_ns - part.start_ns)}, {bound}"
            parts.append(Part(line=at, start_ns=part.start_ns, end_ns=part.end_ns, bound_ns=part.bound_ns, text=text))
    return parts


def shares_at(view: View, tiles: Tiles, *, at_ns: float, height: float) -> tuple[str, list[tuple[str, str]]] | None:
    """The line of a raster's pixel and the share of each class in it; None outside all lines."""
    arrangement, (begin, end) = arrangement_of(view, tiles), window_of(view, tiles.header)
    line = next((line for line in arrangement.lines if line.top <= height < line.top + line.height), None)
    if line is None:
        return None
    half = max((end - begin) // COLUMNS // 2, 1)
    window = Window(begin_ns=int(at_ns) - half, end_ns=int(at_ns) + half, columns=1)
    drawn = zoom(tiles, [line.rows], window, max_bars=-1)
    if not isinstance(drawn, Raster):
        return None
    shares = drawn.shares[0].mean(axis=1)
    order = np.argsort(-shares, kind="stable").tolist()
    named = [(class_name(tiles.header.classes[drawn.classes[at]]), float(shares[at])) for at in order]
    return arrangement.name(line), [(name, share(ratio)) for name, ratio in named if ratio > 0]
