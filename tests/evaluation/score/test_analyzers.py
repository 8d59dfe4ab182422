"""torch's own analyzer and ours on the same dumps, in the cases in which torch's blames the wrong ranks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluation.score.analyzers import FAILS, Comparison, compared, table
from evaluation.score.cases import Case
from evaluation.score.judging import NOT_KNOWN, RIGHT, WRONG

SIZE = 8
WORLD, STAGES = ("0", "default_pg"), ("7", "stages")
Issued = tuple[tuple[str, str], str, int]
"""Group, operation, elements."""
HABIT: Sequence[Issued] = ((WORLD, "all_reduce", 64),) * 3


def dump(issued: Sequence[Issued], *, complete: int) -> dict[str, Any]:
    """A dump in torch's form, as NCCL's watchdog writes it. The first `complete` entries are complete."""
    counted: dict[str, int] = {}
    entries = []
    for number, (group, operation, elements) in enumerate(issued):
        counted[group[0]] = counted.get(group[0], 0) + 1
        entries.append(
            {
                "record_id": number,
                "pg_id": 0,
                "process_group": list(group),
                "collective_seq_id": counted[group[0]],
                "p2p_seq_id": 0,
                "op_id": counted[group[0]],
                "profiling_name": f"nccl:{operation}",
                "input_sizes": [[elements]],
                "input_dtypes": ["Float"],
                "output_sizes": [[elements]],
                "output_dtypes": ["Float"],
                "state": "completed" if number < complete else "scheduled",
                "retired": number < complete,
                "is_p2p": False,
                "time_created_ns": 1_000 + number,
                "frames": [],
            }
        )
    groups = {"0": list(range(SIZE)), "7": [4, 5, 6, 7]}
    names = dict(map(tuple, (WORLD, STAGES)))
    config = {name: {"name": name, "desc": names[name], "ranks": str(ranks)} for name, ranks in groups.items()}
    return {"groups": groups, "trace": {"version": "2.10", "entries": entries, "pg_config": config}}


def result(tmp_path: Path, fault: str, rank: int, dumps: dict[int, dict[str, Any]]) -> Comparison:
    case = Case(fault=fault, layout="plain", size=SIZE, recording="level 0", rank=rank, step=1)
    return compared(case, dumps, tmp_path / "dumps")


def test_of_eight_ranks_the_first_has_another_size(tmp_path: Path) -> None:
    odd = (*HABIT, (WORLD, "all_reduce", 32))
    usual = (*HABIT, (WORLD, "all_reduce", 64))
    dumps = {rank: dump(usual if rank else odd, complete=3) for rank in range(SIZE)}
    assert result(tmp_path, "wrong_size", 0, dumps) == Comparison(as_written=WRONG, repaired=WRONG, ours=RIGHT)


def test_one_of_eight_ranks_is_missing_and_later_stages_issued_more(tmp_path: Path) -> None:
    """torch aligns all ranks by the number of their records; the recorders of the later stages dropped their first."""
    stage = (STAGES, "all_reduce", 4)
    dumps = {}
    for rank in range(SIZE):
        habit = [*HABIT, *[stage] * 4] if rank >= 4 else list(HABIT)
        issued = habit if rank == 5 else [*habit, (WORLD, "all_reduce", 64)]
        dumps[rank] = dump(issued, complete=len(habit))
    for rank in range(4, SIZE):
        dumps[rank]["trace"]["entries"] = dumps[rank]["trace"]["entries"][1:]
        for entry in dumps[rank]["trace"]["entries"]:
            entry["record_id"] += 3
    found = result(tmp_path, "sleep", 5, dumps)
    assert (found.as_written, found.ours) == (WRONG, RIGHT)


def test_without_the_dump_of_a_dead_host_both_name_no_rank(tmp_path: Path) -> None:
    usual = (*HABIT, (WORLD, "all_reduce", 64))
    dumps = {rank: dump(usual, complete=3) for rank in range(SIZE) if rank != 3}
    assert result(tmp_path, "sigkill", 3, dumps) == Comparison(as_written=NOT_KNOWN, repaired=NOT_KNOWN, ours=NOT_KNOWN)


def test_torch_fails_on_the_dumps_of_gloo_as_it_writes_them(tmp_path: Path) -> None:
    """It names no group in `pg_config`, and its entries do."""
    usual = (*HABIT, (WORLD, "all_reduce", 64))
    dumps = {rank: dump(HABIT if rank == 2 else usual, complete=3) for rank in range(SIZE)}
    for each in dumps.values():
        each["trace"]["pg_config"] = {"": {"name": "", "desc": "", "ranks": str(list(range(SIZE)))}}
    found = result(tmp_path, "sleep", 2, dumps)
    assert found == Comparison(as_written=FAILS, repaired=RIGHT, ours=RIGHT)
    assert table([found]).splitlines()[1].split()[-4:] == ["0", "0", "0", "1"]
