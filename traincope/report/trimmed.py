"""Lines that diff, grep and print anywhere: no trailing blanks, ASCII where the output is ASCII."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment


class Trimmed:
    """What `renderable` draws, each line cut after its last visible character.

    Where the console cannot carry other characters than ASCII, each of them becomes "?": a report
    must not die of a name, or of the ellipsis that shortens one.
    """

    def __init__(self, renderable: RenderableType) -> None:
        self.renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self.renderable, options, pad=False):
            trimmed = _trim(line)
            yield from (_ascii(segment) for segment in trimmed) if options.ascii_only else trimmed
            yield Segment.line()


def _trim(line: Iterable[Segment]) -> list[Segment]:
    kept = list(line)
    while kept and not kept[-1].text.rstrip():
        kept.pop()
    if kept:
        kept[-1] = Segment(kept[-1].text.rstrip(), kept[-1].style)
    return kept


def _ascii(segment: Segment) -> Segment:
    return Segment(segment.text.encode("ascii", "replace").decode("ascii"), segment.style)
