"""Convert results to the types of this package: each key takes the attribute of its name, or a declared attribute.

class Attempt(TypedDict):
    clean: bool
    steps: Annotated[int, result.num_steps]

convert(attempt, Attempt)  # {"clean": attempt.clean, "steps": attempt.num_steps}
"""

from collections.abc import Hashable, Mapping
from enum import Enum
from functools import cache
from types import UnionType
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints, is_typeddict

T = TypeVar("T")


class Attribute:
    """Path to a key's value in a result: `result.a.b` is attribute `b` of its `a`, or null if `a` is null."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __getattr__(self, name: str) -> "Attribute":
        if name.startswith("__"):
            raise AttributeError(name)
        return Attribute(*self._names, name)

    def of(self, value: Any) -> Any:
        for name in self._names:
            if value is None:
                return None
            value = getattr(value, name)
        return value


result = Attribute()
"""The result to convert."""


def convert(source: object, kind: type[T], **computed: object) -> T:
    """Return a `kind` from the attributes of `source`, and from `computed` for keys that are not attributes.

    Tuples become lists, enums their values, and nested results the types that `kind` declares. Raises TypeError for a
    name in `computed` that is not a key, AttributeError for a key without a value.
    """
    keys = _keys(cast(Hashable, kind))
    if unknown := computed.keys() - keys.keys():
        raise TypeError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    converted = {
        key: computed[key] if key in computed else _converted(attribute.of(source), value_type)
        for key, (attribute, value_type) in keys.items()
    }
    return cast(T, converted)


@cache
def _keys(kind: type) -> Mapping[str, tuple[Attribute, Any]]:
    """Key -> its attribute, and its type without null."""
    keys = {}
    for key, value_type in get_type_hints(kind, include_extras=True).items():
        attribute = Attribute(key)
        if get_origin(value_type) is Annotated:
            value_type, attribute = get_args(value_type)
        keys[key] = attribute, _without_null(value_type)
    return keys


def _without_null(value_type: Any) -> Any:
    if get_origin(value_type) is not UnionType:
        return value_type
    return next(choice for choice in get_args(value_type) if choice is not type(None))


def _converted(value: Any, value_type: Any) -> object:
    if value is None:
        return None
    if is_typeddict(value_type):
        return convert(value, value_type)
    if get_origin(value_type) is list:
        (item,) = get_args(value_type)
        return [_converted(each, item) for each in value]
    if isinstance(value, Mapping):
        return dict(value)
    return value.value if isinstance(value, Enum) else value
