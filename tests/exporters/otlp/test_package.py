"""The package of the OpenTelemetry exporter where OpenTelemetry is not installed."""

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["opentelemetry"] = None
from traincope.errors import MissingDependencyError
from traincope.report.exports import export_named
from traincope_exporters.otlp import pushing
assert pushing.start(list, origin=None, environment={}) is None
assert pushing.finish({}) is None
for needs in (
    lambda: export_named("otlp").send(None, None),
    lambda: pushing.finish({"TRAINCOPE_OTLP": "on"}),
):
    try:
        needs()
    except MissingDependencyError as error:
        print(error)
"""


def test_only_an_enabled_exporter_needs_opentelemetry() -> None:
    """The agent of every job asks it. A traceback in the log of each job without the extra would be noise."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    export, finish = ended.stdout.splitlines()
    assert export == "the export otlp needs opentelemetry.sdk, which is not installed: pip install 'traincope[otel]'"
    assert finish.startswith("TRAINCOPE_OTLP needs opentelemetry")
