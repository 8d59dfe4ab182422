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
    traces = []
    for use in (Use.OFF, Use.AUTO):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(VARIABLE, use)
            traces.append(read_kineto(file))
    return traces[0], traces[1]


def contents(trace: Trace) -> dict[str, Any]:
    """All fields of a trace, as what can be compared. NaN is null."""
    values = {field.name: getattr(trace, field.name) for field in fields(trace)}
    lists = {name: value.tolist() for name, value in values.items() if hasattr(value, "tolist")}
    return values | lists | {"flops": [None if flops != flops else flops for flops in lists["flops"]]}
