"""Debian's Prometheus and Alertmanager on free loopback ports, and a receiver of their alerts."""

import json
import queue
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.ports import free_port

START_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    url: str

    def get(self, path: str, **parameters: str) -> Any:
        """GET a path; returns the answer's JSON."""
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(parameters)}", timeout=90) as answer:
            return json.load(answer)


class Prometheus(Server):
    def query(self, expression: str) -> list[dict[str, Any]]:
        """Series of an instant vector: each has "metric" (its labels) and "value" (time, text)."""
        try:
            answer = self.get("/api/v1/query", query=expression)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {json.load(error)['error']}") from error
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def sum(self, expression: str) -> float:
        return sum(float(series["value"][1]) for series in self.query(expression))

    def wait_for(self, expression: str) -> None:
        """Repeat until the result is not empty."""
        wait(lambda: bool(self.query(expression)), description=expression)


@contextmanager
def prometheus(program: str, directory: Path, *, target: str, rules: Path, alertmanager: str) -> Iterator[Prometheus]:
    """Scrape `target` and evaluate `rules` every second; alerts go to `alertmanager` (host:port)."""
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [f"{rules}/*.yaml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        "scrape_configs": [{"job_name": "traincope", "static_configs": [{"targets": [target]}]}],
    }
    with configured_prometheus(program, directory, configuration, "--rules.alert.resend-delay=1s") as server:
        yield server


@contextmanager
def configured_prometheus(program: str, directory: Path, configuration: object, *options: str) -> Iterator[Prometheus]:
    """Relative paths in `configuration` begin at `directory`."""
    address = f"127.0.0.1:{free_port()}"
    arguments = [
        f"--config.file={_written(directory / 'prometheus.json', configuration)}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address={address}",
        "--enable-feature=exemplar-storage",
        *options,
        "--log.level=error",
    ]
    with _running([program, *arguments]):
        server = Prometheus(url=f"http://{address}")
        _wait_ready(server.url)
        yield server


@contextmanager
def alertmanager(program: str, directory: Path, *, receiver: str) -> Iterator[str]:
    """Forward alerts to the URL `receiver` at once; yields the Alertmanager's host:port."""
    configuration = {
        "route": {"receiver": "test", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s"},
        "receivers": [{"name": "test", "webhook_configs": [{"url": receiver, "send_resolved": False}]}],
    }
    with configured_alertmanager(program, directory, configuration) as address:
        yield address


@contextmanager
def configured_alertmanager(program: str, directory: Path, configuration: object) -> Iterator[str]:
    """Yields its host:port."""
    address = f"127.0.0.1:{free_port()}"
    arguments = [
        f"--config.file={_written(directory / 'alertmanager.json', configuration)}",
        f"--storage.path={directory / 'alertmanager'}",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
        "--log.level=error",
    ]
    with _running([program, *arguments]):
        _wait_ready(f"http://{address}")
        yield address


@contextmanager
def receiver() -> Iterator[tuple[str, "queue.Queue[dict[str, Any]]"]]:
    """A webhook's URL, and the alerts that it received."""
    alerts: queue.Queue[dict[str, Any]] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            for alert in json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"]:
                alerts.put(alert)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", alerts
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def _running(command: list[str]) -> Iterator[None]:
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=90)


def _wait_ready(url: str) -> None:
    def ready() -> bool:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    wait(ready, description=url)


def wait(condition: Any, *, description: str) -> None:
    end = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < end, f"{description}: nothing within {START_SECONDS:g} s"
        time.sleep(0.2)


def _written(path: Path, content: object) -> Path:
    """Write a configuration as JSON, which is valid YAML."""
    path.write_text(json.dumps(content))
    return path
