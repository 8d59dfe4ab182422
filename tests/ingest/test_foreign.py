"""Files of other tools: each is refused by its name, and none is taken for a trace without GPUs."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.ingest.writing import complete, kineto
from traincope.errors import DataError
from traincope.ingest import import_traces

MATMUL = {"ph": "X", "name": "MatMul", "pid": 3, "tid": 1, "ts": 1, "dur": 5, "args": {"tf_op": "MatMul"}}
PROCESS = {"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "/job:localhost/replica:0/task:0"}}
FILES: dict[str, tuple[str, bytes]] = {
    "chakra.json": ("an execution trace of Chakra", b'{"schema": "1.1.1-chakra.0.0.4", "nodes": []}'),
    "et.json": ("an execution trace of Chakra", b'{"schema": "1.0.3", "nodes": [{"id": 1, "ctrl_deps": 1}]}'),
    "report.nsys-rep": ("a report of Nsight Systems", b"\0\1"),
    "report.sqlite": ("a database \\(SQLite\\)", b"SQLite format 3\0"),
    "results.json": ("output of rocprof", b'{"rocprofiler-sdk-tool": []}'),
    "inspector.log": ("a log of NCCL's inspector", b'{"metadata": {"inspector_output_format_version": "v4.0"}}'),
    "tensorflow.json": (
        "a trace of TensorFlow's or JAX's profiler",
        json.dumps({"traceEvents": [PROCESS, MATMUL]}).encode(),
    ),
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


def test_a_trace_of_unknown_categories_is_of_another_tool(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(kineto([complete("sys_read", "1", "5", cat="ebpf")]))
    with pytest.raises(DataError, match="no event has a category of torch's profiler, but 'ebpf'"):
        import_traces([tmp_path / "trace.json"], tmp_path / "run")


@pytest.mark.parametrize("category", ["kernel", "cpu_op", "xpu_runtime", "mtia_driver", "gpu_user_annotation"])
def test_one_category_of_torchs_profiler_is_enough(category: str, tmp_path: Path) -> None:
    """Whatever the words in its begin."""
    head: dict[str, Any] = {"traceName": "/data/tensorflow/rocprof/trace.json"}
    events = [complete("x", "1", "5", cat=category), complete("y", "1", "5", cat="ebpf")]
    (tmp_path / "trace.json").write_text(kineto(events, head=head))
    (imported,) = import_traces([tmp_path / "trace.json"], tmp_path / "run")
    assert imported.num_kept == 2
