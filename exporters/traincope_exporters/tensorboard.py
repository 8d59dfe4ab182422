"""Live exporter that writes the scalars of the latest steps as TensorBoard's event files.

    TRAINCOPE_TENSORBOARD=runs/traincope   directory of the files, which TensorBoard shows as one run

The agent of rank 0 writes them. The step of a value is the number of steps that have ended since the attempt began.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traincope.analysis import Analysis
from traincope.errors import MissingDependencyError
from traincope.live.serve.exporters import Origin, Source
from traincope.metrics.scalars import scalars

logger = logging.getLogger(__name__)

VARIABLE = "TRAINCOPE_TENSORBOARD"
OFF = ("", "off", "0", "no")


class Writing:
    """Running exporter. Its file is made with the first values, so that only the agent of rank 0 makes one."""

    def __init__(self, directory: Path, make_writer: Any) -> None:
        """`make_writer`: the class `tensorboard.summary.Writer`."""
        self.where = str(directory)
        self._make_writer = make_writer
        self._writer: Any = None

    def follow(self, analysis: Analysis) -> None:
        """Write the values of a look: some hundred bytes."""
        latest = scalars(analysis)
        if latest is None or all(rank.rank for rank in analysis.timeline.ranks):
            return
        if self._writer is None:
            self._writer = self._make_writer(self.where)
        for name, value in latest.values.items():
            self._writer.add_scalar(name, value, latest.step + 1)
        self._writer.flush()

    def stop(self) -> None:
        if self._writer is not None:
            self._writer.close()


def start(source: Source, *, origin: Origin, environment: Mapping[str, str]) -> Writing | None:
    """Write until stopped; None if `environment` does not enable it.

    Raises MissingDependencyError if tensorboard is not installed.
    """
    directory = environment.get(VARIABLE, "").strip()
    if directory.lower() in OFF:
        return None
    try:
        from tensorboard.summary import Writer
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{VARIABLE} needs {error.name}, which is not installed: pip install tensorboard"
        ) from error
    logger.debug("writing values of %s from %s, as analysed and not from %s", origin.run, origin.host, source)
    return Writing(Path(directory).absolute(), Writer)
