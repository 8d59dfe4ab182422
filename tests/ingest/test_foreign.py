"""Files of other tools: each is refused by its name, and none is taken for a trace without GPUs."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.ingest.writing import complete, kineto
from traincope.errors import DataError
from traincope.ingest import import_table, import_traces

MATMUL = {"ph": "X", "name": "MatMul", "pid": 3, "tid": 1, "ts": 1, "dur": 5, "args": {"tf_op": "MatMul"}}
PROCESS = {"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "/job:localhost/replica:0/task:0"}}
FILES: dict[str, tuple[str, bytes]] = {
    "chakra.0.et": ("an execution trace of Chakra", b"\x07\n\x050.0.4\x15\x08\x01\x12\x0fCOMM_COLL_NODE1\x18\x07"),
    "observer.json": ("an execution trace of Chakra", b'{"schema": "1.0.1", "nodes": [{"rf_id": 0, "fw_tid": 0}]}'),
    "chakra.json": ("an execution trace of Chakra", b'{"schema": "1.1.1-chakra.0.0.4", "nodes": []}'),
    "et.json": ("an execution trace of Chakra", b'{"schema": "1.0.3", "nodes": [{"id": 1, "ctrl_deps": 1}]}'),
    "report.nsys-rep": ("a report of Nsight Systems", b"\0\1"),
    "report.sqlite": ("a database \\(SQLite\\)", b"SQLite format 3\0"),
    "nsys.json": ("an export of Nsight Systems", b'{"data": []}\n{"Type": 48, "CudaEvent": {"startNs": "1"}}'),
    "results.json": ("output of rocprof", b'{"rocprofiler-sdk-tool": []}'),
    "inspector.log": ("a log of NCCL's inspector", b'{"metadata": {"inspector_output_format_version": "v4.0"}}'),
    "tensorflow.json": (
        "a trace of TensorFlow's or JAX's profiler",
        json.dumps({"traceEvents": [PROCESS, MATMUL]}).encode(),
    ),
    "sent.log": ("a log of NCCL's inspector", b'{"header": {"n_ranks": 8}, "p2p_perf": {"p2p": "Send"}}'),
    "plugin.json": (
        "a trace of NCCL's profiler plugin",
        b'[{"name": "Group", "cat": "GROUP", "ph": "b"}, {"name": "AllReduce", "cat": "COLL", "ph": "b"}]',
    ),
    "jax.json": (
        "a trace of TensorFlow's or JAX's profiler",
        b'{"traceEvents": [{"ph": "X", "name": "fusion.1", "ts": 1, "dur": 1, "args": {"hlo_module": "jit_f"}}]}',
    ),
    "tracer.json": (
        "a trace of the Linux kernel",
        b'[{"ph": "X", "name": "read", "ts": 1, "dur": 5}, {"ph": "i", "name": "sched_switch", "ts": 2}]',
    ),
    "snapshot.pt": ("an archive \\(zip\\)", b"PK\x03\x04\0\0archive/data.pkl"),
    "trace.json.zst": ("packed by zstd", b"\x28\xb5\x2f\xfd\x04"),
    "utf16.json": ("text in UTF-16", '{"traceEvents": []}'.encode("utf-16")),
    "memory.html": ("a page", b"<!DOCTYPE html><html></html>"),
    "memory.json": ("a timeline of memory", b"[[1, 2, 3], [[0, 1], [1, 2], [2, 3]]]"),
    "horovod.json": ("a timeline of Horovod", b'[{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "pid": 1}]'),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_tool_is_refused_by_its_name(name: str, packed: bool, tmp_path: Path) -> None:
    what, content = FILES[name]
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(DataError, match=f"{name} is {what}.*, which is not read; import a trace of torch's profiler"):
        import_traces([path], tmp_path / "run")
    assert not (tmp_path / "run").exists()


TABLES = {
    "cuda_gpu_kern_sum.csv": ("an export of Nsight Systems", "Time (%),Total Time (ns),Instances,Avg (ns),Name"),
    "cuda_gpu_trace.csv": ("an export of Nsight Systems", "Start (ns),Duration (ns),CorrId,GrdX,Name"),
    "metrics.csv": ("a table of Nsight Compute", '"ID","Kernel Name","Metric Name","Metric Value"'),
    "results.csv": ("output of rocprof", '"Index","KernelName","gpu-id","queue-id"'),
    "kernel_trace.csv": ("output of rocprof", '"Kind","Agent_Id","Kernel_Name","Start_Timestamp","End_Timestamp"'),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_another_tool_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    what, header = TABLES[name]
    (tmp_path / name).write_text(header + "\n")
    with pytest.raises(DataError, match=f"{name} is {what}, which is not read"):
        import_table(tmp_path / name, tmp_path / "run")


@pytest.mark.parametrize("categories", [("ebpf",), ("CUDA_Runtime", "GPU_Kernel"), ("cuda", "nvtx"), ("Op",)])
def test_a_trace_of_unknown_categories_is_of_another_tool(categories: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(kineto([complete("read", "1", "5", cat=each) for each in categories]))
    named = ", ".join(map(repr, categories))
    with pytest.raises(DataError, match=f"no event has a category of torch's profiler, but {named}|the Linux kernel"):
        import_traces([tmp_path / "trace.json"], tmp_path / "run")


@pytest.mark.parametrize("place", ["begin", "end"])
def test_a_trace_of_ascend_is_refused_although_its_host_events_are_like_torchs(place: str, tmp_path: Path) -> None:
    host = [complete("aten::mm", str(at), "5", cat="cpu_op", number="x" * 100) for at in range(2000)]
    device = {"ph": "M", "name": "process_name", "pid": 9, "tid": 0, "args": {"name": "Ascend Hardware"}}
    listed = [device, *host] if place == "begin" else [*host, device]
    (tmp_path / "trace_view.json").write_text(kineto(listed))
    with pytest.raises(DataError, match=r"trace_view\.json is a trace of Ascend's profiler, which is not read"):
        import_traces([tmp_path / "trace_view.json"], tmp_path / "run")


def test_events_in_two_parts_are_refused_with_the_reason(tmp_path: Path) -> None:
    events = [
        {"ph": phase, "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": at}
        for at, phase in ((1, "B"), (3, "E"))
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    with pytest.raises(DataError, match=r"events in two parts \(ph B and E\)"):
        import_traces([tmp_path / "trace.json"], tmp_path / "run")


@pytest.mark.parametrize("category", ["kernel", "cpu_op", "xpu_runtime", "mtia_driver", "gpu_user_annotation"])
def test_one_category_of_torchs_profiler_is_enough(category: str, tmp_path: Path) -> None:
    """Whatever the words in its begin."""
    head: dict[str, Any] = {"traceName": "/data/tensorflow/rocprof/trace.json"}
    events = [complete("x", "1", "5", cat=category), complete("y", "1", "5", cat="ebpf")]
    (tmp_path / "trace.json").write_text(kineto(events, head=head))
    (imported,) = import_traces([tmp_path / "trace.json"], tmp_path / "run")
    assert imported.num_kept == 2
