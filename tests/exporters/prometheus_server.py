"""A real Prometheus, Debian's, that finds its targets by files, asks them every second, and has the committed rules."""

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

from tests.debian import need

CONFIGURATION = """
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: ['RULES/*.yaml']
scrape_configs:
  - job_name: traincope
    file_sd_configs: [{files: ['TARGETS/*.json'], refresh_interval: 1s}]
"""
RULES = Path(__file__).parents[2] / "dashboards" / "prometheus"
"""As they are committed."""
DEADLINE_SECONDS = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prometheus:
    """At work."""

    url: str

    def ask(self, path: str) -> Any:
        """`data` of an answer of its API."""
        with urlopen(f"{self.url}/api/v1/{path}", timeout=30) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> dict[tuple[str, ...], float]:
        """Values by those labels that tell the series apart, in the order of their names."""
        found = self.ask(f"query?query={quote(expression)}")["result"]
        return {_own(series["metric"]): float(series["value"][1]) for series in found}


def _own(labels: dict[str, str]) -> tuple[str, ...]:
    return tuple(labels[name] for name in sorted(labels) if name not in COMMON)


COMMON = {"__name__", "instance", "job", "run", "host"}


@contextmanager
def prometheus(directory: Path, *, targets: Path) -> Iterator[Prometheus]:
    """`targets` holds the files of `file_sd_configs`; everything it keeps lies in `directory`."""
    port = _free_port()
    configuration = CONFIGURATION.replace("TARGETS", str(targets)).replace("RULES", str(RULES))
    (directory / "prometheus.yml").write_text(configuration)
    command = [
        need("prometheus", package="prometheus"),
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
        "--log.level=warn",
    ]
    with (directory / "prometheus.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            made = Prometheus(url=f"http://127.0.0.1:{port}")
            until(lambda: server.poll() is None and _is_ready(made), "Prometheus")
            yield made
        finally:
            server.kill()


def until(true: Callable[[], bool], what: str) -> None:
    """Look again and again; the deadline only keeps a broken test from hanging."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not true():
        assert time.monotonic() < deadline, f"waited {DEADLINE_SECONDS:g} s for {what}"
        time.sleep(0.1)


def _is_ready(server: Prometheus) -> bool:
    try:
        with urlopen(f"{server.url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, ConnectionError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
