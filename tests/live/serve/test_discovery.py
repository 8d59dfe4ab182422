"""Target files and notes: their content and their removal."""

import json
import os
import socket
import stat
import subprocess
from pathlib import Path

from traincope.live.serve.discovery import Note, announcement, remove_stale, target


def read(path: Path) -> object:
    return json.loads(path.read_text())


def test_a_target_file_has_the_format_of_file_sd(tmp_path: Path) -> None:
    note = target(tmp_path, job="traincope-0-abc-000", host="node 3", where="http://127.0.0.1:9401/metrics")
    note.write()
    labels = {"__meta_traincope_pid": str(os.getpid()), "__meta_traincope_host": "node 3", "__scheme__": "http"}
    assert read(tmp_path / "traincope-0-abc-000-node_3.json") == [{"targets": ["127.0.0.1:9401"], "labels": labels}]
    note.remove()
    assert list(tmp_path.iterdir()) == []


def test_all_users_may_read_a_target_file_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        note = target(tmp_path, job="job", host="node-3", where="http://127.0.0.1:9401/metrics")
        note.write()
    finally:
        os.umask(before)
    assert stat.S_IMODE(note.path.stat().st_mode) == 0o644


def test_a_server_on_all_interfaces_is_listed_by_host_name(tmp_path: Path) -> None:
    for where in ("https://0.0.0.0:9400/metrics", "https://[::]:9400/metrics"):
        note = target(tmp_path, job="job", host="node-3", where=where)
        note.write()
        (entry,) = json.loads(note.path.read_text())
        assert entry["targets"] == [f"{socket.gethostname()}:9400"]
        assert entry["labels"]["__scheme__"] == "https"
    assert target(tmp_path, job="job", host="node-3", where="http://[::1]:9400/metrics").path == note.path


def test_nodes_that_share_a_directory_have_separate_files(tmp_path: Path) -> None:
    where = "http://0.0.0.0:9400/metrics"
    assert len({target(tmp_path, job="job", host=host, where=where).path for host in ("node-3", "node-4")}) == 2


def test_the_note_has_the_url_for_any_host_name(tmp_path: Path) -> None:
    note = announcement(tmp_path, host="../node 3", served={"prometheus": "http://127.0.0.1:9400/metrics"})
    note.write()
    assert note.path == tmp_path / "metrics-.._node_3.json"
    assert read(note.path) == {
        "host": "../node 3",
        "pid": os.getpid(),
        "prometheus": "http://127.0.0.1:9400/metrics",
    }


def test_only_files_of_killed_agents_are_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    own_prefix, meta = f"traincope-{os.getuid()}", "__meta_traincope_"
    for name, pid, host in (
        (f"{own_prefix}-a", dead.pid, "node-3"),
        (f"{own_prefix}-b", os.getpid(), "node-3"),
        (f"{own_prefix}-g", dead.pid, "node-4"),
        ("traincope-elses", dead.pid, "node-3"),
    ):
        labels = {f"{meta}pid": str(pid), f"{meta}host": host}
        Note(tmp_path / f"{name}.json", [{"targets": [], "labels": labels}]).write()
    for name, text in (("c", "no json"), ("d", "{}"), ("e", "[]"), ("f", '[{"labels": null}]')):
        (tmp_path / f"{own_prefix}-{name}.json").write_text(text)
    remove_stale(tmp_path, host="node-3")
    kept = {f"{own_prefix}-{name}.json" for name in "bcdefg"} | {"traincope-elses.json"}
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_note_does_not_follow_symlinks(tmp_path: Path) -> None:
    """All users may have write access to the directory of target files."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    note = Note(tmp_path / "note.json", {})
    (tmp_path / f".note.json.{os.getpid()}").symlink_to(victim)
    note.path.symlink_to(victim)
    note.write()
    assert victim.read_text() == "precious"
    assert not note.path.is_symlink()
