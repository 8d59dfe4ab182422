"""The comparison of two runs as text: verdict, changed terms, other differences."""

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from traincope.analysis import Basis, Diff, Difference, Judgement, TermChange
from traincope.analysis.diff.diff import STEP, Clock
from traincope.analysis.diff.significance import BLOCKS, LEVEL
from traincope.lines import indented, table, text
from traincope.palette import GOOD, SEVERE
from traincope.report import schema
from traincope.report.document.parts import finding_of
from traincope.report.text.section import print_sections
from traincope.units import MISSING, count, duration, share

CLOCKS = {Clock.HOST: "its hosts' clocks", Clock.MARKS: Clock.MARKS.value, Clock.TRACES: Clock.TRACES.value}
MIN_ROW_SHARE = 0.002
"""Share of step time below which a term without evidence of a change has no row."""
MAX_SETTINGS = 12
"""Maximum number of differences printed per family; the others are counted."""
MAX_VALUE_LENGTH = 48
"""Characters of a printed value."""


def diff_document(diff: Diff) -> schema.Diff:
    """Return the comparison as the object that `--format json` prints."""
    runs = [
        schema.ComparedRun(
            id=analysis.timeline.run.info.id,
            ranks=analysis.timeline.run.info.world_size,
            steps=diff.num_steps[at],
            sampled_steps=None if diff.sampled_steps is None else diff.sampled_steps[at],
            clock=diff.clocks[at].value,
        )
        for at, analysis in enumerate((diff.before, diff.after))
    ]
    return schema.convert(
        diff,
        schema.Diff,
        before=runs[0],
        after=runs[1],
        step=_moved(diff.step, diff),
        terms=[_moved(term, diff) for term in diff.terms],
        movers=[term.term for term in diff.movers],
        level=LEVEL,
        new_findings=[finding_of(finding, wall_ns=diff.after.ledger.timed_wall_ns) for finding in diff.new_findings],
    )


def _moved(moved: TermChange, diff: Diff) -> schema.TermChange:
    return schema.convert(moved, schema.TermChange, change_ratio=_ratio(moved.change, diff))


def _ratio(change: float, diff: Diff) -> float | None:
    return change / diff.step.before if diff.step.before else None


def render_diff(diff: Diff, console: Console) -> None:
    """Print the comparison as text."""
    print_sections((_runs(diff), _answer(diff), _terms(diff), _settings(diff)), console)


def _runs(diff: Diff) -> Iterator[RenderableType]:
    for name, analysis, steps in zip("AB", (diff.before, diff.after), diff.num_steps, strict=True):
        run = analysis.timeline.run
        yield text(f"{name}  {run.path}: {count(run.info.world_size, 'rank')}, {count(steps, 'step')}")


def _answer(diff: Diff) -> Iterator[RenderableType]:
    head = Text("VERDICT  ", style="bold")
    style = {Judgement.SLOWER: SEVERE, Judgement.FASTER: GOOD}.get(diff.judgement, "not bold")
    yield head.append_text(text(_sentence(diff), style=style))
    yield indented(text(line) for line in _evidence(diff))


def _sentence(diff: Diff) -> str:
    ratio = share(abs(diff.change_ratio))
    named = ", ".join(term.term for term in diff.movers[:3])
    return {
        Judgement.SLOWER: f"B is slower by {ratio}",
        Judgement.FASTER: f"B is faster by {ratio}",
        Judgement.SMALL: f"B differs by {ratio}, less than the threshold of {share(diff.threshold_ratio)}",
        Judgement.NO_EVIDENCE: "no evidence that the runs differ",
        Judgement.NOT_TESTED: f"not tested whether the runs differ: {needed(diff.step, diff)}",
        Judgement.OTHER_WORK: "the runs do different work per step, so neither is called slower",
    }[diff.judgement] + (f": {named}" if named else "")


def needed(moved: TermChange, diff: Diff) -> str:
    """How many steps a test needs; the change must be untested."""
    sampled = diff.sampled_steps is not None and moved.term != STEP
    return f"about {count(moved.steps_needed or 0, 'step')} per run{' in detail' * sampled} are needed"


