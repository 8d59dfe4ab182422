"""Metadata of collectives: the arguments that torch gives to `record_param_comms` and to communication kernels."""

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from traincope.arrays import AFTER_ALL_NS
from traincope.ingest.traces.decimals import MAX_DIGITS
from traincope.ingest.traces.events import Arguments
from traincope.ingest.traces.recorded_call import SIZES
from traincope.store.side_tables.traces import TraceCollective, TraceGroup

OPERATOR = "record_param_comms"
ANNOTATION_OF = re.compile(r"(?:nccl|rccl|gloo|ucc|mpi|oneccl|ccl|c10d):+(.*)", re.DOTALL)
"""Name of an annotation around the launch of a collective, or around its work on the host."""
GATHERED = re.compile(r"c10d::_?allgather_(base|into_tensor).*")
"""Operators of which the first argument is the output, and the second the input."""
NOTHING = TraceCollective()


def collective(arguments: Arguments) -> TraceCollective:
    """Metadata in an event's arguments. Older torch states only the shapes of the input tensors."""
    elements, dtype = (None, None) if arguments.collective is not None else _recorded_input(arguments)
    return TraceCollective(
        name=_text(arguments.collective),
        group=_text(arguments.group),
        description=_text(arguments.description),
        ranks=_numbers(arguments.ranks),
        group_size=whole(arguments.group_size),
        dtype=_text(arguments.dtype) or dtype,
        in_elements=elements if elements is not None else whole(arguments.in_elements),
        out_elements=whole(arguments.out_elements),
        in_split=_numbers(arguments.in_split),
        out_split=_numbers(arguments.out_split),
        sequence=whole(arguments.collective_sequence),
    )


def sizes(name: str, arguments: Arguments) -> TraceCollective:
    """Sizes by the recorded shapes of an operator or annotation around a collective, all that torch before 2.2 has.

    The inputs of an annotation are the tensors that the rank sends.
    """
    try:
        types = list(map(str, msgspec.json.decode(arguments.types)))
        elements = [math.prod(map(int, shape)) for shape in msgspec.json.decode(arguments.dims)]
    except (TypeError, ValueError):
        return NOTHING
    if GATHERED.fullmatch(name):
        known = len(elements) > 1 and types[0] == types[1] != ""
        return TraceCollective(dtype=types[0], out_elements=elements[0], in_elements=elements[1]) if known else NOTHING
    is_sent = name.partition(":")[0] != "c10d" and len(set(types)) == 1 and len(types) == len(elements)
    return TraceCollective(dtype=types[0], in_elements=sum(elements)) if is_sent and types[0] in SIZES else NOTHING


def groups(job: Mapping[str, Any]) -> tuple[TraceGroup, ...]:
    """Process groups in the description of the job."""
    listed = job.get("pg_config")
    return tuple(
        TraceGroup(
            name=str(group["pg_name"]),
            description=_text(group.get("pg_desc")),
            size=whole(group.get("pg_size")),
            ranks=_numbers(group.get("ranks")),
        )
        for group in (listed if isinstance(listed, list) else [])
        if isinstance(group, dict) and "pg_name" in group
    )


def whole(value: Any) -> int | None:
    """A whole number of 64 bits from 0 on, printed as a number or as a string; None for anything else."""
    text = "" if isinstance(value, bool) else str(value).strip()
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else None
    return None if number is None or number > AFTER_ALL_NS else number


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _numbers(value: Any) -> tuple[int, ...]:
    """A list, or the text of one, as in "[0, 1]". Empty if it is abbreviated, as in "[0, 1, ..., 127]"."""
    parts = value.strip("[]").split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    numbers = tuple(number for number in map(whole, parts) if number is not None)
    return numbers if len(numbers) == len(parts) else ()


def _recorded_input(arguments: Arguments) -> tuple[int | None, str | None]:
    """Elements and dtype of the first input, if it is a tensor or a list of tensors with recorded shapes."""
    try:
        dims, kind = msgspec.json.decode(arguments.dims)[0], str(msgspec.json.decode(arguments.types)[0])
        shapes = dims if dims and isinstance(dims[0], list) else [dims] if dims else []
        elements = sum(math.prod(map(int, shape)) for shape in shapes)
    except (LookupError, TypeError, ValueError):
        return None, None
    return (elements or None), (kind if elements and kind != "TensorList" else None)
