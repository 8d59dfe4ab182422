"""Hardware section: GPU samples over the steps, and the driver's events."""

from collections.abc import Iterator

from traincope.analysis import gpu_samples
from traincope.figures.steps.gpu_samples import gpu_sample_curves
from traincope.figures.steps.hardware import hardware_events, hardware_over_time
from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.plots import plot
from traincope.report.html.section import Section, notes, table
from traincope.report.html.source import Source
from traincope.report.text.sections.energy import in_all
from traincope.report.text.sections.energy import notes as energy_notes
from traincope.report.text.sections.faults import began_ns
from traincope.units import count, numbers

TITLE = "Hardware"
ENERGY_HEADS = ("GPU of", "joules per step", "watts")
MAX_ROWS = 64


def hardware(source: Source) -> Section:
    events = hardware_events(source.analysis.faults)
    body = (*_energy(source), *_figures(source))
    if not body:
        energy = source.analysis.energy.reason
        why = f"No throttling, GPU error or lost GPU was reported by an NVIDIA driver. Energy unknown: {energy}."
        return Section(name="hardware", title=TITLE, missing=why)
    return Section(name="hardware", title=TITLE, lead=count(len(events), "event"), body=body)


def _energy(source: Source) -> Iterator[Html]:
    """Energy of the job and of each GPU, as far as it is known."""
    used = source.analysis.energy
    if used.gpus:
        rows = [
            [joined(numbers(gpu.ranks, "rank")), *_gpu(source, "gpus", at)]
            for at, gpu in enumerate(used.gpus[:MAX_ROWS])
        ]
        rows.append([tag("strong", "all GPUs"), *_gpu(source)])
        yield tag("h3", "Energy")
        yield table("Energy of the GPUs in steps", ENERGY_HEADS, rows)
        known = [in_all(used), *energy_notes(used)] if used.reason is None else [f"unknown: {used.reason}"]
        yield notes(known)


def _gpu(source: Source, *place: str | int) -> Iterator[Html]:
    yield source.number("energy", *place, "joules_per_step", form="mean")
    yield source.number("energy", *place, "watts", form="mean")


def _figures(source: Source) -> Iterator[Html]:
    samples, events = gpu_samples(source.analysis.timeline), hardware_events(source.analysis.faults)
    if samples:
        caption = "Line: mean over ranks; band: lowest to highest rank"
        yield plot(gpu_sample_curves(samples), name="readings", caption=caption)
    if events:
        began = began_ns(source.analysis)
        figure = hardware_over_time(events, began_ns=began, end_ns=source.document["run"]["end"] or began)
        caption = "Throttling, power limits and errors by rank; the Faults section lists each"
        yield plot(figure, name="driver", caption=caption)
