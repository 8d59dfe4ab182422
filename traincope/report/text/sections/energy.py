"""ENERGY: joules per step and power of the GPUs, and the terms with the most energy by their time."""

from collections.abc import Iterator

from rich.padding import Padding
from rich.text import Text

from traincope.analysis.efficiency.energy import Energy
from traincope.lines import text
from traincope.units import count, duration, money

MAX_TERMS = 5


def energy(used: Energy) -> Iterator[Text | Padding]:
    """The energy of the job, which must be known."""
    yield Text("ENERGY", style="bold").append_text(text(f"  {'; '.join(_facts(used))}", style="not bold"))
    yield from (Padding(text(line), (0, 0, 0, 4)) for line in notes(used))


def _facts(used: Energy) -> Iterator[str]:
    yield f"{joules(used.joules_per_step)} per step on {count(len(used.gpus), 'GPU')}, {watts(used.watts)}"
    yield in_all(used)


def in_all(used: Energy) -> str:
    """The energy of all steps, with its price if it has one."""
    price = "" if used.money is None else f", {money(used.money, used.currency)}"
    rate = "" if used.money is None else f" at {money(used.price_per_kwh, used.currency)} per kWh"
    return f"{used.kwh:,.3g} kWh in all steps{price}{rate}"


def notes(used: Energy) -> Iterator[str]:
    """Lines on the terms and on how the energy was measured."""
    terms = sorted(((ns, term) for term, ns in (used.terms or {}).items() if ns), reverse=True)
    yield f"by time, an estimate: {', '.join(f'{term} {joules(each)}' for each, term in terms[:MAX_TERMS])}"
    reading = max(gpu.reading_ns for gpu in used.gpus)
    yield f"NVML's counter, read every {duration(reading)} and interpolated; of the whole GPU, not of its host"


def joules(amount: float | None) -> str:
    return "unknown" if amount is None else f"{amount:,.1f} J"


def watts(power: float | None) -> str:
    return "unknown" if power is None else f"{power:,.0f} W"
