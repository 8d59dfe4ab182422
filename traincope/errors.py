"""Every error that traincope raises, in one tree.

    TraincopeError                 exit code 1
    ├── UsageError                 2   the command line or the arguments contradict each other
    │   └── CommandError           127  the command of `traincope run` does not exist; 126: it cannot be run
    ├── ConfigError                3   a configuration is unusable: unknown key, impossible layout
    ├── RunDirectoryError          4   a run directory is unreadable
    │   ├── NotARunError           4   the directory holds no recording
    │   ├── EmptyRunError          4   recording began, but no event is written yet
    │   ├── UnreadableError        4   the system does not let this process read one of its files
    │   └── VersionError           5   written by an unknown version of traincope
    ├── DataError                  6   training data is missing or unusable
    ├── TrainingError              7   a launched training did not finish
    │   ├── HangError              11  it hung and was ended (`--on-hang=exit`)
    │   └── CheckpointError        12  a checkpoint of it cannot be written or loaded
    ├── MissingDependencyError     8   an optional package is not installed
    └── ServerError                9   a server refuses the request or is unreachable

`traincope diff` exits with 10 if the second run is slower, `traincope plan check` with 13 if the plan breaks a rule,
`traincope import` with 14 if it left files out. That is their result, not an error.
`traincope run` ends as its command did, by the same exit code or signal, except with 11 after a hang that it ended.

A message names the problem, the place (file, rank, step), and the remedy. Nothing in `traincope.record` lets one of
these errors reach a training process. They belong to the offline half.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REGRESSION = 10
"""Exit code of a comparison that found a regression."""

BROKEN_RULE = 13
"""Exit code of a check that found a broken rule."""

LEFT_OUT = 14
"""Exit code of an import that left files out: they are not of the kind that it reads, or are damaged."""


class TraincopeError(Exception):
    """Base of all errors. `exit_code` is the exit code of the command line."""

    exit_code = 1


class UsageError(TraincopeError):
    exit_code = 2


class CommandError(UsageError):
    exit_code = 127

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class ConfigError(TraincopeError):
    exit_code = 3


class RunDirectoryError(TraincopeError):
    exit_code = 4


class NotARunError(RunDirectoryError):
    exit_code = 4


class EmptyRunError(RunDirectoryError):
    exit_code = 4


class UnreadableError(RunDirectoryError):
    exit_code = 4

    @classmethod
    def of(cls, path: Path, error: OSError) -> "UnreadableError":
        """The error of a file, or of the one that `error` names."""
        return cls(f"cannot read {error.filename or path}: {error.strerror or error}; check its mode and disk")


class VersionError(RunDirectoryError):
    exit_code = 5


class DataError(TraincopeError):
    exit_code = 6


class TrainingError(TraincopeError):
    exit_code = 7


class HangError(TrainingError):
    exit_code = 11


class CheckpointError(TrainingError):
    exit_code = 12


class MissingDependencyError(TraincopeError):
    exit_code = 8


class ServerError(TraincopeError):
    exit_code = 9


@contextmanager
def refusals(path: Path) -> Iterator[None]:
    """Turn an OSError of the block, which reads `path`, into an UnreadableError."""
    try:
        yield
    except OSError as error:
        raise UnreadableError.of(path, error) from error
