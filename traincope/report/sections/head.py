"""The head of a report: the size of the run and its headline numbers."""

from collections.abc import Iterator

from traincope.report.schema import Document
from traincope.report.sections.reliability import is_logbook
from traincope.report.sections.section import Number, number
from traincope.report.sections.values import value_of
from traincope.units import count, duration

OF_A_LOGBOOK = {
    "interruptions": number("reliability", "num_interruptions", form="count"),
    "between two, mean time": number("reliability", "mtbf", "ns", form="duration"),
    "in runs, of the time": number("reliability", "running_ratio", form="share"),
    "goodput, of the job's time": number("reliability", "productive_ratio", form="share"),
}
OF_A_RUN = {
    "MFU": number("utilization", "mfu", form="share"),
    "HFU": number("utilization", "hfu", form="share"),
    "tokens per second": number("utilization", "tokens_per_second", form="count"),
    "step time, median": number("run", "step_ns", form="duration"),
    "pipeline bubble, of step time": number("bubble", "fraction_ratio", form="share"),
    "goodput, of the job's time": number("goodput", "productive_ratio", form="share"),
    "recorder overhead, of step time": number("recorder", "overhead_ratio", form="share"),
    "counted steps": number("run", "steps", form="count"),
}
RANKS = {"ranks": number("run", "world_size", form="count")}


def headline(document: Document) -> dict[str, Number]:
    """Name -> number, of those that are known."""
    named = (OF_A_LOGBOOK if is_logbook(document) else OF_A_RUN) | RANKS
    return {name: shown for name, shown in named.items() if value_of(document, shown) is not None}


def steps(document: Document) -> str:
    """The number of steps, and how many of them were recorded in detail, if not all."""
    unwatched = sum(last - first + 1 for first, last in document["recorder"]["unwatched_steps"])
    num_steps = document["run"]["steps"]
    counted = count(num_steps, "step") + (", true number unknown" if document["run"]["backward_steps"] else "")
    return counted + (f", {num_steps - unwatched:,} of them in detail" if unwatched else "")


def facts(document: Document) -> Iterator[str]:
    """Ranks, mesh, steps and step time of a run; for imported traces the number of traced ranks, for lists of runs."""
    run, kernels = document["run"], document["kernels"]
    if is_logbook(document):
        yield from (count(run["world_size"], "rank"), count(run["attempts"], "run"), "imported from a list of events")
        return
    if document["slowdown"] is None and run["imported"]:
        num_traced = 0 if kernels is None else len(kernels["ranks"])
        snapshots = {each["rank"] for each in document["memory_snapshots"] or ()}
        traces = "kernel traces" if document["gpu_partition"] else "traces without events of a GPU"
        what, num_read = ("snapshots of memory", len(snapshots)) if snapshots else (traces, num_traced)
        yield from (f"{what} of {num_read} of {count(run['world_size'], 'rank')}", "imported")
        if run["steps"]:
            yield f"{steps(document)}, median {duration(run['step_ns'])}"
        return
    mesh = " x ".join(f"{axis} {size}" for axis, size in run["mesh_axes"].items() if size > 1)
    yield count(run["world_size"], "rank") + (f" ({mesh})" if mesh else "")
    yield steps(document)
    if run["step_ns"] is not None:
        mean_ns = run["mean_step_ns"]
        yield f"median step {duration(run['step_ns'])}" + ("" if mean_ns is None else f" (mean {duration(mean_ns)})")
    if run["attempts"] > 1:
        yield attempt(document)
    if run["imported"]:
        yield "imported from a table of operations"


def attempt(document: Document) -> str:
    """Which of several attempts is described, and how its steps are numbered."""
    run = document["run"]
    offset, of_all = run["training_step_offset"], f"{run['attempts']} attempts"
    which = f"attempt {run['attempt']} of {of_all}" if run["later_attempts"] else f"the last of {of_all}"
    return f"{which}, whose step 1 is step {offset + 1:,} of the training" if offset else which
