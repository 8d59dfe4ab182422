"""OpenTelemetry export: trace, logs and metrics of a finished run, and live samples.

`identity` describes the sender and numbers spans. `sampling` selects steps. `spans` and `logs` convert a run, `metrics`
converts samples. `collector` sends them; `finished` after a run, `push` and `pushing` while a job runs.

Importing this package imports nothing of OpenTelemetry: the agent of every job looks here whether it is enabled.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from traincope.errors import MissingDependencyError
from traincope.report.exports import Address, CollectorExport
from traincope.timeline import Timeline


@contextmanager
def requiring_packages(needed_by: str) -> Iterator[None]:
    """Turn the absence of OpenTelemetry into a MissingDependencyError."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{needed_by} needs {error.name}, which is not installed: pip install 'traincope[otel]'"
        ) from error


def _send(timeline: Timeline, address: Address) -> str:
    with requiring_packages("the export otlp"):
        from traincope_exporters.otlp.finished import send
    return send(timeline, address)


EXPORT = CollectorExport(send=_send)
