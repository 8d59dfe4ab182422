"""The value of a number on a page, by the places in the JSON that it names."""

from typing import Any
from urllib.parse import unquote


def value_at(document: Any, places: str, per: str | None = None) -> float:
    """The sum at `places`, pointers of RFC 6901 between blanks, over the value at `per`; null counts as nothing."""
    known = [value for place in places.split(" ") if (value := _at(document, place)) is not None]
    over = None if per is None else _at(document, per)
    assert known, places
    assert per is None or over, per
    return sum(known) / over if over else sum(known)


def _at(document: Any, pointer: str) -> float | None:
    for key in pointer.split("/")[1:]:
        name = unquote(key).replace("~1", "/").replace("~0", "~")
        document = document[int(name)] if isinstance(document, list) else document[name]
    assert document is None or isinstance(document, int | float), pointer
    return document
