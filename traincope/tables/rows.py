"""Rows of an answer as JSON values, CSV and Parquet."""

import csv
import json
from collections.abc import Iterator
from decimal import Decimal
from io import BytesIO, StringIO
from math import isfinite
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def json_rows(answer: pa.Table) -> list[dict[str, Any]]:
    """One object per row. JSON has no NaN: NaN and infinities become the strings "NaN", "Infinity", "-Infinity"."""
    return [{name: _json(value) for name, value in row.items()} for row in answer.to_pylist()]


def _json(value: object) -> Any:
    """Convert a value of Arrow. Numbers, texts, lists and objects stay; times and others become text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else NOT_FINITE[str(value)]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, list | tuple):
        return [_json(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _json(each) for key, each in value.items()}
    return str(value)


def csv_text(answer: pa.Table) -> str:
    """CSV with a head; null is empty."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(answer.column_names)
    writer.writerows(cells(answer))
    return text.getvalue()


def cells(answer: pa.Table, *, null: str = "") -> Iterator[list[str]]:
    """Rows as text. Lists, objects and truth values are JSON. `null`: text for null."""
    for row in json_rows(answer):
        yield [_cell(value, null) for value in row.values()]


def _cell(value: Any, null: str) -> str:
    if value is None:
        return null
    return json.dumps(value) if isinstance(value, bool | list | dict) else str(value)


def parquet_bytes(answer: pa.Table) -> bytes:
    """The answer as a Parquet file."""
    file = BytesIO()
    pq.write_table(answer, file, compression="zstd")
    return file.getvalue()
