"""Hangs alone, as a document and as text."""

from collections.abc import Iterator

from rich.console import Console

from traincope.analysis import Finding, Hang
from traincope.lines import text
from traincope.report import schema
from traincope.report.document.parts import finding_of
from traincope.report.sections.hangs import NOTHING, stack
from traincope.report.sections.section import Listing, Section
from traincope.report.sections.verdict import verdict
from traincope.report.text.section import on_console, print_sections
from traincope.units import numbers

MAX_FRAMES = 12
UNDECIDED = "Unknown: the evidence does not show that a rank hangs."


def hang_document(
    hangs: tuple[Hang, ...],
    findings: tuple[Finding, ...],
    *,
    next_step: int = 0,
    lacks: tuple[str, ...] = (),
    native_stacks: tuple[schema.NativeStack, ...] = (),
) -> schema.HangAnswer:
    """Return the object that `traincope hang --format json` prints.

    `findings`: of the same hangs, in their order. `next_step`: the first step that no rank completed. `lacks`: what
    could not be asked, one sentence each.
    """
    return schema.HangAnswer(
        schema_version=schema.SCHEMA_VERSION,
        hangs=schema.plain(hangs),
        verdict=[finding_of(finding, wall_ns=0) for finding in findings],
        next_step=next_step,
        lacks=list(lacks),
        native_stacks=list(native_stacks),
    )


def render_hangs(answer: schema.HangAnswer, console: Console) -> None:
    """Print each hang with its advice, and the stack of the first culprit."""
    judged = on_console(verdict(answer["verdict"], cost=None), answer)
    head = judged if answer["hangs"] else (text(UNDECIDED if answer["lacks"] else NOTHING),)
    print_sections((head, *(on_console(section, answer) for section in _below(answer))), console)


def _below(answer: schema.HangAnswer) -> Iterator[Section]:
    for hang in answer["hangs"]:
        if hang["stack"]:
            yield stack("Stack", numbers(hang["culprits"][:1], "rank"), hang["stack"][:MAX_FRAMES])
    for native in answer["native_stacks"]:
        frames = native["frames"][:MAX_FRAMES] or [native["problem"] or "no frame could be read"]
        yield stack("Native stack", f"rank {native['rank']} (process {native['pid']})", frames)
    if answer["lacks"]:
        yield Section(
            name="lacks", title="Not known", parts=(Listing(caption="Not known", lines=tuple(answer["lacks"])),)
        )
