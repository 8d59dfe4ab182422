"""The traces that torch's profiler would write of an executed program: one file per rank."""

import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.ingest.writing import Event, Raw, complete, kineto
from tests.virtual_gpu.actions import Group, Inputs, Program, Work
from tests.virtual_gpu.machine import MAIN, Call, OnHost, Opened, Ran, RankRecord, execute

BASE_NS = 1_711_964_646_000_000_000
"""Kineto writes times after this one."""
CONTEXT = 1
CALLBACKS = {
    "cudaDeviceSynchronize": 165,
    "cudaEventRecord": 135,
    "cudaEventSynchronize": 137,
    "cudaGraphLaunch": 311,
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cudaMemcpy": 31,
    "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51,
    "cudaStreamSynchronize": 131,
    "cudaStreamWaitEvent": 147,
}
"""CUPTI's number of each runtime call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Metadata that a version of torch writes."""

    described_kernels: bool = True
    """True if kernels carry the metadata of their collective. `record_param_comms` always does."""
    pg_config: bool = True
    """True if `distributedInfo` lists the process groups."""
    packed: bool = False
    """True for gzip."""


NEW = Style()
OLD = Style(described_kernels=False, pg_config=False, packed=True)


def write_traces(program: Program, folder: Path, style: Style = NEW) -> list[Path]:
    """Write the traces of all traced ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    groups = groups_of(program)
    paths = []
    for record in execute(program):
        if record.rank not in program.untraced:
            text = _Writer(record, style).text(world_size=len(program.ranks), groups=groups)
            path = folder / f"rank{record.rank}.json{'.gz' if style.packed else ''}"
            path.write_bytes(gzip.compress(text.encode()) if style.packed else text.encode())
            paths.append(path)
    return paths


def groups_of(program: Program) -> list[Group]:
    groups = {ran.work.group for record in execute(program) for ran in record.works if ran.work.group is not None}
    return sorted(groups, key=lambda group: group.name)


class _Writer:
    """Events of one rank."""

    def __init__(self, record: RankRecord, style: Style) -> None:
        self._record = record
        self._style = style
        self._pid = 4_000 + record.rank
        self._device = record.rank % 8
        self._orders = {opened.order: opened for opened in record.ranges}

    def text(self, *, world_size: int, groups: list[Group]) -> str:
        head = {"deviceProperties": [_device(self._device)]}
        job: dict[str, Any] = {"backend": "nccl", "rank": self._record.rank, "world_size": world_size}
        if self._style.pg_config:
            mine = [group for group in groups if self._record.rank in group.ranks]
            job |= {"pg_count": len(mine), "pg_config": list(map(_configured, mine)), "nccl_version": "2.21.5"}
        tail = {"traceName": "/tmp/trace.json", "displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS}
        return kineto(list(self._events()), head=head | {"distributedInfo": job}, tail=tail)

    def _events(self) -> Iterator[Event]:
        on_host: list[OnHost] = [*self._record.ranges, *self._record.calls]
        begin_ns = min((each.begin_ns for each in on_host), default=0)
        end_ns = max((ran.end_ns for ran in self._record.works), default=begin_ns)
        yield from self._places(begin_ns)
        for number, opened in enumerate(self._record.ranges):
            yield self._range(opened, number)
        for call in self._record.calls:
            yield self._call(call)
        for ran in self._record.works:
            yield self._work(ran)
            yield self._flow("f", ran.call, pid=self._device, tid=ran.work.stream, at_ns=ran.start_ns) | {"bp": "e"}
        for call in {ran.call.order: ran.call for ran in self._record.works}.values():
            yield self._flow("s", call, pid=self._pid, tid=self._tid(call.thread), at_ns=call.begin_ns)
        yield from self._on_device()
        yield complete(
            "PyTorch Profiler (0)", _us(begin_ns), _us(end_ns - begin_ns), cat="Trace", pid="Spans",
            tid="PyTorch Profiler", **{"Op count": 0},
        )  # fmt: skip
        yield {
            "name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g", "pid": "Traces",
            "tid": "Trace PyTorch Profiler", "ts": Raw(_us(begin_ns)),
        }  # fmt: skip
        yield {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": Raw(_us(end_ns))}

    def _places(self, at_ns: int) -> Iterator[Event]:
        for pid, label in ((self._pid, "CPU"), (self._device, f"GPU {self._device}")):
            place = {"ph": "M", "ts": Raw(_us(at_ns)), "pid": pid, "tid": 0}
            yield {"name": "process_name", **place, "args": {"name": "python3"}}
            yield {"name": "process_labels", **place, "args": {"labels": label}}
            yield {"name": "process_sort_index", **place, "args": {"sort_index": pid}}

    def _tid(self, thread: str) -> int:
        return self._pid if thread == MAIN else self._pid + 1_000

    def _range(self, opened: Opened, number: int) -> Event:
        action = opened.action
        arguments: dict[str, Any] = {"External id": opened.order, "Record function id": 0, "Ev Idx": number}
        if action.category == "python_function":
            arguments = {"Python parent id": None, "Python id": opened.order, "Ev Idx": number}
        if action.sequence is not None:
            arguments["Sequence number"] = action.sequence
        if action.forward_thread is not None:
            arguments["Fwd thread id"] = action.forward_thread
        if action.collective is not None:
            arguments |= _metadata(action.collective)
        if action.inputs is not None:
            arguments |= _recorded(action.inputs)
        return self._host_event(action.name, opened, cat=action.category, arguments=arguments)

    def _call(self, call: Call) -> Event:
        arguments = {"cbid": CALLBACKS[call.name], "correlation": call.correlation}
        return self._host_event(call.name, call, cat="cuda_runtime", arguments=self._external(call) | arguments)

    def _host_event(self, name: str, each: OnHost, *, cat: str, arguments: Mapping[str, Any]) -> Event:
        times = _us(each.begin_ns), _us(each.end_ns - each.begin_ns)
        return complete(name, *times, cat=cat, pid=self._pid, tid=self._tid(each.thread), **arguments)

    def _external(self, call: Call) -> dict[str, Any]:
        """The innermost operator around the call, by its number."""
        operators = [order for order in call.within if self._orders[order].action.category == "cpu_op"]
        return {"External id": operators[-1]} if operators else {}

    def _work(self, ran: Ran) -> Event:
        place = {
            "device": self._device,
            "context": CONTEXT,
            "stream": ran.work.stream,
            "correlation": ran.call.correlation,
        }
        arguments = self._external(ran.call)
        if ran.work.category == "kernel":
            arguments |= {"queued": 0} | place | LAUNCH
        else:
            arguments |= place | {"bytes": 4_096, "memory bandwidth (GB/s)": 1.5}
        if ran.work.group is not None and self._style.described_kernels:
            arguments |= _metadata(ran.work)
        times = _us(ran.start_ns), _us(ran.end_ns - ran.start_ns)
        return complete(
            ran.work.name, *times, cat=ran.work.category, pid=self._device, tid=ran.work.stream, **arguments
        )

    def _on_device(self) -> Iterator[Event]:
        """The annotations once more, around the kernels that they launched on each stream."""
        for opened in self._record.ranges:
            if opened.action.category != "user_annotation":
                continue
            inside = [ran for ran in self._record.works if opened.order in ran.call.within]
            for stream in sorted({ran.work.stream for ran in inside}):
                spans = [(ran.start_ns, ran.end_ns) for ran in inside if ran.work.stream == stream]
                start_ns, end_ns = min(spans)[0], max(end for _, end in spans)
                yield complete(
                    opened.action.name, _us(start_ns), _us(end_ns - start_ns), cat="gpu_user_annotation",
                    pid=self._device, tid=stream, **{"External id": opened.order},
                )  # fmt: skip

    def _flow(self, phase: str, call: Call, *, pid: int, tid: int, at_ns: int) -> dict[str, Any]:
        return {
            "ph": phase, "id": call.correlation, "pid": pid, "tid": tid, "ts": Raw(_us(at_ns)), "cat": "ac2g",
            "name": "ac2g",
        }  # fmt: skip


LAUNCH = {
    "registers per thread": 32,
    "shared memory": 0,
    "blocks per SM": 1.5,
    "warps per SM": 6,
    "grid": [128, 1, 1],
    "block": [128, 1, 1],
    "est. achieved occupancy %": 50,
}


def _us(ns: int) -> str:
    return f"{ns // 1_000}.{ns % 1_000:03d}"


def _device(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": "NVIDIA H100 80GB HBM3",
        "totalGlobalMem": 85_018_279_936,
        "computeMajor": 9,
        "computeMinor": 0,
        "maxThreadsPerBlock": 1_024,
        "warpSize": 32,
        "numSms": 132,
    }


def _configured(group: Group) -> dict[str, Any]:
    return {
        "pg_name": group.name,
        "pg_desc": group.description,
        "backend_config": "cuda:nccl",
        "pg_size": len(group.ranks),
        "ranks": list(group.ranks),
    }


def _recorded(inputs: Inputs) -> dict[str, Any]:
    return {
        "Concrete Inputs": list(inputs.values),
        "Input type": list(inputs.types),
        "Input Strides": list(map(list, inputs.strides)),
        "Input Dims": list(map(list, inputs.dims)),
    }


def _metadata(work: Work) -> dict[str, Any]:
    assert work.group is not None, f"{work.name} has no group"
    return {
        "Collective name": work.operation,
        "In msg nelems": 1_024,
        "Out msg nelems": 1_024,
        "Group size": len(work.group.ranks),
        "dtype": "BFloat16",
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": work.group.name,
        "Process Group Description": work.group.description,
        "Process Group Ranks": str(list(work.group.ranks)),
    }
