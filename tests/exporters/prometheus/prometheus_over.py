"""Real Prometheus over blocks that promtool created from a file."""

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.debian import need

PACKAGE = "prometheus"
KEPT_FOR = "100y"
"""Retention. By default Prometheus deletes data older than two weeks."""


class Prometheus:
    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expression: str, *, at_seconds: float) -> list[tuple[dict[str, str], float]]:
        """(Labels, value) of each series."""
        query = urllib.parse.urlencode({"query": expression, "time": at_seconds})
        with urllib.request.urlopen(f"{self._url}/api/v1/query?{query}", timeout=90) as answer:
            result: dict[str, Any] = json.load(answer)
        return [(series["metric"], float(series["value"][1])) for series in result["data"]["result"]]


@contextmanager
def prometheus_over(file: Path, directory: Path) -> Iterator[Prometheus]:
    """`file`: OpenMetrics with timestamps. `directory`: an empty directory for the data."""
    promtool, prometheus = need("promtool", package=PACKAGE), need("prometheus", package=PACKAGE)
    data, config = directory / "data", directory / "prometheus.yml"
    subprocess.run([promtool, "tsdb", "create-blocks-from", "openmetrics", file, data], check=True, capture_output=True)
    config.write_text("global: {}\n")
    command = [prometheus, f"--config.file={config}", f"--storage.tsdb.path={data}"]
    command += [f"--storage.tsdb.retention.time={KEPT_FOR}", "--web.listen-address=127.0.0.1:0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield Prometheus(f"http://{_address(server)}")
    finally:
        server.terminate()
        server.communicate(timeout=90)


def _address(server: subprocess.Popen[str]) -> str:
    """Address from the log, once the server is ready. The two lines come in any order."""
    address, is_ready = "", False
    for line in server.stderr or ():
        if "Listening on" in line:
            address = line.partition("address=")[2].split()[0]
        is_ready |= "Server is ready" in line
        if address and is_ready:
            return address
    raise AssertionError("Prometheus ended before it was ready")
