"""`traincope hang` with dumps of torch's flight recorder: real ones of gloo, and others in NCCL's form."""

import gzip
import os
import pickle
import time
from collections.abc import Callable
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
NONE: dict[str, list[int]] = {}
DUMPS = Path(__file__).parents[3] / "shared" / "dumps"


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


def entry(
    count: int,
    operation: str = "all_reduce",
    *,
    size: int = 8,
    complete: bool = True,
    group: tuple[str, str] = ("0", "default_pg"),
) -> dict[str, Any]:
    return {
        "process_group": group,
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


def dump(folder: Path, rank: int, last: list[dict[str, Any]], *, of: int, groups: dict[str, list[int]] = NONE) -> Path:
    """Three collectives that all ranks joined, and then `last`."""
    members = {"0": list(range(of)), **groups}
    content = {
        "version": "2.10",
        "pg_config": {name: {"name": name, "desc": name, "ranks": str(ranks)} for name, ranks in members.items()},
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


@pytest.mark.parametrize(
    ("name", "groups", "rank"),
    [
        ("rank_1_of_4", {}, 1),
        ("nccl_trace_rank_1.host-3", {}, 1),
        ("dump_1_20251128", {}, 1),
        ("node7_dump", {"a": [0, 1], "b": [1, 3]}, 1),
        ("dump", {"a": [0, 1], "b": [1, 3]}, 1),
    ],
)
def test_the_rank_is_named_or_is_the_one_that_all_groups_have(
    tmp_path: Path, name: str, groups: dict[str, list[int]], rank: int
) -> None:
    path = dump(tmp_path, 0, [], of=4, groups=groups).rename(tmp_path / name)
    assert holds_dumps(path)
    assert [each.rank for each in read_dumps([path]).ranks] == [rank]


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
    with pytest.raises(DataError, match="are of the same rank 0; give one dump per rank"):
        read_dumps([first, again])
    damaged = tmp_path / "rank_1"
    damaged.write_bytes(first.read_bytes()[:50])
    with pytest.raises(DataError, match="rank_1 is not a dump of torch's flight recorder, or is damaged"):
        read_dumps([damaged])
    first.rename(tmp_path / "rank")
    with pytest.raises(DataError, match="rank does not show its rank, so it is left out; name it rank_N"):
        read_dumps([tmp_path / "rank"])
    first = dump(tmp_path, 0, [], of=2)
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


def test_files_that_are_no_dumps_are_named_and_left_out(tmp_path: Path) -> None:
    for rank in range(4):
        dump(tmp_path, rank, [] if rank == 2 else [entry(4, complete=False)], of=4)
    (tmp_path / "watchdog.log").write_text("x")
    (tmp_path / "nccl_trace_rank_4").write_bytes((tmp_path / "nccl_trace_rank_0").read_bytes()[:200])
    ended = run("hang", str(tmp_path))
    assert "hang  rank 2; confidence medium" in ended.stdout
    text = " ".join(ended.stdout.split())
    for name in ("watchdog.log", "nccl_trace_rank_4"):
        assert f"{tmp_path / name} is not a dump of torch's flight recorder, or is damaged, so it is left out" in text


def test_the_dump_of_the_culprit_alone_says_whose_are_missing(tmp_path: Path) -> None:
    text = " ".join(run("hang", str(dump(tmp_path, 2, [], of=4))).stdout.split())
    assert "the evidence does not show that a rank hangs" in text
    assert "no dump of ranks 0, 1, 3 of the 4 in the groups" in text


def test_groups_have_their_own_names_and_stops_the_length_of_their_time_out(tmp_path: Path) -> None:
    """Rank 2 is missing in a collective of rank 0 at 104 s and of rank 1 1 us later. Both time out after 180 s."""
    for rank in range(3):
        last = entry(4, group=("73", "EXPERT_MODEL_PARALLEL_GROUP"), complete=False) | {"timeout_ms": 180_000}
        last["time_created_ns"] += 1_000 * rank
        first = [entry(3, group=("73", "EXPERT_MODEL_PARALLEL_GROUP"))]
        path = dump(tmp_path, rank, first if rank == 2 else [*first, last], of=3, groups={"73": [0, 1, 2]})
        content = pickle.loads(path.read_bytes())
        content["entries"] = [each | {"timeout_ms": 180_000} for each in content["entries"]]
        path.write_bytes(pickle.dumps(content, protocol=2))
    hang = only(tmp_path)
    assert (hang.culprits, hang.axis) == ((2,), "EXPERT_MODEL_PARALLEL_GROUP")
    assert hang.lasted_ns == 180 * S - 1_000
    assert "rank 2 entered no collective for 3 min 0 s" in hang.evidence
    assert "if a person asked for them before it, the stop was shorter" in " ".join(read_dumps([tmp_path]).problems)
    for path in tmp_path.iterdir():
        os.utime(path, ns=(written_ns := last["time_created_ns"] + 20 * S, written_ns))
    assert only(tmp_path).lasted_ns == 20 * S + 1_000
    assert read_dumps([tmp_path]).problems == ()


def test_dumps_without_a_time_out_show_no_length(tmp_path: Path) -> None:
    for rank in range(3):
        last = entry(4, complete=False)
        last["time_created_ns"] += 1_000 * rank
        dump(tmp_path, rank, [] if rank == 2 else [last], of=3)
    hang = only(tmp_path)
    assert (hang.culprits, hang.lasted_ns) == ((2,), 0)
    assert hang.evidence.startswith("rank 2 entered no collective; ")


def two_missing(folder: Path, *, in_pairs: bool) -> Hang:
    """Ranks 1 and 2 of 4 do not join the last collective of all; nor that of its own pair each, if `in_pairs`."""
    groups = {"1": [0, 1], "2": [2, 3]}
    for rank in range(4):
        missing, pair = rank in (1, 2), "1" if rank < 2 else "2"
        last = [entry(3, group=(pair, "pair"))]
        if not missing:
            last += [entry(4, group=(pair, "pair"), complete=False)] if in_pairs else []
            last += [entry(4, complete=False)]
        dump(folder, rank, last, of=4, groups=groups)
    return only(folder)


OLD = ("process_group", "collective_seq_id", "is_p2p")
"""Keys that entries before torch 2.4 lack."""


def old(content: dict[str, Any]) -> dict[str, Any]:
    entries = [
        {"pg_id": 0, "seq_id": each["collective_seq_id"], **{name: each[name] for name in each if name not in OLD}}
        for each in content["entries"]
    ]
    return {"version": "1.5", "entries": entries}


def of_everyone(content: dict[str, Any]) -> dict[str, Any]:
    return {**content, "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ""}}}


def without_times(content: dict[str, Any]) -> dict[str, Any]:
    return {**content, "entries": [{**each, "time_created_ns": None} for each in content["entries"]]}


@pytest.mark.parametrize("form", [old, of_everyone, without_times])
def test_dumps_that_lack_something_are_read(form: Callable[[dict[str, Any]], dict[str, Any]], tmp_path: Path) -> None:
    for rank in range(4):
        path = dump(tmp_path, rank, [] if rank == 2 else [entry(4, complete=False)], of=4)
        path.write_bytes(pickle.dumps(form(pickle.loads(path.read_bytes()))))
    hang = only(tmp_path)
    assert (hang.kind, hang.culprits, hang.victims, hang.lasted_ns) == (HangKind.STUCK, (2,), (0, 1, 3), 0)


def test_dumps_may_be_packed_and_lie_in_folders_of_hosts(tmp_path: Path) -> None:
    for rank in range(4):
        path = dump(tmp_path, rank, [] if rank == 2 else [entry(4, complete=False)], of=4)
        host = tmp_path / f"host{rank // 2}"
        host.mkdir(exist_ok=True)
        (host / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert only(tmp_path).culprits == (2,)


def test_where_everything_is_complete_nothing_hangs(tmp_path: Path) -> None:
    for rank in range(4):
        dump(tmp_path, rank, [], of=4)
    timeline = build_timeline(read_dumps([tmp_path]))
    assert hangs(timeline, Context(timeline).instances, ()) == ()


def test_a_folder_of_damaged_dumps_says_so(tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_bytes(pickle.dumps({"pg_config": {}, "entries": [{"process_group": ("0", "dp")}]}))
    ended = run("hang", str(tmp_path))
    assert "rank_0 is not a dump of torch's flight recorder, or is damaged" in ended.stderr


def test_several_ranks_are_named_if_several_groups_agree_on_each(tmp_path: Path) -> None:
    (tmp_path / "pairs").mkdir()
    hang = two_missing(tmp_path / "pairs", in_pairs=True)
    assert (hang.kind, hang.culprits, hang.victims, hang.confidence) == (HangKind.STUCK, (1, 2), (0, 3), MEDIUM)


def test_several_ranks_are_suspects_if_only_one_group_misses_them(tmp_path: Path) -> None:
    hang = two_missing(tmp_path, in_pairs=False)
    assert (hang.culprits, hang.suspects, hang.confidence) == ((), (1, 2), UNKNOWN)


@pytest.mark.parametrize("num_groups", [1, 2])
def test_a_gpu_that_completes_nothing_more_is_named_with_the_rank_that_stopped_first(
    num_groups: int, tmp_path: Path
) -> None:
    """All members joined collective 4 of the groups, and rank 1 alone did not complete it. It issued 5 too, unlike rank
    2. One group alone may be a moment late.
    """
    names = [str(number) for number in range(1, num_groups + 1)]
    groups = {name: [0, 1, 2] for name in names}
    for rank in range(3):
        mine = [(name, f"group of {name}") for name in names]
        last = [entry(4, group=group, complete=rank != 1 and not (rank == 2 and num_groups == 2)) for group in mine]
        last += [] if rank == 2 else [entry(5, group=group, complete=False) for group in mine]
        dump(tmp_path, rank, last, of=3, groups=groups)
    hang = only(tmp_path)
    assert hang.culprits == ((1, 2) if num_groups == 2 else (2,))
    assert ("so their GPUs stand still" in hang.evidence) == (num_groups == 2)


def test_import_of_a_dump_points_to_the_command_that_reads_it(tmp_path: Path) -> None:
    dump(tmp_path, 0, [], of=2)
    for path in (tmp_path, tmp_path / "nccl_trace_rank_0"):
        ended = run("import", str(path), "-o", str(tmp_path / "run"))
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
        assert f"traincope hang {path}" in ended.stderr


@pytest.mark.skipif(not DUMPS.is_dir(), reason=f"the public dumps are not in {DUMPS}")
@pytest.mark.parametrize(("name", "ranks"), [("gpu_error_1st", (12, 14)), ("gpu_error_2nd", (9, 14))])
def test_in_public_dumps_the_injected_ranks_are_named(name: str, ranks: tuple[int, ...]) -> None:
    """16 ranks with tensor, pipeline and expert parallelism; their GPUs failed by injection. The time-out is 3 min."""
    hang = only(DUMPS / name)
    assert (hang.culprits, hang.confidence, hang.axis) == (ranks, MEDIUM, "EXPERT_MODEL_PARALLEL_GROUP")
    assert round((hang.lasted_ns or 0) / S) == 180
