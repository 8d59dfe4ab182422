"""Unusual runs: hostile names, one rank without steps, missing or dead ranks, traces only."""

import json
import shutil
from pathlib import Path

import numpy as np

import traincope
from tests.ingest.writing import complete, kineto
from traincope.events import OPEN
from traincope.ingest import import_traces
from traincope.store.segments.segments import HEADER_BYTES, read_segment

HOSTILE = (
    "<script>window.stolen = 1</script>",
    "<img src=x onerror='window.stolen = 2'>",
    '"><a href="javascript:window.stolen=3">click</a>',
    "../../../etc/passwd",
    "%{x}<br>{{7*7}}",
    "\x1b[2J\u202egpj.exe",
    "m" * 2_000_000,
)


def hostile(path: Path) -> Path:
    """Hostile text at every name that a training can give, and in the run's own name."""
    with traincope.run(path) as recording:
        for _ in range(3):
            recording.step()
            for name in HOSTILE:
                with traincope.span(name):
                    pass
                traincope.event(name, detail=name[:100])
            recording.log(**{HOSTILE[1]: 1.0})
    card = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**card, "id": HOSTILE[0], "command": HOSTILE[1]}))
    return path


def no_steps(path: Path) -> Path:
    """One rank that reached no step."""
    with traincope.run(path), traincope.span("setting up"):
        pass
    return path


def with_missing_ranks(sample: Path, path: Path) -> Path:
    """The sample without its last two ranks."""
    shutil.copytree(sample, path)
    for rank in (2, 3):
        shutil.rmtree(path / "attempt-000" / f"rank-{rank:05d}")
    return path


def crashed(sample: Path, path: Path) -> Path:
    """The sample, as if an exception had ended rank 1 after 12 of its 17 s, and the other ranks had been killed
    shortly after.
    """
    shutil.copytree(sample, path)
    for rank in sorted(path.glob("attempt-000/rank-*")):
        card = json.loads((rank / "rank.json").read_text())
        failed = card["rank"] == 1
        (segment,) = rank.glob("main-*.seg")
        _cut(segment, after_ns=12_000_000_000 if failed else 12_100_000_000)
        ended = {"ending": "RuntimeError" if failed else None, "ended_wall_ns": None}
        (rank / "rank.json").write_text(json.dumps({**card, **ended}))
    return path


def _cut(segment: Path, *, after_ns: int) -> None:
    """Drop later records, and open the records that had not ended."""
    records = read_segment(segment).records.copy()
    last_ns = records["start_ns"][0] + after_ns
    remaining = records[: np.searchsorted(records["start_ns"], last_ns)]
    remaining["end_ns"][remaining["end_ns"] > last_ns] = OPEN
    segment.write_bytes(segment.read_bytes()[:HEADER_BYTES] + remaining.tobytes())


def go_on(sample: Path, path: Path) -> None:
    """Restore the rest of the sample's records of the crashed run."""
    for segment in path.glob("attempt-000/rank-*/main-*.seg"):
        shutil.copy(sample / segment.relative_to(path), segment)


def imported(path: Path) -> Path:
    """Kernels of two ranks, imported."""
    files = []
    for rank in (0, 1):
        events = [complete("ampere_gemm", "100", "50"), complete("ncclDevKernel_AllReduce", "120", "60", tid=9)]
        file = path.with_name(f"trace-{rank}.json")
        file.write_text(kineto(events, head={"distributedInfo": {"rank": rank, "world_size": 2}}))
        files.append(file)
    import_traces(files, path)
    return path


def grow(path: Path) -> None:
    """Add a second rank."""
    first, second = path / "attempt-000" / "rank-00000", path / "attempt-000" / "rank-00001"
    shutil.copytree(first, second)
    card = json.loads((second / "rank.json").read_text())
    (second / "rank.json").write_text(json.dumps({**card, "rank": 1}))
    job = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**job, "world_size": 2}))
