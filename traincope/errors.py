"""Every error traincope raises, in one tree.

    TraincopeError                 exit code 1
    ├── UsageError                 2   the command line or the arguments contradict each other
    ├── ConfigError                3   a configuration cannot be used: unknown key, impossible layout
    ├── RunDirectoryError          4   a run directory cannot be read
    │   ├── NotARunError           4   nothing was recorded there
    │   ├── EmptyRunError          4   recording began, but holds no records yet
    │   └── VersionError           5   written by a traincope this one does not know
    ├── DataError                  6   training data is missing or unusable
    ├── TrainingError              7   a training that was launched did not finish
    ├── MissingDependencyError     8   an optional package is not installed
    └── ServerError                9   a server that was asked refuses, or cannot be reached

`traincope diff` exits with 10 where the second run is slower: that is its answer, and no error.

A message says what is wrong, where (file, rank, step), and what to do about it. Nothing in
`traincope.record` lets one of these reach a training process; they belong to the offline half.
"""

REGRESSION = 10
"""Exit code of a comparison that says so."""


class TraincopeError(Exception):
    """Base of all errors; `exit_code` is what the command line exits with."""

    exit_code = 1


class UsageError(TraincopeError):
    exit_code = 2


class ConfigError(TraincopeError):
    exit_code = 3


class RunDirectoryError(TraincopeError):
    exit_code = 4


class NotARunError(RunDirectoryError):
    exit_code = 4


class EmptyRunError(RunDirectoryError):
    exit_code = 4


class VersionError(RunDirectoryError):
    exit_code = 5


class DataError(TraincopeError):
    exit_code = 6


class TrainingError(TraincopeError):
    exit_code = 7


class MissingDependencyError(TraincopeError):
    exit_code = 8


class ServerError(TraincopeError):
    exit_code = 9
