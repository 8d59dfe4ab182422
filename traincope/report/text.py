"""The report for people: faults first, then the verdict, then the evidence, then how far to trust it.

Colour and width are the console's: without colour, piped, or at 80 columns it reads the same.
"""

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from traincope.analysis import Analysis
from traincope.report.communication import communication
from traincope.report.critical_path import critical_path
from traincope.report.document import to_document
from traincope.report.experts import experts
from traincope.report.faults import faults
from traincope.report.goodput import goodput
from traincope.report.kernels import gpus, kernels
from traincope.report.losses import largest, losses
from traincope.report.memory import memory
from traincope.report.pipeline import pipeline
from traincope.report.plain import text
from traincope.report.priced import costly
from traincope.report.ranks import ranks
from traincope.report.recording import recording
from traincope.report.schema import Document, Ledger
from traincope.report.trimmed import Trimmed
from traincope.report.utilization import utilization
from traincope.report.verdict import verdict
from traincope.report.waterfall import waterfall
from traincope.units import count, duration


def render(analysis: Analysis, console: Console, *, price_per_gpu_hour: float | None = None) -> None:
    """Write the report of `analysis` to `console`."""
    render_document(to_document(analysis, price_per_gpu_hour=price_per_gpu_hour), console)


def render_document(document: Document, console: Console) -> None:
    """Write the report to `console`; sections without evidence are absent, the verdict never is."""
    for index, section in enumerate(_sections(document)):
        if index:
            console.print()
        for renderable in section:
            console.print(Trimmed(renderable), end="")


def _sections(document: Document) -> Iterator[Iterator[RenderableType]]:
    yield _head(document)
    happened = faults(document)
    if happened is not None:
        yield happened
    ledger = document["ledger"]
    yield verdict(document["verdict"], cost=None if ledger is None else ledger["cost"])
    if ledger is not None:
        yield from _shares(document, ledger)
    elif not document["run"]["imported"]:
        yield iter([Text("WHERE THE TIME WENT  unknown: no complete step was recorded", style="bold")])
    if document["gpu_partition"]:
        yield gpus(document["gpu_partition"])
    if document["kernels"] is not None:
        yield kernels(document["kernels"])
    if document["memory"]:
        yield memory(document["memory"])
    yield recording(document)


def _shares(document: Document, ledger: Ledger) -> Iterator[Iterator[RenderableType]]:
    yield waterfall(ledger)
    if costly(ledger["cost"]) and largest(ledger["cost"]):
        yield losses(ledger["cost"])
    yield utilization(document["utilization"])
    if document["utilization"]["experts"] is not None:
        yield experts(document["utilization"]["experts"])
    if document["goodput"] is not None:
        yield goodput(document["goodput"])
    if document["critical_path"] is not None:
        yield critical_path(document["critical_path"])
    if document["bubble"] is not None:
        yield pipeline(document["bubble"], clocks=document["clock"])
    if document["comm"]:
        yield communication(document["comm"], rank_steps=ledger["rank_steps"], clocks=document["clock"])
    yield ranks(ledger, document["stragglers"])


def _head(document: Document) -> Iterator[RenderableType]:
    yield text(document["run"]["id"], style="bold")
    yield text(", ".join(facts(document)))


def steps(document: Document) -> str:
    """Those that count, and how many more do not, for no collectives were recorded in them."""
    unwatched = sum(last - first + 1 for first, last in document["recorder"]["unwatched_steps"])
    return count(document["run"]["steps"], "step") + (f" and {unwatched:,} more at level 0" if unwatched else "")


def facts(document: Document) -> Iterator[str]:
    """How large the run is, and how long its steps; of which ranks there are traces, where it was imported."""
    run, kernels = document["run"], document["kernels"]
    if run["imported"]:
        of = 0 if kernels is None else len(kernels["ranks"])
        yield from (f"kernel traces of {of} of {count(run['world_size'], 'rank')}", "imported")
        return
    mesh = " x ".join(f"{axis} {size}" for axis, size in run["mesh_axes"].items() if size > 1)
    yield count(run["world_size"], "rank") + (f" ({mesh})" if mesh else "")
    yield steps(document)
    if run["step_ns"] is not None:
        yield f"median step {duration(run['step_ns'])}"
    if run["attempts"] > 1:
        yield f"attempt {run['attempts']}"
