"""`plan search` as text: the ranked layouts, the fastest one explained, and what was rejected."""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from traincope.lines import Trimmed, indented, table
from traincope.plan.search.answer import Answer, Comparison, Ranked, axes, interval_words
from traincope.units import count, duration, money, share, size

OPERATOR_HEADS = ("operator", "kind", "times", "forward", "backward", "of limit", "in a step")
HEADS = ("layout", "schedule", "M x B", "memory", "step", "MFU")
NUM_REASONS = 8
NUM_PARTS = 3
SECOND_NS, DAY_NS = 1e9, 86_400e9


def show(answer: Answer, console: Console) -> None:
    head = f"{answer['gpus']:,} {answer['gpu']}, {count(answer['batch'], 'sequence')} of {answer['sequence']:,} tokens"
    title = f"SEARCH  {answer['parameters'] / 1e9:.4g} billion parameters on {head}"
    console.print(Trimmed(Text(title, style="bold")), end="")
    if answer["ranked"]:
        rows = table(*HEADS)
        for ranked in answer["ranked"]:
            rows.add_row(*cells(ranked))
        console.print(Trimmed(rows), end="")
        _print(console, winner(answer))
        _print(console, why(answer))
    else:
        _print(console, nothing(answer))
    console.print("REJECTED", style="bold")
    _print(console, rejected(answer))


def show_explained(answer: Answer, console: Console) -> None:
    show(answer, console)
    explained(answer, console)


def cells(ranked: Ranked) -> tuple[str, ...]:
    """One row under HEADS."""
    chunks = f" x {ranked['virtual']}" if ranked["virtual"] > 1 else ""
    recompute = "" if ranked["recompute"] == "none" else f" {ranked['recompute']}"
    return (
        f"    {axes(ranked)} zero {ranked['zero']}{recompute}",
        "-" if ranked["pp"] == 1 else f"{ranked['schedule'].replace('interleaved', '1f1b')}{chunks}",
        f"{ranked['microbatches']} x {ranked['micro_batch']}",
        size(ranked["largest_bytes"]),
        duration(ranked["step_seconds"] * SECOND_NS),
        share(ranked["mfu"]),
    )


def winner(answer: Answer) -> Iterator[str]:
    """Lines about the fastest layout."""
    best = answer["ranked"][0]
    shares = ", ".join(f"{part} {share(seconds / best['step_seconds'])}" for part, seconds in best["parts"].items())
    yield f"the fastest step: {shares}"
    yield interval_words(best)
    for caveat in answer["caveats"]:
        yield f"caveat: {caveat}"
    yield f"compared with {answer['checked']}"
    yield f"{best['tokens_per_second']:,.0f} tokens per second; MFU {share(best['mfu'])}, {answer['convention']}"
    for axis in best["axes"]:
        wire, exposed = duration(axis["seconds"] * SECOND_NS), duration(axis["exposed_seconds"] * SECOND_NS)
        yield f"{axis['axis']}: {wire} on the wire ({axis['tier']}, {axis['algorithm']}), {exposed} exposed"
    yield (
        f"{answer['tokens']:.3g} tokens: {best['gpu_hours']:,.0f} GPU-hours in {best['elapsed_days']:.3g} days; "
        f"goodput {share(best['goodput_ratio'])} with a failure every {best['mtbf_hours']:.3g} h and a checkpoint "
        f"every {duration(best['checkpoint_seconds'] * SECOND_NS)}"
    )
    if best["money"] is not None:
        yield f"price: {money(best['money'], answer['currency'])}"
    if best["energy_mwh"] is not None:
        yield f"energy: at most {best['energy_mwh']:,.4g} MWh, at the power limit of all devices"


def explained(answer: Answer, console: Console) -> None:
    """The operators of the fastest layout, with the constants that their times stand on."""
    if not answer["ranked"]:
        return
    best = answer["ranked"][0]
    console.print("OPERATORS  of the fastest layout, on one rank", style="bold")
    rows = table(*OPERATOR_HEADS)
    for each in sorted(best["operators"], key=lambda each: -each["step_seconds"]):
        rows.add_row(
            f"    {each['name']}",
            each["kind"],
            f"{each['count']:,}",
            duration(each["forward_seconds"] * SECOND_NS),
            duration(each["backward_seconds"] * SECOND_NS),
            share(each["reached_ratio"]),
            duration(each["step_seconds"] * SECOND_NS),
        )
    console.print(Trimmed(rows), end="")
    kinds = {each["kind"]: each["constants"] for each in best["operators"]}
    lines = (f"{kind}: {constants}" for kind, constants in kinds.items())
    sources = f"fitted on {answer['constants_source']}"
    _print(console, iter(("of limit: least time by the data sheet over expected time", *lines, sources)))


def why(answer: Answer) -> Iterator[str]:
    """Lines that compare the fastest layout with the next ones."""
    for comparison in answer["comparisons"]:
        yield _compared(comparison)
    yield f"{count(answer['num_fitting'], 'layout')} fit; schedule x stages per rank; M x B: microbatches x sequences"
    constants = ", ".join(f"{name} {value:g}" for name, value in answer["constants"].items())
    if answer["measured"] is not None:
        yield f"measured rates of {answer['measured']}"
    yield f"constants fitted on {answer['constants_source']}: {constants}; data sheets: {'; '.join(answer['sources'])}"
    yield f"memory excludes {answer['left_out']}"


def _compared(comparison: Comparison) -> str:
    largest = list(comparison["parts"].items())[:NUM_PARTS]
    shown = ", ".join(f"{_signed(seconds)} {part}" for part, seconds in largest if seconds)
    return (
        f"place {comparison['place']} takes {duration(comparison['more_seconds'] * SECOND_NS)} more: {shown or 'equal'}"
    )


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{duration(abs(seconds) * SECOND_NS)}"


def nothing(answer: Answer) -> Iterator[str]:
    """Lines for a search without a layout that fits."""
    smallest = answer["smallest"]
    if smallest is None:
        yield "no layout is possible; the reasons are below"
        return
    yield (
        f"no layout fits into {size(answer['usable_bytes'])} per GPU: use more GPUs, GPUs with more memory, or shorter "
        "sequences"
    )
    yield (
        f"the smallest one, {axes(smallest)} zero {smallest['zero']}, recompute {smallest['recompute']}, needs "
        f"{size(smallest['needed_bytes'])}"
    )


def rejected(answer: Answer) -> Iterator[str]:
    """Lines with the reasons that reject most layouts."""
    reasons = list(answer["rejected"].items())
    for reason, number in reasons[:NUM_REASONS]:
        yield f"{number:,}: {reason}"
    if len(reasons) > NUM_REASONS:
        rest = reasons[NUM_REASONS:]
        yield f"{sum(number for _, number in rest):,}: {count(len(rest), 'other reason')}, listed by --format json"
    if not reasons:
        yield "nothing"


def _print(console: Console, lines: Iterator[str]) -> None:
    console.print(Trimmed(indented(map(Text, lines))), end="")
