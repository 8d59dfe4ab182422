"""A preflight as text: pass or fail of each host first, then what to do, then the numbers."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from traincope.lines import INDENT, Trimmed, indented, table, text
from traincope.palette import GOOD, SEVERE
from traincope.preflight.judging.costs import total_seconds
from traincope.preflight.judging.findings import OF_THE_JOB
from traincope.preflight.judging.judgement import MIN_COMPARABLE, HostJudgement, Judgement
from traincope.preflight.judging.pipeline import PipelineJudgement, microbatches, remedy_words
from traincope.preflight.judging.ranks import usual_seconds
from traincope.preflight.judging.sweeps import Sweep
from traincope.preflight.measurements import Measurements, Place, Quantity, Rate, Round, StageTimes, Training
from traincope.units import count, duration, flops, gigabytes_per_second, numbers, share, size

MAX_RANKS = 16
"""Ranks in the table, the slowest first if there are more."""
PASS, FAIL = "PASS", "FAIL"


def host_line(host: HostJudgement) -> str:
    """One line for a scheduler's prolog: `PASS host`, or `FAIL host: findings`."""
    reasons = "; ".join(f"{finding.kind.value} ({numbers(finding.ranks, 'rank')})" for finding in host.findings)
    return f"{PASS} {host.host}" if host.passed else f"{FAIL} {host.host}: {reasons}"


def job_lines(judgement: Judgement) -> Iterator[str]:
    """One line for each finding about the configuration, which no host is to blame for."""
    for finding in judgement.findings:
        if finding.kind in OF_THE_JOB:
            stage = "" if finding.stage is None else f" (stage {finding.stage})"
            yield f"{FAIL} job: {finding.kind.value}{stage}"


def render(judgement: Judgement, measured: Measurements, console: Console) -> None:
    """Write a preflight to `console`."""
    _verdict(judgement, measured, console)
    _to_do(judgement, console)
    _section(console, "RANKS  in the first round", _rank_table(measured))
    if judgement.sweeps:
        _section(console, "LINKS  time = latency + bytes x bus factor / bandwidth", _sweep_table(judgement.sweeps))
    if measured.training is not None:
        _training(judgement, measured.training, console)


def _verdict(judgement: Judgement, measured: Measurements, console: Console) -> None:
    failed = sum(not host.passed for host in judgement.hosts)
    alarms = sum(finding.kind in OF_THE_JOB for finding in judgement.findings)
    words = "passed" if judgement.passed else "failed"
    parts = [f"{count(failed, 'host')} of {len(judgement.hosts)}"] if failed else []
    parts += [f"{count(alarms, 'finding')} about the configuration"] if alarms else []
    line = Text("PREFLIGHT  ", style="bold").append(words, style=GOOD if judgement.passed else f"bold {SEVERE}")
    line.append(f": {', '.join(parts)}" if parts else f": {count(len(measured.places), 'rank')}", style="not bold")
    console.print(Trimmed(line), end="")
    for each in (*map(host_line, judgement.hosts), *job_lines(judgement)):
        word, _, rest = each.partition(" ")
        styled = Text(word, style=GOOD if word == PASS else f"bold {SEVERE}").append_text(text(f" {rest}", "not bold"))
        console.print(Trimmed(indented([styled])), end="")
    if not judgement.comparable:
        few = f"with fewer than {MIN_COMPARABLE} ranks, nothing can be compared, so no rank or link is named"
        console.print(Trimmed(indented([Text(few, style="dim")])), end="")


def _to_do(judgement: Judgement, console: Console) -> None:
    console.print()
    if not judgement.findings:
        console.print(Trimmed(Text("TO DO  ", style="bold").append("nothing", style=f"not bold {GOOD}")), end="")
        return
    console.print(Trimmed(Text("TO DO", style="bold")), end="")
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", width=INDENT - 1)
    grid.add_column(ratio=1, overflow="fold")
    for number, finding in enumerate(judgement.findings, start=1):
        evidence = finding.evidence[0].upper() + finding.evidence[1:]
        grid.add_row(f"{number}.", text(f"{evidence}. {finding.advice}."))
    console.print(Trimmed(grid), end="")


