"""The runs that a server may read, each read again when its files have changed."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from traincope.errors import UsageError
from traincope.tables.query import named_runs
from traincope.tables.sources import Sources
from traincope.viewer.library.preparing import fingerprint


class ServedRuns:
    """Runs by name. No other path is opened."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises NotARunError if there is no run at a path."""
        self._paths: Mapping[str, Path] = named_runs(paths)
        self._read: dict[str, tuple[str, Sources]] = {}

    def __getitem__(self, name: str | None) -> Sources:
        """The run with this name; the only one if `name` is None. Raises UsageError for any other name."""
        names = list(self._paths)
        known = names[0] if name is None and len(names) == 1 else name
        if known is None or known not in self._paths:
            raise UsageError(f"name one of the runs of this server: {', '.join(names)}")
        path = self._paths[known]
        state = fingerprint(path)
        if known not in self._read or self._read[known][0] != state:
            self._read[known] = (state, Sources.at(path, name=known))
        return self._read[known][1]

    def chosen(self, names: Sequence[str] | None) -> list[Sources]:
        """The runs with these names; all if `names` is None."""
        return [self[name] for name in (self._paths if names is None else names)]
