"""Two runs side by side: the answer first, then what moved, then what else differs."""

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from traincope.analysis import Basis, Diff, Difference, Judgement, Moved
from traincope.analysis.diff import LEVEL
from traincope.palette import GOOD, SEVERE
from traincope.report import schema
from traincope.report.findings import finding_of
from traincope.report.plain import text
from traincope.report.tables import indented, table
from traincope.report.trimmed import Trimmed
from traincope.units import MISSING, count, duration, share

WORTH_A_ROW = 0.002
"""Share of a step from which a term that did not evidently move has one."""
MOST_SETTINGS = 12
"""Of one family; the rest is counted."""
SHOWN = 48
"""Characters of a value."""


def diff_document(diff: Diff) -> schema.Diff:
    """As JSON has it."""
    runs = [
        schema.ComparedRun(
            id=analysis.timeline.run.info.id,
            ranks=analysis.timeline.run.info.world_size,
            steps=diff.num_steps[at],
            blocks=diff.num_blocks[at],
        )
        for at, analysis in enumerate((diff.before, diff.after))
    ]
    return schema.Diff(
        judgement=diff.judgement.value,
        basis=diff.basis.value,
        reason=diff.reason,
        before=runs[0],
        after=runs[1],
        step=_moved(diff.step, diff),
        interval=None if diff.interval is None else list(diff.interval),
        terms=[_moved(term, diff) for term in diff.terms],
        movers=[term.term for term in diff.movers],
        unseen=list(diff.unseen),
        level=LEVEL,
        least_ratio=diff.least_ratio,
        block_steps=diff.block_steps,
        settings=[
            schema.Difference(family=one.family, name=one.name, before=one.before, after=one.after)
            for one in diff.settings
        ],
        new_findings=[finding_of(finding, wall_ns=diff.after.ledger.wall_ns) for finding in diff.new_findings],
    )


def _moved(moved: Moved, diff: Diff) -> schema.Moved:
    return schema.Moved(
        term=moved.term,
        before=moved.before,
        after=moved.after,
        change=moved.change,
        change_ratio=_ratio(moved.change, diff),
        p=moved.p,
        evident=moved.evident,
        path_change=moved.path_change,
        rank=moved.rank,
        rank_change=moved.rank_change,
    )


def _ratio(change: float, diff: Diff) -> float | None:
    return change / diff.step.before if diff.step.before else None


def render_diff(diff: Diff, console: Console) -> None:
    """For people."""
    for index, section in enumerate((_runs(diff), _answer(diff), _terms(diff), _settings(diff))):
        for place, renderable in enumerate(section):
            if index and not place:
                console.print()
            console.print(Trimmed(renderable), end="")


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
        Judgement.SMALL: f"B differs by {ratio}, less than the {share(diff.least_ratio)} that were asked for",
        Judgement.NO_EVIDENCE: "no evidence that the runs differ",
        Judgement.TOO_FEW: "too few steps to tell whether the runs differ",
        Judgement.OTHER_WORK: "the runs do other work in a step, so neither is called slower",
    }[diff.judgement] + (f": {named}" if named else "")


def _evidence(diff: Diff) -> Iterator[str]:
    if diff.basis is not Basis.SHARE:
        what = "a step" if diff.basis is Basis.STEP else "the ranks' time for a token"
        within = ""
        if diff.interval is not None:
            within = f" ({_signed(diff.interval[0], diff)} to {_signed(diff.interval[1], diff)} with 95 %)"
        before, after = (_amount(value, diff) for value in (diff.step.before, diff.step.after))
        yield f"{what} takes {after} instead of {before}{within}"
    if diff.reason is not None:
        yield f"what is compared is the {diff.basis.value}, for {diff.reason}"
    if diff.step.p is not None and diff.basis is not Basis.SHARE:
        yield f"by chance as large a difference comes with p {_p(diff.step.p)}; it counts up to {LEVEL:g}"
    blocks = f", {diff.block_steps} at a time, for they depend on each other" if diff.block_steps > 1 else ""
    yield f"compared are {diff.num_steps[0]} and {count(diff.num_steps[1], 'step')}{blocks}"
    for finding in diff.new_findings:
        yield f"new in B: {finding.kind.value.replace('_', ' ')}: {finding.evidence}"


def _terms(diff: Diff) -> Iterator[RenderableType]:
    unit = "shares of a step" if diff.basis is Basis.SHARE else "means over ranks, odd steps pulled in"
    yield Text("WHAT MOVED", style="bold").append_text(text(f"  {unit}; * with evidence", style="not bold dim"))
    rows = table("term", "A", "B", "change", "of a step", "path", "most on rank")
    for term in diff.terms:
        if term.evident or abs(term.change) >= WORTH_A_ROW * abs(diff.step.before):
            rows.add_row(text(f"  {'*' if term.evident else ' '} {term.term}"), *_cells(term, diff))
    rows.add_row("    step", *_cells(diff.step, diff), style="bold")
    yield rows
    if diff.unseen:
        yield indented([text(f"only one run can see: {', '.join(diff.unseen)}", style="dim")])


def _cells(moved: Moved, diff: Diff) -> Iterator[str]:
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
        yield Text("WHAT ELSE DIFFERS  nothing that was recorded", style="bold")
        return
    yield Text("WHAT ELSE DIFFERS", style="bold")
    families = dict.fromkeys(one.family for one in diff.settings)
    for family in families:
        yield indented(_family([one for one in diff.settings if one.family == family]))


def _family(found: list[Difference]) -> Iterator[Text]:
    for one in found[:MOST_SETTINGS]:
        yield text(f"{one.family}: {one.name}  {_value(one.before)} -> {_value(one.after)}")
    if len(found) > MOST_SETTINGS:
        yield text(f"{found[0].family}: {len(found) - MOST_SETTINGS} more, see --format json", style="dim")


def _value(value: str | None) -> str:
    if value is None:
        return "none"
    return value if len(value) <= SHOWN else f"{value[: SHOWN - 3]}..."


def _amount(value: float, diff: Diff) -> str:
    return share(value) if diff.basis is Basis.SHARE else duration(value)


def _signed(value: float, diff: Diff) -> str:
    return ("+" if value > 0 else "") + _amount(value, diff)


def _p(p: float) -> str:
    return f"{p:.2g}"
