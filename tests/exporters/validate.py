"""`make validate-exports`: exports of a run, read by the programs that they are for, in an environment of their own.

A reader that does not install is reported as not validated.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.dashboards.servers import free_port
from tests.environments import environment
from tests.exporters.otlp.receiver import Received, collector
from tests.exporters.runs import two_ranks
from traincope import open_run
from traincope.events import OPEN, Kind
from traincope.report.exports import Address
from traincope.timeline import Timeline
from traincope_exporters.otlp import send
from traincope_exporters.parquet import write_parquet

DEMO = "sample_runs/demo"
QUERY = """
select axis, kind, sum(duration_ns) from {table} where kind in ('collective', 'stall') group by all order by 1, 2
"""
"""Nanoseconds of collectives and stalls by axis."""
OF_TWO_RANKS = [["tp", "collective", 800], ["tp", "stall", 800]]
"""Two all_gathers of 300 ns on rank 0, and two of 100 ns on rank 1, all exposed (`tests.exporters.runs`)."""

DUCKDB = f"""
import duckdb, json, sys
rows = duckdb.sql({QUERY!r}.format(table=f"'{{sys.argv[1]}}/*/*.parquet'")).fetchall()
count = duckdb.sql(f"select count(*), sum(rank) from '{{sys.argv[1]}}/*/*.parquet'").fetchone()
print(json.dumps([rows, *count]))
"""
POLARS = f"""
import json, polars, sys
frame = polars.read_parquet(sys.argv[1] + "/**/*.parquet", hive_partitioning=True)
columns = [polars.col("kind").cast(str), polars.col("axis").cast(str)]
rows = frame.with_columns(columns).sql({QUERY.format(table="self")!r}).rows()
print(json.dumps([rows, frame.height, frame["rank"].sum()]))
"""
PANDAS = """
import json, pandas, sys
frame = pandas.read_parquet(sys.argv[1])
chosen = frame[frame["kind"].isin(["collective", "stall"])]
sums = chosen.groupby(["axis", "kind"], observed=True)["duration_ns"].sum()
rows = sorted([axis, kind, int(value)] for (axis, kind), value in sums.items())
print(json.dumps([rows, len(frame), int(frame["rank"].astype(int).sum())]))
"""
TABLES = {"duckdb": (("duckdb",), DUCKDB), "polars": (("polars",), POLARS), "pandas": (("pandas",), PANDAS)}
"""Packages, and a program that prints rows of the query, number of events, and the sum of their ranks."""


def main() -> int:
    results = [*map(table_reader, TABLES), collector_in_between()]
    for name, problem in results:
        print(f"{name:9} {problem or 'validated'}")
    return 1 if any(problem.startswith("FAILED") for _, problem in results) else 0


def table_reader(name: str) -> tuple[str, str]:
    """The reader must find the sums that are known on paper, and in the demo those of the recorded events."""
    packages, program = TABLES[name]
    python = environment("exports", *packages, on_ours=True)
    if python is None:
        return name, f"not validated: {' '.join(packages)} does not install"
    for timeline, known in ((two_ranks(), OF_TWO_RANKS), (open_run(DEMO), None)):
        with tempfile.TemporaryDirectory() as folder:
            write_parquet(timeline, Path(folder))
            ended = subprocess.run([str(python), "-c", program, folder], capture_output=True, text=True, check=False)
        if ended.returncode:
            return name, f"FAILED:\n{ended.stderr}"
        read, expected = json.loads(ended.stdout), [known or sums(timeline), *totals(timeline)]
        if read != expected:
            return name, f"FAILED: it read {read}, not {expected}"
    return name, ""


def sums(timeline: Timeline) -> list[list[object]]:
    """The rows of the query, from the recorded events."""
    by_kind: dict[tuple[str, str], int] = {}
    for rank in timeline.ranks:
        for records in rank.threads.values():
            for record in records[
                np.isin(records["kind"], (Kind.COLLECTIVE, Kind.STALL)) & (records["end_ns"] != OPEN)
            ]:
                key = rank.axis(int(record["group"])), Kind(int(record["kind"])).name.lower()
                by_kind[key] = by_kind.get(key, 0) + int(record["end_ns"] - record["start_ns"])
    return sorted([axis, kind, length] for (axis, kind), length in by_kind.items())


def totals(timeline: Timeline) -> tuple[int, int]:
    """Number of events, and the sum of their ranks."""
    counts = {rank.rank: sum(map(len, rank.threads.values())) for rank in timeline.ranks}
    return sum(counts.values()), sum(rank * count for rank, count in counts.items())


def collector_in_between() -> tuple[str, str]:
    """Rotel, a collector of its own (Rust), receives a run and sends it on: nothing may be lost or changed."""
    name = "rotel"
    python = environment("exports", "rotel", on_ours=True)
    if python is None:
        return name, "not validated: rotel does not install"
    with collector("grpc") as direct:
        send(two_ranks(), Address(endpoint=direct.url, protocol="grpc", timeout_seconds=60))
    with collector("grpc") as behind, rotel(python, to=behind.url) as url:
        send(two_ranks(), Address(endpoint=url, protocol="grpc", timeout_seconds=60))
        wait_for(lambda: len(list(behind.each_span())) == len(list(direct.each_span())))
    same = shown(behind) == shown(direct)
    return name, "" if same else f"FAILED: it passed on {shown(behind)}, not {shown(direct)}"


@contextmanager
def rotel(python: Path, *, to: str) -> Iterator[str]:
    """Yield the address of a running collector that sends on to another."""
    port = free_port()
    command = [
        *(str(python.parent / "rotel"), "start", "--otlp-grpc-endpoint", f"127.0.0.1:{port}"),
        *("--otlp-http-endpoint", f"127.0.0.1:{free_port()}"),
        *("--exporter", "otlp", "--otlp-exporter-endpoint", to),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def wait_for(done: Callable[[], bool], *, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not done() and time.monotonic() < until:
        time.sleep(0.1)


def shown(received: Received) -> list[tuple[object, ...]]:
    """Everything of the spans: resource, name, ids, times, attributes."""
    return sorted(
        (str(sorted(resource.items())), span.name, span.span_id, span.start_time_unix_nano, span.SerializeToString())
        for resource, span in received.each_span()
    )


if __name__ == "__main__":
    sys.exit(main())
