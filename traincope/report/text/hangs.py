"""Hangs alone, as a document and as text."""

from rich.console import Console
from rich.text import Text

from traincope.analysis import Finding, Hang
from traincope.report import schema
from traincope.report.document.parts import finding_of
from traincope.report.text.layout.lines import Trimmed, indented, text
from traincope.report.text.sections.verdict import verdict
from traincope.units import numbers

MAX_FRAMES = 12
NOTHING = "No rank hangs, and no collective mismatches, as far as the records show."


def hang_document(hangs: tuple[Hang, ...], findings: tuple[Finding, ...]) -> schema.HangAnswer:
    """Return the object that `traincope hang --format json` prints. `findings`: of the same hangs, in their order."""
    return schema.HangAnswer(
        schema_version=schema.SCHEMA_VERSION,
        hangs=[schema.convert(hang, schema.Hang) for hang in hangs],
        verdict=[finding_of(finding, wall_ns=0) for finding in findings],
    )


def render_hangs(answer: schema.HangAnswer, console: Console) -> None:
    """Print each hang with its advice, and the stack of the first culprit."""
    if not answer["hangs"]:
        console.print(text(NOTHING))
        return
    for renderable in verdict(answer["verdict"], cost=None):
        console.print(Trimmed(renderable), end="")
    for hang in answer["hangs"]:
        if hang["stack"]:
            console.print()
            head = f"STACK  of {numbers(hang['culprits'][:1], 'rank')}, innermost first"
            console.print(Text(head, style="bold"))
            console.print(Trimmed(indented(text(frame) for frame in hang["stack"][:MAX_FRAMES])), end="")
