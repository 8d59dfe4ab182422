"""Hangs alone, as a document and as text."""

from rich.console import Console
from rich.text import Text

from traincope.analysis import Finding, Hang
from traincope.lines import Trimmed, indented, text
from traincope.report import schema
from traincope.report.document.parts import finding_of
from traincope.report.sections.verdict import verdict
from traincope.report.text.section import on_console
from traincope.units import numbers

MAX_FRAMES = 12
UNDECIDED = "Unknown: the evidence does not show that a rank hangs."
NOTHING = "No rank hangs, and no collective mismatches, as far as the records show."


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
    if answer["hangs"]:
        for renderable in on_console(verdict(answer["verdict"], cost=None), answer):
            console.print(Trimmed(renderable), end="")
    else:
        console.print(text(UNDECIDED if answer["lacks"] else NOTHING))
    for hang in answer["hangs"]:
        if hang["stack"]:
            console.print()
            head = f"STACK  of {numbers(hang['culprits'][:1], 'rank')}, innermost first"
            console.print(Text(head, style="bold"))
            console.print(Trimmed(indented(text(frame) for frame in hang["stack"][:MAX_FRAMES])), end="")
    for stack in answer["native_stacks"]:
        console.print()
        head = f"NATIVE STACK  of rank {stack['rank']} (process {stack['pid']}), innermost first"
        console.print(Text(head, style="bold"))
        lines = stack["frames"][:MAX_FRAMES] or [stack["problem"] or "no frame could be read"]
        console.print(Trimmed(indented(text(line) for line in lines)), end="")
    if answer["lacks"]:
        console.print()
        console.print(Text("NOT KNOWN", style="bold"))
        console.print(Trimmed(indented(text(sentence) for sentence in answer["lacks"])), end="")
