"""Values of one table of a plan, with their types checked."""

from collections.abc import Mapping
from dataclasses import dataclass

from traincope.errors import UsageError

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Several:
    """Value of a variable that its script assigns several times."""

    word: str
    values: tuple[str, ...]


class Values:
    """One table of a file. A missing value is the framework's default; one of a wrong kind raises UsageError."""

    def __init__(self, source: str, tables: Mapping[str, object], name: str) -> None:
        table = tables.get(name, {})
        if not isinstance(table, Mapping):
            raise UsageError(f"{source}: {name} = {table!r} is not a table; put its keys below it")
        self._source, self._name, self._table = source, name, table

    def given(self, key: str) -> bool:
        return key in self._table

    def names(self) -> tuple[str, ...]:
        return tuple(self._table)

    def is_used(self, key: str) -> bool:
        """Return whether the value is neither false nor a table that is not enabled."""
        value = self._table.get(key)
        return value.get("enabled", True) is not False if isinstance(value, Mapping) else value not in (None, False, 0)

    def get(self, key: str) -> object:
        """Value of any kind; None if it is not given."""
        return self._table.get(key)

    def table(self, key: str) -> "Values":
        """A table inside this one; empty if it is not given."""
        return Values(self._source, self._table if key in self._table else {}, key)

    def holds_text(self, key: str) -> bool:
        return isinstance(self._table.get(key), str)

    def left_open(self, key: str) -> bool:
        """Return whether the value is `auto`: the training's own arguments decide it."""
        return self._table.get(key) == AUTO

    def whole(self, key: str, default: int) -> int:
        value = self._table.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, value, "a whole number")
        return value

    def number(self, key: str, default: float) -> float:
        value = self._table.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, value, "a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._table.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str) -> str:
        value = self._table.get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, value, "a string")
        return value

    def quotient(self, gpus: int, used: int, *, of: str) -> int:
        """Data-parallel ranks. Raises UsageError unless the other axes divide the GPUs."""
        if used < 1 or gpus % used:
            raise UsageError(
                f"{self._source}: the {of} are {used}, which does not divide {gpus} GPUs; give --gpus, or change them"
            )
        return gpus // used

    def wrong(self, key: str, value: object, wanted: str) -> UsageError:
        """The error of a value that is not `wanted`."""
        if isinstance(value, Several):
            several = " and ".join(value.values)
            return UsageError(f"{self._source}: {value.word} is {several}; write the value that the training uses")
        name = f"{self._name}.{key}" if self._name else key
        return UsageError(f"{self._source}: {name} is {value!r}; give {wanted}")