def _evidence(diff: Diff) -> Iterator[str]:
    if diff.basis is not Basis.SHARE:
        what = "mean step" if diff.basis is Basis.STEP else "rank-time per token"
        within = ""
        if diff.interval is not None:
            low, high = (_signed(value, diff) for value in diff.interval)
            within = f" (95 % interval of the change: {low} to {high})"
        before, after = (_amount(value, diff) for value in (diff.step.before, diff.step.after))
        yield f"{what}: {after} instead of {before}{within}"
    if diff.reason is not None:
        yield f"compared by {diff.basis.value}, because {diff.reason}"
    if diff.step.p is not None and diff.basis is not Basis.SHARE:
        yield f"probability of this difference by chance: p = {_p(diff.step.p)}; evidence requires p <= {LEVEL:g}"
    tested = f", each run in {BLOCKS} blocks of consecutive steps" if diff.step.p is not None else ""
    yield f"compared: {diff.num_steps[0]:,} and {count(diff.num_steps[1], 'step')}{tested}"
    if diff.sampled_steps is not None:
        yield sampled_terms(diff)
    for finding in diff.new_findings:
        yield f"new in B: {finding.kind.value.replace('_', ' ')}: {finding.evidence}"


def sampled_terms(diff: Diff) -> str:
    """The number of steps behind the terms, if it is not that behind the step."""
    before, after = diff.sampled_steps or (0, 0)
    return f"terms are from {before:,} and {count(after, 'step')} in detail"


def other_clocks(diff: Diff, *, names: tuple[str, str] = ("A", "B")) -> str:
    """Why no term is compared; empty if the same kind of clock measured both runs. `names`: of the two runs."""
    first, second = (CLOCKS[clock] for clock in diff.clocks)
    if first == second:
        return ""
    return f"terms are not compared: {names[0]} is measured by {first}, {names[1]} by {second}"


def _terms(diff: Diff) -> Iterator[RenderableType]:
    unit = "shares of step time" if diff.basis is Basis.SHARE else "means over ranks, outlier steps limited"
    untested = [term for term in diff.terms if term.steps_needed is not None]
    marks = "* = evident change" + "; ? = not tested" * bool(untested)
    yield Text("WHAT CHANGED", style="bold").append_text(text(f"  {unit}; {marks}", style="not bold dim"))
    rows = table("term", "A", "B", "change", "of step", "critical path", "most on rank")
    for term in diff.terms:
        if term.evident or abs(term.change) >= MIN_ROW_SHARE * abs(diff.step.before):
            rows.add_row(text(f"  {_mark(term)} {term.term}"), *_cells(term, diff))
    rows.add_row("    step", *_cells(diff.step, diff), style="bold")
    yield rows
    if untested and diff.judgement is not Judgement.NOT_TESTED:
        most = max(untested, key=lambda term: term.steps_needed or 0)
        yield indented([text(f"?: too few steps, or steps that drift; {needed(most, diff)}", style="dim")])
    if note := other_clocks(diff):
        yield indented([text(note)])
    if diff.unseen:
        yield indented([text(f"measured in only one run: {', '.join(diff.unseen)}", style="dim")])


def _mark(moved: TermChange) -> str:
    return "?" if moved.p is None else "*" if moved.evident else " "


def _cells(moved: TermChange, diff: Diff) -> Iterator[str]:
    yield _amount(moved.before, diff)
    yield _amount(moved.after, diff)
    yield _signed(moved.change, diff)
    yield share(_ratio(moved.change, diff))
    yield MISSING if moved.path_change is None else _signed(moved.path_change, diff)
    if moved.rank is None or moved.rank_change is None:
        yield ""
    else:
        yield f"{moved.rank}: {_signed(moved.rank_change, diff)}"


def _settings(diff: Diff) -> Iterator[RenderableType]:
    if not diff.settings:
        yield Text("WHAT ELSE DIFFERS  nothing in the records", style="bold")
        return
    yield Text("WHAT ELSE DIFFERS", style="bold")
    families = dict.fromkeys(difference.family for difference in diff.settings)
    for family in families:
        yield indented(_family([difference for difference in diff.settings if difference.family == family]))


def _family(differences: list[Difference]) -> Iterator[Text]:
    for difference in differences[:MAX_SETTINGS]:
        yield text(f"{difference.family}: {difference.name}  {_value(difference.before)} -> {_value(difference.after)}")
    if len(differences) > MAX_SETTINGS:
        yield text(f"{differences[0].family}: {len(differences) - MAX_SETTINGS} more, see --format json", style="dim")


def _value(value: str | None) -> str:
    if value is None:
        return MISSING
    return value if len(value) <= MAX_VALUE_LENGTH else f"{value[: MAX_VALUE_LENGTH - 3]}..."


def _amount(value: float, diff: Diff) -> str:
    return share(value) if diff.basis is Basis.SHARE else duration(value)


def _signed(value: float, diff: Diff) -> str:
    return ("+" if value > 0 else "") + _amount(value, diff)


def _p(p: float) -> str:
    return f"{p:.2g}"
