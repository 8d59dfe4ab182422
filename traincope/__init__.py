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

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traincope.analysis import Analysis, analyze
    from traincope.record.run import Run, event, log, phase, run, span, step, wait_for
    from traincope.report.opened_run import OpenedRun, open_run
    from traincope.timeline import Timeline


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
    "run",
    "span",
    "step",
    "wait_for",
]

_HOMES = {
    **dict.fromkeys(("Run", "event", "log", "phase", "run", "span", "step", "wait_for"), "traincope.record.run"),
    "Analysis": "traincope.analysis",
    "OpenedRun": "traincope.report.opened_run",
    "Timeline": "traincope.timeline",
    "analyze": "traincope.analysis",
    "open_run": "traincope.report.opened_run",
}
"""Name -> its module. It is imported on first use: a training does not pay for reports, nor a report for hooks."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(_HOMES[name])
    # All names of the module at once: Dynamo may trace `traincope.log`, and looks only into the package's dictionary.
    globals().update({each: getattr(home, each) for each, place in _HOMES.items() if place == _HOMES[name]})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