def _section(console: Console, title: str, rows: Table) -> None:
    head, _, rest = title.partition("  ")
    console.print()
    line = Text(head, style="bold").append(f"  {rest}" if rest else "", style="not bold dim")
    console.print(Trimmed(line), end="")
    console.print(Trimmed(rows), end="")


def _rank_table(measured: Measurements) -> Table:
    rows = table("rank and host", "products", "memory GB/s", "device")
    places = list(measured.places)
    if len(places) > MAX_RANKS:
        places = sorted(places, key=lambda place: -(_seconds(measured, place, Quantity.PRODUCTS) or 0.0))[:MAX_RANKS]
    for place in places:
        rates = {quantity: _rate(measured, place, quantity) for quantity in Quantity}
        products, memory = (
            None if (rate := rates[quantity]) is None else rate.amount / usual_seconds(rate, Round.FIRST)
            for quantity in Quantity
        )
        device = place.device if place.gpu is None else f"{place.device}, {place.gpu.partition(' (')[0]}"
        rows.add_row(
            text(f"{' ' * INDENT}{place.rank} {place.host}"),
            flops(products, "FLOP/s"),
            gigabytes_per_second(memory),
            text(device),
        )
    return rows


def _rate(measured: Measurements, place: Place, quantity: Quantity) -> Rate | None:
    return next((rate for rate in measured.rates if (rate.rank, rate.quantity) == (place.rank, quantity)), None)


def _seconds(measured: Measurements, place: Place, quantity: Quantity) -> float | None:
    rate = _rate(measured, place, quantity)
    return None if rate is None else usual_seconds(rate, Round.FIRST)


def _sweep_table(sweeps: tuple[Sweep, ...]) -> Table:
    rows = table("axis and operation", "ranks", "latency", "GB/s", "error", "largest")
    for sweep in sweeps:
        fitted, largest = sweep.fit, max(sweep.seconds)
        rows.add_row(
            text(f"{' ' * INDENT}{sweep.axis} {sweep.operation}"),
            str(sweep.ranks),
            duration(None if fitted is None else 1e9 * fitted.latency_seconds),
            gigabytes_per_second(None if fitted is None else fitted.bytes_per_second),
            share(None if fitted is None else fitted.error_ratio),
            f"{size(largest)} in {duration(1e9 * sweep.seconds[largest])}",
        )
    return rows


def _training(judgement: Judgement, training: Training, console: Console) -> None:
    lines = [f"step  measured {duration(1e9 * training.step_seconds)}, median of {count(training.steps, 'step')}"]
    if judgement.prediction is not None:
        predicted = judgement.prediction
        lines[0] += f"; predicted {duration(1e9 * predicted.expected_seconds)} from the measured rates and links alone"
    if judgement.pipeline is not None:
        lines += _pipeline_lines(judgement.pipeline, training)
        _section(console, "PIPELINE  per microbatch, lower decile of the actions", _stage_table(training.stages))
    else:
        console.print()
        console.print(Trimmed(Text("TRAINING", style="bold")), end="")
    console.print(Trimmed(indented(map(text, lines))), end="")


def _pipeline_lines(judged: PipelineJudgement, training: Training) -> Iterator[str]:
    theory = "no formula" if judged.theory_ratio is None else f"{share(judged.theory_ratio)} by the formula"
    yield (
        f"bubble  measured {share(judged.measured_ratio)} of the step; predicted {share(judged.predicted_ratio)} of "
        f"the pipeline's time from the stages and links as measured; {theory} for equal stages; alarm above "
        f"{share(judged.alarm_ratio)}"
    )
    yield (
        f"schedule  {training.schedule}, {microbatches(training.microbatches)}; predicted "
        f"{duration(1e9 * judged.predicted_seconds)} per step"
    )
    for remedy in judged.remedies:
        yield f"remedy  {remedy_words(remedy)}"


def _stage_table(stages: tuple[StageTimes, ...]) -> Table:
    rows = table("stage and ranks", "forward", "backward", "both", "bubble")
    for stage in stages:
        kinds = stage.seconds[Round.FIRST]
        forward, whole = kinds.get("F", 0.0), total_seconds(kinds)
        rows.add_row(
            text(f"{' ' * INDENT}{stage.stage}, {numbers(stage.ranks, 'rank')}"),
            *(duration(1e9 * seconds) for seconds in (forward, whole - forward, whole)),
            share(stage.bubble_ratio),
        )
    return rows
