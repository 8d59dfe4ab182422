"""Sample runs of published post-mortems: `python -m evaluation.postmortems.build DIRECTORY` makes all of them.

`facts/` has the numbers, each row with its source: the chronicles of OPT-175B (facebookresearch/metaseq) and of
BLOOM-176B (bigscience-workshop/bigscience), and table 5 of the Llama 3 paper (arXiv 2407.21783). A cell that a source
leaves open is empty. Causes are words of our own.
"""

import csv
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from traincope.analysis import analyze
from traincope.ingest import import_logbook
from traincope.report.document.document import to_document, to_json
from traincope.store.logbook import COLUMNS
from traincope.timeline import open_run

FACTS = Path(__file__).parent / "facts"
Row = Mapping[str, object]

CAUSES = {
    "hardware_gpu": "gpu",
    "hardware_node": "host",
    "nccl_hang": "hang",
    "software_bug": "software",
    "manual_restart": "manual",
    "checkpoint_rollback": "rollback",
    "loss_divergence": "divergence",
}
"""Kind of an event in the facts -> cause; other kinds keep their word."""

BLOOM_STEP_SECONDS = 105.2
NO_INTERRUPTION = {"loss_divergence", "checkpoint_rollback"}
"""Kinds in BLOOM's list that did not stop the training."""
NOT_STOPPED = {("2022-03-11", "manual_restart"), ("2022-04-28", "hardware_gpu"), ("2022-05-18", "scheduler")}
"""The launch itself, a slow GPU, and a property of the scheduler: they did not stop the training."""

LLAMA_CAUSES = {
    "Faulty GPU": "gpu",
    "GPU HBM3 Memory": "gpu_memory",
    "Software Bug": "software",
    "Network Switch/Cable": "network",
    "Host Maintenance": "host_maintenance",
    "GPU SRAM Memory": "gpu_sram",
    "GPU System Processor": "gpu_processor",
    "NIC": "network_card",
    "NCCL Watchdog Timeouts": "collective_timeout",
    "Silent Data Corruption": "silent_corruption",
    "GPU Thermal Interface + Sensor": "gpu_thermal",
    "SSD": "ssd",
    "Power Supply": "power_supply",
    "Server Chassis": "chassis",
    "IO Expansion Board": "io_board",
    "Dependency": "dependency",
    "CPU": "cpu",
    "System Memory": "host_memory",
}


def _words(event: Mapping[str, str]) -> str:
    """What the source says happened."""
    return event["kind"].replace("_", " ")


def _run(event: Mapping[str, str]) -> str:
    return event["run"].removeprefix("OPT-175B ")


def opt() -> Iterator[Row]:
    """Runs that advanced the training, read off a chart (+- 0.5 h), and what ended each. The other rows of the list
    overlap these, or lie outside: they are notes.
    """
    segments, events = _facts("opt175b_segments.csv"), _facts("opt175b_events.csv")
    yield {"kind": "period", "start": segments[0]["start_utc"], "end": segments[-1]["end_utc"], "ranks": 992}
    ends = {(event["run"].removeprefix("OPT-175B "), event["start_utc"]): event for event in events}
    for segment in segments:
        yield _row("run", segment, run=segment["run"], end=segment["end_utc"])
    used = {(segment["run"], segment["end_utc"]) for segment in segments[:-1]}
    for segment in segments[:-1]:
        ended = ends.get((segment["run"], segment["end_utc"]))
        known = ended is not None and ended["kind"] != "manual_restart"
        cause, lost_steps = (_cause(ended) if known and ended else "unknown"), ended["lost_steps"] if ended else ""
        yield _row(
            "interruption",
            segment,
            run=segment["run"],
            start=segment["end_utc"],
            cause=cause,
            lost_steps=lost_steps,
            note=_words(ended) if known and ended else "",
        )
    for event in events:
        if (event["run"].removeprefix("OPT-175B "), event["start_utc"]) not in used:
            yield _row("note", event, run=_run(event), cause=_cause(event), note=_words(event))


def bloom() -> Iterator[Row]:
    """Dated events of the main training until the end of its first epoch. Some are only known as 'weekly' or undated,
    so the list is not complete.
    """
    events = _facts("bloom176b_events.csv")
    launch, last = "2022-03-11T19:42Z", "2022-06-28"
    period = {"kind": "period", "start": launch, "end": last, "ranks": 384, "complete": "no"}
    yield {**period, "step_seconds": BLOOM_STEP_SECONDS}
    for event in events:
        day = event["start_utc"][:10]
        if event["step"]:
            yield _row("progress", event, start=day, step=event["step"])
        dated = len(day) == len(last) and launch[:10] <= day < last
        stopped = event["kind"] not in NO_INTERRUPTION and (day, event["kind"]) not in NOT_STOPPED
        if dated and stopped and "git log" not in event["source"]:
            yield _row(
                "interruption",
                event,
                cause=_cause(event),
                lost_hours=event["hours"],
                lost_steps=event["lost_steps"],
                note=_words(event),
            )
        else:
            yield _row("note", event, start=day if dated else "", cause=_cause(event), note=_words(event))


def llama() -> Iterator[Row]:
    """Totals by cause over 54 days without dates."""
    source = "arXiv 2407.21783 table 5"
    yield {"kind": "period", "hours": 54 * 24, "ranks": 16384, "source": source}
    for row in _facts("llama3_interruptions.csv"):
        cause = LLAMA_CAUSES[row["component"]]
        yield {"kind": "interruption", "cause": cause, "count": row["count"], "source": source}


RUNS: Mapping[str, Callable[[], Iterator[Row]]] = {"opt-175b": opt, "bloom-176b": bloom, "llama3-405b": llama}
"""Name of a sample run -> the rows of its logbook."""


def build(name: str, target: Path) -> None:
    """Make the run directory `target` with its expected report, or make it again."""
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "logbook.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(RUNS[name]())
        import_logbook(path, target)
    (target / "MADE_BY").write_text("make sample-runs (traincope import of a list from evaluation/postmortems/facts)\n")
    (target / "expected.json").write_text(to_json(to_document(analyze(open_run(target)))))


def _facts(name: str) -> list[dict[str, str]]:
    with (FACTS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _cause(event: Mapping[str, str]) -> str:
    return CAUSES.get(event["kind"], event["kind"])


def _row(kind: str, facts: Mapping[str, str], **more: object) -> Row:
    return {"kind": kind, "start": facts["start_utc"], "source": facts["source"], **more}


if __name__ == "__main__":
    for name in RUNS:
        build(name, Path(sys.argv[1]) / name)
