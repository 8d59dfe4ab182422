"""Metadata of collectives: the arguments that torch gives to `record_param_comms` and to communication kernels."""

import math
from collections.abc import Mapping
from typing import Any

from traincope.store.traces import TraceCollective, TraceGroup

OPERATOR = "record_param_comms"
NAME = "Collective name"


def collective(arguments: Mapping[str, Any]) -> TraceCollective:
    """Metadata in an event's arguments. Older torch states only the shapes of the input tensors."""
    elements, dtype = (None, None) if NAME in arguments else _recorded_input(arguments)
    return TraceCollective(
        name=_text(arguments, NAME),
        group=_text(arguments, "Process Group Name"),
        description=_text(arguments, "Process Group Description"),
        ranks=_numbers(arguments.get("Process Group Ranks")),
        group_size=number(arguments, "Group size"),
        dtype=_text(arguments, "dtype") or dtype,
        in_elements=elements if elements is not None else number(arguments, "In msg nelems"),
        out_elements=number(arguments, "Out msg nelems"),
        in_split=_numbers(arguments.get("In split size")),
        out_split=_numbers(arguments.get("Out split size")),
        sequence=number(arguments, "Seq"),
    )


def groups(job: Mapping[str, Any]) -> tuple[TraceGroup, ...]:
    """Process groups in the description of the job."""
    listed = job.get("pg_config")
    return tuple(
        TraceGroup(
            name=str(group["pg_name"]),
            description=_text(group, "pg_desc"),
            size=number(group, "pg_size"),
            ranks=_numbers(group.get("ranks")),
        )
        for group in (listed if isinstance(listed, list) else [])
        if isinstance(group, dict) and "pg_name" in group
    )


def number(values: Mapping[str, Any], key: str) -> int | None:
    """A whole number from 0 on, printed as a number or as a string; None if it is missing or something else."""
    value = values.get(key)
    text = "" if isinstance(value, bool) else str(value)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def _text(values: Mapping[str, Any], key: str) -> str | None:
    value = values.get(key)
    return None if value is None else str(value)


def _numbers(value: Any) -> tuple[int, ...]:
    """A list, or the text of one, as in "[0, 1]". Empty if it is abbreviated, as in "[0, 1, ..., 127]"."""
    parts = value.strip("[]").split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    numbers = [number({"": part.strip() if isinstance(part, str) else part}, "") for part in parts]
    return tuple(each for each in numbers if each is not None) if None not in numbers else ()


def _recorded_input(arguments: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """Elements and dtype of the first input, if it is a tensor or a list of tensors with recorded shapes."""
    try:
        dims, kind = arguments["Input Dims"][0], str(arguments["Input type"][0])
        shapes = dims if dims and isinstance(dims[0], list) else [dims] if dims else []
        elements = sum(math.prod(map(int, shape)) for shape in shapes)
    except (LookupError, TypeError, ValueError):
        return None, None
    return (elements or None), (kind if elements and kind != "TensorList" else None)
