"""The place on a node, with directories of this machine in the roles of /dev/shm and of $TMPDIR."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from traincope.store import lock
from traincope.store.places import node_local
from traincope.store.places.node_local import (
    Local,
    local_place,
    local_runs,
    named_run,
    recorded_at,
    remove_local,
    thread_budget,
)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node's shared memory."""
    memory = tmp_path / "memory"
    memory.mkdir()
    for module in (lock, node_local):
        monkeypatch.setattr(module, "SHARED_MEMORY", memory)
    return memory


def place(named: Path, **environment: str) -> Path:
    local = local_place(named, local=Local.ON, environment=environment)
    assert local is not None
    assert local.named == named
    return local.directory


def test_a_local_directory_is_used_as_it_is(node: Path, tmp_path: Path) -> None:
    assert local_place(tmp_path / "run", local=Local.AUTO, environment={}) is None
    assert local_place(tmp_path / "run", local=Local.OFF, environment={}) is None
    assert list(node.iterdir()) == []


@pytest.mark.usefixtures("node")
def test_ranks_with_different_tmpdirs_agree(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    first = place(tmp_path / "run", TMPDIR=str(tmp_path / "first"))
    assert first.is_relative_to(tmp_path / "first")
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    assert place(tmp_path / "run", TMPDIR=str(tmp_path / "second")) == first
    assert place(tmp_path / "other", TMPDIR=str(tmp_path / "second")).is_relative_to(tmp_path / "second")


def test_without_tmpdir_the_nodes_memory_is_used(node: Path, tmp_path: Path) -> None:
    assert place(tmp_path / "run").is_relative_to(node)


def test_a_place_that_others_may_write_to_is_not_used(node: Path, tmp_path: Path) -> None:
    base = tmp_path / "disk" / lock.node_directory().name
    base.mkdir(parents=True)
    base.chmod(0o777)
    assert place(tmp_path / "run", TMPDIR=str(tmp_path / "disk")).is_relative_to(node)


def test_a_place_that_others_have_made_again_is_not_used(node: Path, tmp_path: Path) -> None:
    """A cleaner of /tmp has removed the place that the pointer names, and another user took its name."""
    (tmp_path / "disk").mkdir()
    first = place(tmp_path / "run", TMPDIR=str(tmp_path / "disk"))
    shutil.rmtree(first.parent)
    first.parent.mkdir()
    first.parent.chmod(0o777)
    second = place(tmp_path / "run", TMPDIR=str(tmp_path / "disk"))
    assert second.is_relative_to(node)
    assert place(tmp_path / "run") == second
    second.rmdir()
    second.symlink_to(tmp_path)
    assert local_place(tmp_path / "run", local=Local.ON, environment={}) is None


@pytest.mark.usefixtures("node")
def test_the_records_are_found_by_the_name_of_the_run(tmp_path: Path) -> None:
    run, root = tmp_path / "run", tmp_path / "runs"
    of_run, of_root = place(run), place(root)
    (of_root / "one" / "attempt-000").mkdir(parents=True)
    (of_root / "one" / "run.json").write_text("{}")
    (of_run / "run.json").write_text("{}")
    assert recorded_at(run) == of_run
    assert recorded_at(root / "one") == of_root / "one"
    assert recorded_at(tmp_path / "elsewhere") == tmp_path / "elsewhere"
    assert {each.named: each.directory for each in local_runs()} == {run: of_run, root / "one": of_root / "one"}
    assert [named_run(each) for each in (of_run, of_root / "one", run)] == [run, root / "one", None]


@pytest.mark.usefixtures("node")
def test_only_the_attempt_that_was_shipped_is_removed(tmp_path: Path) -> None:
    run = place(tmp_path / "run")
    (run / ".removed-0" / "rank-00000").mkdir(parents=True)  # of an agent that was killed
    for attempt in (0, 1):
        (run / f"attempt-{attempt:03d}" / "rank-00000").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    remove_local(run, attempt=0)
    assert sorted(path.name for path in run.iterdir()) == ["attempt-001", "run.json"]
    remove_local(run, attempt=1)
    assert not run.exists()
    assert place(tmp_path / "run") == run  # the next launch records in the same place


def test_all_threads_together_take_a_part_of_the_free_space(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    free = status.f_bavail * status.f_frsize
    budget = thread_budget(tmp_path, disk_budget_bytes=1 << 60, ranks=8)
    assert budget * 8 * 4 <= free
    assert thread_budget(tmp_path, disk_budget_bytes=1000, ranks=8) == 1000
