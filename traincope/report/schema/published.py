"""JSON Schema of the report, for programs that read it: docs/reference/report.schema.json (`make schema`)."""

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from functools import cache, cached_property, reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, TypedDict, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

from traincope.report.schema.document import SCHEMA_VERSION, Document
from traincope.report.schema.results import KEYS, NAMES, keys

DIALECT = "https://json-schema.org/draft/2020-12/schema"
REFERENCE = "#/$defs/{name}"


def json_schema() -> dict[str, Any]:
    """Return the schema of `traincope report --format json`, with the descriptions of the classes' sources.

    Objects may have more keys than the schema lists: a later release adds keys.
    """
    (root,), types = msgspec.json.schema_components((_object(Document),), ref_template=REFERENCE)
    types["Document"]["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    return {"$schema": DIALECT, "title": "Report of traincope", **root, "$defs": types}


@cache
def _object(kind: type) -> Any:
    """The JSON type of a result's class, or of a declared type."""
    paths = {key: (key,) for key in kind.__annotations__} if is_typeddict(kind) else keys(kind)
    values = {key: _value(kind, path) for key, path in paths.items()}
    made: Any = TypedDict(NAMES.get(kind, kind.__name__), values)  # type: ignore[misc]
    made.__doc__ = _texts(kind).get("")
    return made


def _value(kind: type, path: tuple[str, ...]) -> Any:
    """The JSON type of the attribute at the end of a path, with its description."""
    nullable = False
    for name in path[:-1]:
        choices = get_args(_annotation(kind, name)) or (_annotation(kind, name),)
        nullable |= NoneType in choices
        kind = next(choice for choice in choices if choice is not NoneType)
    annotation = _annotation(kind, path[-1])
    value_type = _json_type(annotation) | None if nullable else _json_type(annotation)
    text = " ".join([*_texts(kind).get(path[-1], "").split(), *_words(annotation)])
    return Annotated[value_type, msgspec.Meta(description=text)] if text else value_type


def _annotation(kind: type, name: str) -> Any:
    member = inspect.getattr_static(kind, name, None)
    if isinstance(member, cached_property):
        return get_type_hints(member.func)["return"]
    if isinstance(member, property):
        return get_type_hints(member.fget)["return"]
    return get_type_hints(kind, include_extras=True)[name]


def _words(annotation: Any) -> Iterator[str]:
    """Name the words of an enum."""
    for choice in get_args(annotation) or (annotation,):
        if isinstance(choice, type) and issubclass(choice, Enum):
            yield f"One of {', '.join(f'`{word.value}`' for word in choice)}."


def _json_type(annotation: Any) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _json_type(arguments[1])
    inner = [_json_type(argument) for argument in arguments if argument is not ...]
    if origin is UnionType:
        return reduce(or_, inner)
    if origin in (list, tuple, Sequence):
        return list[inner[0]]  # type: ignore[valid-type]
    if origin in (dict, Mapping):
        return dict[inner[0], inner[1]]  # type: ignore[valid-type]
    if is_typeddict(annotation) or is_dataclass(annotation) or annotation in KEYS:
        return _object(annotation)
    return str if isinstance(annotation, type) and issubclass(annotation, Enum) else annotation


@cache
def _texts(kind: type) -> Mapping[str, str]:
    """Name of each attribute -> its description in the source, in JSON's words. The class's own has the name ""."""
    (source,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(source, ast.ClassDef)
    texts = {"": ast.get_docstring(source)}
    for member, after in zip(source.body, source.body[1:], strict=False):
        match member, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = text
    for member in source.body:
        if isinstance(member, ast.FunctionDef):
            texts[member.name] = ast.get_docstring(member)
    return {name: " ".join(text.split()).replace("None", "null") for name, text in texts.items() if text}
