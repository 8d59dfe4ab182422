"""Records of new process groups, in a group of this process alone."""

from pathlib import Path

import pytest
import torch.distributed as dist

import traincope
from traincope.events import NEW_GROUP, Flag, Kind
from traincope.record.instrumentation.torch_private import num_named_groups
from traincope.store import read_run


def make() -> object:
    return dist.new_group([0])


def recorded(run: Path) -> list[tuple[str, int, bool]]:
    """Name, number and failure of each span."""
    (rank,) = read_run(run).ranks
    main = rank.thread("main")
    spans = main[main["kind"] == Kind.SPAN]
    assert (spans["end_ns"] >= spans["start_ns"]).all()
    return [
        (rank.names[span["name"]], int(span["sequence"]), bool(span["flags"] & Flag.RAISED))
        for span in spans
        if rank.names[span["name"]].startswith(NEW_GROUP)
    ]


def test_each_group_has_its_line_and_the_number_by_which_torch_names_it(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        first = num_named_groups()
        with traincope.run(tmp_path / "run", agent=False):
            groups = [make(), make()]
            dist.new_group([0], use_local_synchronization=True)
            with pytest.raises(ValueError, match="out of range"):
                dist.new_group([1])
        assert [group.group_name for group in groups] == [str(first), str(first + 1)]  # type: ignore[attr-defined]
    finally:
        dist.destroy_process_group()
    line = make.__code__.co_firstlineno + 1
    in_make = f"new_group at test_new_groups.py:{line} (make)"
    spans = recorded(tmp_path / "run")
    assert spans[:2] == [(in_make, first, False), (in_make, first + 1, False)]
    assert [(number, failed) for _, number, failed in spans[2:]] == [(first + 2, True)]
