"""The two decoders of traces, and the condition of tests that need the native one."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from traincope.ingest.traces.kineto import read_kineto
from traincope.native.cached import VARIABLE, Use
from traincope.native.decoder import find_decoder
from traincope.store.side_tables.traces import Trace

found = find_decoder()
needs_decoder = pytest.mark.skipif(found.path is None, reason=found.why)


def read_by_both(file: Path) -> tuple[Trace, Trace]:
    """Read a trace by the plain decoder and by the native one."""
    return read_by(file, Use.OFF), read_by(file, Use.AUTO)


def read_by(file: Path, use: Use) -> Trace:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, use)
        return read_kineto(file)


def contents(trace: Trace) -> dict[str, Any]:
    """All fields of a trace, as what can be compared. NaN is null."""
    values = {field.name: getattr(trace, field.name) for field in fields(trace)}
    lists = {name: value.tolist() for name, value in values.items() if hasattr(value, "tolist")}
    return values | lists | {"flops": [None if flops != flops else flops for flops in lists["flops"]]}
