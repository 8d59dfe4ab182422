"""Load a configuration from a TOML file and `--set a.b=value`.

Each error is one sentence that names the key to change.
"""

import difflib
import tomllib
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from cattrs import Converter
from cattrs.errors import AttributeValidationNote, BaseValidationError, ForbiddenExtraKeysError

from traincope.engine.config import Config
from traincope.errors import ConfigError


def load_config(path: str | Path, *, overrides: Iterable[str] = ()) -> Config:
    """Read a configuration file and apply overrides.

    Each override is `table.key=value`; the value is TOML or a bare word. Raises ConfigError that names the file, the
    key and the remedy.
    """
    tables = _read(Path(path))
    for override in overrides:
        _override(tables, override)
    return _structure(tables, source=str(path))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist; examples/demo.toml is a configuration to start from") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; give a readable file in UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; correct that place") from error


def _override(tables: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    table, dot, name = key.strip().partition(".")
    if not (equals and dot and table and name):
        raise ConfigError(
            f"--set {override} is not understood; write --set table.key=value, as in --set train.steps=10"
        )
    values = tables.setdefault(table, {})
    if not isinstance(values, dict):
        raise ConfigError(
            f"--set {override}: {table} is a key in the file, not a table; write [{table}] there with keys below it"
        )
    values[name] = _value(text.strip())


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _structure(tables: dict[str, Any], *, source: str) -> Config:
    known = [field.name for field in fields(Config)]
    for table, values in tables.items():
        if table in known and not isinstance(values, dict):
            raise ConfigError(
                f"{source}: {table} = {values!r} is a key, but [{table}] is a table; put its keys below it"
            )
    try:
        return _converter().structure(tables, Config)
    except BaseValidationError as error:
        raise ConfigError(f"{source}: {_first_sentence(error)}") from error
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def _converter() -> Converter:
    """A cattrs converter that is strict about types.

    TOML has types, so 2.5 for a whole number is a mistake to report, not a value to round.
    """
    converter = Converter(forbid_extra_keys=True)
    converter.register_structure_hook(bool, lambda value, _: _exactly(value, bool, expected="true or false"))
    converter.register_structure_hook(int, lambda value, _: _exactly(value, int, expected="a whole number"))
    converter.register_structure_hook(str, lambda value, _: _exactly(value, str, expected="a string"))
    converter.register_structure_hook(float, lambda value, _: _number(value))
    converter.register_structure_hook_func(_is_choice, _choice)
    return converter


def _exactly(value: object, kind: type, *, expected: str) -> object:
    if type(value) is not kind:
        raise TypeError(f"{value!r}; give {expected}")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r}; give a number")
    return float(value)


def _is_choice(kind: object) -> bool:
    return get_origin(kind) is Literal


def _choice(value: object, kind: object) -> object:
    if value not in get_args(kind):
        raise TypeError(f"{value!r}; choose one of {', '.join(get_args(kind))}")
    return value


def _first_sentence(error: BaseValidationError, table: str | None = None) -> str:
    """Turn the first leaf of cattrs' tree of errors into a sentence."""
    for leaf in error.exceptions:
        if isinstance(leaf, ForbiddenExtraKeysError):
            return _unknown_key(leaf, table=table)
        if isinstance(leaf, ConfigError):
            return str(leaf)
        note = next(note for note in leaf.__notes__ if isinstance(note, AttributeValidationNote))
        name = note.name if table is None else f"{table}.{note.name}"
        if isinstance(leaf, BaseValidationError):
            return _first_sentence(leaf, table=name)
        return f"{name} is {leaf}"
    raise error


def _unknown_key(error: ForbiddenExtraKeysError, *, table: str | None) -> str:
    key = sorted(error.extra_fields)[0]
    known = [field.name for field in fields(error.cl)]
    closest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
    if table is None:
        return f"there is no table [{key}]; did you mean [{closest}]?"
    return f"[{table}] has no key {key}; did you mean {closest}?"
