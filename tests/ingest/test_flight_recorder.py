"""`traincope hang` with dumps of torch's flight recorder: real ones of gloo, and others in NCCL's form."""

import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.cli.test_commands import run
from tests.distributed.ranks.pool import Pool
from traincope.analysis.confidence import MEDIUM, UNKNOWN
from traincope.analysis.context import Context
from traincope.analysis.faults.hangs.hang import Hang, HangKind
from traincope.analysis.faults.hangs.hangs import hangs
from traincope.errors import DataError
from traincope.ingest import holds_dumps, read_dumps
from traincope.timeline import build_timeline

S = 1_000_000_000


def leave_one_out(folder: str) -> None:
    """Rank 1 joins the last collective only after both ranks have dumped."""
    rank = dist.get_rank()
    work = None if rank == 1 else dist.all_reduce(torch.ones(8), async_op=True)
    Path(folder, f"trace_rank_{rank}").write_bytes(torch._C._distributed_c10d._dump_fr_trace())
    while len(list(Path(folder).iterdir())) < 2:
        time.sleep(0.01)
    work = work or dist.all_reduce(torch.ones(8), async_op=True)
    assert work is not None
    work.wait()


def test_real_dumps_of_gloo_name_the_rank_that_did_not_join(two_ranks: Pool, tmp_path: Path) -> None:
    two_ranks.run(leave_one_out, str(tmp_path))
    ended = run("hang", str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert "hang  rank 1; confidence medium" in ended.stdout
    assert "rank 1 entered no collective; rank 0 waited for it in all_reduce on" in ended.stdout


def entry(count: int, operation: str = "all_reduce", *, size: int = 8, complete: bool = True) -> dict[str, Any]:
    return {
        "process_group": ("0", "default_pg"),
        "collective_seq_id": count,
        "profiling_name": f"nccl:{operation}",
        "input_dtypes": ["Float"],
        "input_sizes": [[size]],
        "state": "completed" if complete else "started",
        "retired": complete,
        "time_created_ns": (100 + count) * S,
        "time_discovered_started_ns": None,
        "is_p2p": False,
    }


def dump(folder: Path, rank: int, last: list[dict[str, Any]], *, of: int) -> Path:
    """Three collectives that all ranks joined, and then `last`."""
    content = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(of)))}},
        "pg_status": {},
        "entries": [*(entry(count) for count in (1, 2, 3)), *last],
    }
    path = folder / f"nccl_trace_rank_{rank}"
    path.write_bytes(pickle.dumps(content, protocol=2))
    return path


def only(folder: Path) -> Hang:
    timeline = build_timeline(read_dumps([folder]))
    (hang,) = hangs(timeline, Context(timeline).instances, ())
    return hang


def test_in_dumps_of_nccl_the_missing_rank_is_named_with_medium_confidence(tmp_path: Path) -> None:
    for rank in range(4):
        dump(tmp_path, rank, [] if rank == 2 else [entry(4, complete=False)], of=4)
    hang = only(tmp_path)
    assert (hang.kind, hang.culprits, hang.victims) == (HangKind.STUCK, (2,), (0, 1, 3))
    assert (hang.collective, hang.step, hang.lasted_ns, hang.confidence) == ("all_reduce", None, 0, MEDIUM)


def test_a_collective_of_another_size_is_a_mismatch(tmp_path: Path) -> None:
    for rank in range(4):
        dump(tmp_path, rank, [entry(4, size=9 if rank == 0 else 8, complete=False)], of=4)
    hang = only(tmp_path)
    assert (hang.kind, hang.culprits, hang.confidence) == (HangKind.MISMATCH, (0,), MEDIUM)
    assert hang.evidence == (
        "collective 4 on world: ranks 1-3 issued all_reduce of 32 bytes, rank 0 issued all_reduce of 36 bytes; "
        "3 of 4 ranks agree"
    )


def test_a_rank_without_a_dump_is_a_suspect_only(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        dump(tmp_path, rank, [entry(4, complete=False)], of=4)
    hang = only(tmp_path)
    assert (hang.culprits, hang.suspects, hang.confidence) == ((), (3,), UNKNOWN)
    assert "it left no records" in hang.evidence


def test_what_all_ranks_joined_names_no_rank(tmp_path: Path) -> None:
    for rank in range(3):
        dump(tmp_path, rank, [entry(4, complete=False)], of=3)
    assert only(tmp_path).culprits == ()


class Call:
    """A pickle that runs a command when it is loaded."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/traincope-was-here",)


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    first = dump(tmp_path, 0, [], of=2)
    (tmp_path / "other").mkdir()
    again = dump(tmp_path / "other", 0, [], of=2)
    with pytest.raises(DataError, match="are of the same rank; give one dump per rank"):
        read_dumps([first, again])
    damaged = tmp_path / "rank_1"
    damaged.write_bytes(first.read_bytes()[:50])
    with pytest.raises(DataError, match="rank_1 is no dump of torch's flight recorder, or is damaged"):
        read_dumps([tmp_path])
    damaged.rename(tmp_path / "rank")
    with pytest.raises(DataError, match="rank contains no rank; name each dump with its rank"):
        read_dumps([tmp_path])
    ended = run("hang", str(first), "--stacks")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "leave it out for dumps" in ended.stderr


def test_a_pickle_that_calls_something_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank_0"
    path.write_bytes(pickle.dumps({"entries": [], "version": Call()}, protocol=2))
    assert not holds_dumps(tmp_path)
    with pytest.raises(DataError):
        read_dumps([path])
    assert not Path("/tmp/traincope-was-here").exists()
