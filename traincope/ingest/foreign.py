"""Files of other tools that are not read, known by their names or their begin."""

import gzip
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

HEAD = 1 << 16
"""Bytes of the begin that are looked at, after unpacking."""
GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Foreign:
    """A format, by its first bytes, by words of which its begin has all of one line, or by the ends of its names."""

    what: str
    first: tuple[bytes, ...] = ()
    words: tuple[tuple[bytes, ...], ...] = ()
    suffixes: tuple[str, ...] = ()


ASCEND = _Foreign(
    what="a trace of Ascend's profiler",
    words=((b"Ascend Hardware",), (b"AI_CORE",), (b"AI_VECTOR_CORE",), (b"aclnn",), (b"AscendCL",)),
)
BEGINS = re.compile(rb'"ph"\s*:\s*"B"')
"""Phase of an event that another one ends."""
FOREIGN = (
    _Foreign(what="an archive (zip), as torch.save writes them", first=(b"PK\x03\x04",)),
    _Foreign(what="packed by zstd, xz or bzip2 (unpack it)", first=(b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"BZh")),
    _Foreign(what="text in UTF-16 (write it in UTF-8)", first=(b"\xff\xfe", b"\xfe\xff")),
    _Foreign(what="a page (HTML)", first=(b"<!DOCTYPE", b"<!doctype", b"<html")),
    _Foreign(what="a timeline of memory by torch's export_memory_timeline()", first=(b"[[",)),
    _Foreign(what="a report of Nsight Systems", suffixes=(".nsys-rep", ".qdrep", ".qdstrm")),
    _Foreign(what="a report of Nsight Compute", suffixes=(".ncu-rep", ".nsight-cuprof-report")),
    _Foreign(what="a database (SQLite), as Nsight Systems and rocprof write them", words=((b"SQLite format 3",),)),
    _Foreign(
        what="an export of Nsight Systems",
        words=((b'"CudaEvent"',), (b'"NvtxEvent"',), (b"Total Time (ns)",), (b"Start (ns)", b"CorrId"), (b"nsys",)),
    ),
    _Foreign(what="a table of Nsight Compute", words=((b'"Kernel Name"', b'"Metric Name"'), (b"Nsight Compute",))),
    _Foreign(what="a trace of Perfetto's own format", suffixes=(".pftrace", ".perfetto-trace")),
    _Foreign(
        what="an execution trace of Chakra, or of torch's ExecutionTraceObserver",
        words=((b"chakra",), (b'"nodes"', b"ctrl_deps"), (b'"nodes"', b'"rf_id"'), (b"COMM_COLL_NODE",)),
        suffixes=(".et",),
    ),
    _Foreign(
        what="output of rocprof",
        words=(
            *((b"rocprof",), (b"rocpd",), (b'"BeginNs"',), (b"KernelName", b"gpu-id"), (b"TotalDurationNs",)),
            *((b"Agent_Id", b"Start_Timestamp"), (b"Kernel_Name", b"Dispatch_Id")),
        ),
    ),
    _Foreign(
        what="a log of NCCL's inspector",
        words=((b"inspector_output_format_version",), (b"coll_perf",), (b"p2p_perf",)),
    ),
    _Foreign(what="a trace of NCCL's profiler plugin", words=((b'"GROUP"', b'"COLL"'), (b'"PROXY"', b"ProxyOp"))),
    _Foreign(what="a log of NCCL", words=((b"NCCL INFO",),)),
    _Foreign(
        what="a trace of TensorFlow's or JAX's profiler",
        words=(
            *((b"/job:",), (b"/device:CPU:",), (b"/device:GPU:",), (b"/device:TPU:",), (b"/host:CPU",), (b"tf_op",)),
            *((b"hlo_op",), (b"hlo_module",), (b"hlo_category",), (b"brain.Event",), (b"TensorFlow",)),
        ),
        suffixes=(".xplane.pb",),
    ),
    _Foreign(
        what="a trace of the Linux kernel, as eBPF and perf write them",
        words=(
            (b"ebpf",),
            (b"eBPF",),
            (b"bpftrace",),
            (b"sched_switch",),
            (b"sys_enter",),
            (b'"syscall',),
            (b"PERFILE2",),
        ),
    ),
    _Foreign(what="a profile of VizTracer", words=((b"viztracer",),)),
    _Foreign(what="a profile of memray", words=((b"memray\0",),)),
    _Foreign(what="a profile of speedscope, as py-spy writes them", words=((b"speedscope",),)),
    _Foreign(what="a timeline of Horovod", words=((b"NEGOTIATE_ALLREDUCE",),)),
    ASCEND,
    _Foreign(what="a trace of Chromium", words=((b"disabled-by-default-",), (b"devtools.timeline",))),
)
"""The first that fits decides."""


def begin(path: Path) -> bytes:
    """Return the begin of a file, unpacked; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
        if head.startswith(GZIP):
            with gzip.open(path) as packed:
                return packed.read1(HEAD)
    except (OSError, EOFError, zlib.error):
        return b""
    return head


def is_of_ascend(path: Path) -> bool:
    """Return whether begin or end of a file has words of Ascend's profiler, whose host events are like torch's."""
    head = begin(path)
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - HEAD, 0))
            tail = file.read()
    except OSError:
        tail = b""
    return _fits(ASCEND, path, head) or _fits(ASCEND, path, tail)


def has_begins(path: Path) -> bool:
    """Return whether the begin of a file has events in two parts, their begin and their end."""
    return BEGINS.search(begin(path)) is not None


def foreign_format(path: Path) -> str | None:
    """Return what the file is, if it is of a known tool whose files are not read. None for any other file."""
    head = begin(path)
    return next((each.what for each in FOREIGN if _fits(each, path, head)), None)


def _fits(foreign: _Foreign, path: Path, head: bytes) -> bool:
    return (
        path.name.endswith(foreign.suffixes or ("\0",))
        or head.startswith(foreign.first or (b"\0\0",))
        or any(all(word in head for word in words) for words in foreign.words)
    )
