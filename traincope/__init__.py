"""Find where the time of a distributed training goes, what causes the loss, and what to do.

In the training process (importing traincope does not import torch; nothing raises into training):

    with traincope.run() as run:
        for batch in loader:
            ...
            run.step()

Offline, on any machine:

    run = traincope.open_run("traincope_runs/my-job")
    run.verdict, run.document, run.tables.steps.to_pandas(), run.sql("select ...")
"""

import os
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traincope.analysis import Analysis, analyze
    from traincope.report.opened_run import OpenedRun, open_run
    from traincope.timeline import Timeline


def _is_command() -> bool:
    """Return whether this process is the command line, which starts faster without the recorder.

    A training imports the recorder at once: later it may be another user, who can't read its files.
    """
    words = sys.orig_argv[1:]
    return os.path.basename(sys.argv[0] if sys.argv else "") == "traincope" or words[:2] == ["-m", "traincope.cli.main"]


if TYPE_CHECKING or not _is_command():
    from traincope.record.run import Run, event, log, phase, rollout, run, span, step, wait_for


def _version() -> str:
    """Version of the installed distribution, or of the checkout that contains this file."""
    try:
        return version("traincope")
    except PackageNotFoundError:
        import tomllib
        from pathlib import Path

        project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
        return str(project["version"])


__version__ = _version()

__all__ = [
    "Analysis",
    "OpenedRun",
    "Run",
    "Timeline",
    "analyze",
    "event",
    "log",
    "open_run",
    "phase",
    "rollout",
    "run",
    "span",
    "step",
    "wait_for",
]

_HOMES = {
    **dict.fromkeys(
        ("Run", "event", "log", "phase", "rollout", "run", "span", "step", "wait_for"), "traincope.record.run"
    ),
    "Analysis": "traincope.analysis",
    "OpenedRun": "traincope.report.opened_run",
    "Timeline": "traincope.timeline",
    "analyze": "traincope.analysis",
    "open_run": "traincope.report.opened_run",
}
"""Name -> its module, imported on first use: a training does not pay for reports, nor the command line for hooks."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
