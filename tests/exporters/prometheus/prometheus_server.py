"""Real Prometheus (Debian's) with file discovery, a scrape interval of one second, and the committed rules."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

from tests.debian import need
from tests.live.processes import until
from tests.ports import free_port

CONFIGURATION = """
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: ['RULES/*.yaml']
scrape_configs:
  - job_name: traincope
    file_sd_configs: [{files: ['TARGETS/*.json'], refresh_interval: 1s}]
"""
RULES = Path(__file__).parents[3] / "dashboards" / "prometheus"
"""The committed rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prometheus:
    """Running server."""

    url: str

    def ask(self, path: str) -> Any:
        """`data` of an API answer."""
        with urlopen(f"{self.url}/api/v1/{path}", timeout=90) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> dict[tuple[str, ...], float]:
        """Values by the labels that differ between series, in the order of their names."""
        result = self.ask(f"query?query={quote(expression)}")["result"]
        return {_varying_labels(series["metric"]): float(series["value"][1]) for series in result}


def _varying_labels(labels: dict[str, str]) -> tuple[str, ...]:
    return tuple(labels[name] for name in sorted(labels) if name not in COMMON)


COMMON = {"__name__", "instance", "job", "run", "host"}


@contextmanager
def prometheus(directory: Path, *, targets: Path, scrape: list[dict[str, Any]] | None = None) -> Iterator[Prometheus]:
    """`targets`: directory of the `file_sd_configs` files. `directory`: directory of all the server's data. `scrape`:
    scrape configurations instead of file discovery; their paths are relative to `directory`.
    """
    port = free_port()
    configuration = CONFIGURATION.replace("TARGETS", str(targets)).replace("RULES", str(RULES))
    if scrape is not None:
        configuration = configuration.partition("scrape_configs:")[0] + f"scrape_configs: {json.dumps(scrape)}\n"
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
            server_api = Prometheus(url=f"http://127.0.0.1:{port}")
            until(lambda: server.poll() is None and _is_ready(server_api), "Prometheus")
            yield server_api
        finally:
            server.kill()


def _is_ready(server: Prometheus) -> bool:
    try:
        with urlopen(f"{server.url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, ConnectionError):
        return False
