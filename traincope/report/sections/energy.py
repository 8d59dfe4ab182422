"""Energy: joules per step and power of the GPUs, and the terms with the most energy by their time."""

from collections.abc import Iterator

from traincope.analysis.efficiency.energy import Energy
from traincope.report.sections.section import Lines, On, Section, Table, Words, number, rows
from traincope.report.sections.source import Source
from traincope.units import count, duration, money, numbers

NAME, TITLE = "energy", "Energy"
MAX_TERMS = 5
MAX_ROWS = 64


def energy(source: Source) -> Section:
    used = source.analysis.energy
    if not used.gpus:
        return Section(name=NAME, title=TITLE, missing=f"The energy is unknown: {used.reason}.")
    return Section(
        name=NAME,
        title=TITLE,
        lead=f"of the job unknown: {used.reason}" if used.joules_per_step is None else "; ".join(_facts(used)),
        parts=(
            Lines(() if used.joules_per_step is None else tuple(_notes(used))),
            Table(
                caption="Energy of the GPUs in steps",
                heads=("GPU of", "joules per step", "watts"),
                rows=rows(
                    (
                        *(_row(numbers(gpu.ranks, "rank"), "gpus", at) for at, gpu in enumerate(used.gpus[:MAX_ROWS])),
                        _row("all GPUs"),
                    )
                ),
                on=On.SCREEN,
            ),
        ),
    )


def _facts(used: Energy) -> Iterator[str]:
    yield f"{used.joules_per_step:,.1f} J per step on {count(len(used.gpus), 'GPU')}, {used.watts:,.0f} W"
    price = "" if used.money is None else f", {money(used.money, used.currency)}"
    rate = "" if used.money is None else f" at {money(used.price_per_kwh, used.currency)} per kWh"
    yield f"{used.kwh:,.3g} kWh in all steps{price}{rate}"


def _notes(used: Energy) -> Iterator[str]:
    """The terms, and how the energy was measured."""
    terms = sorted(((ns, term) for term, ns in (used.terms or {}).items() if ns), reverse=True)
    yield f"by time, an estimate: {', '.join(f'{term} {each:,.1f} J' for each, term in terms[:MAX_TERMS])}"
    reading = max(gpu.reading_ns for gpu in used.gpus)
    yield f"NVML's counter, read every {duration(reading)} and interpolated; of the whole GPU, not of its host"


def _row(name: str, *path: str | int) -> Iterator[Words]:
    yield name
    for key in ("joules_per_step", "watts"):
        yield number("energy", *path, key, form="mean")
