"""Files by which what is served is found, and that they go."""

import json
import os
import socket
import subprocess
from pathlib import Path

from traincope.live.discovery import Note, announcement, sweep, target


def read(path: Path) -> object:
    return json.loads(path.read_text())


def test_a_target_file_is_what_file_sd_reads(tmp_path: Path) -> None:
    note = target(tmp_path, job="traincope-0-abc-000", host="node 3", where="http://127.0.0.1:9401/metrics")
    note.write()
    labels = {"__meta_traincope_pid": str(os.getpid()), "__meta_traincope_host": "node 3", "__scheme__": "http"}
    assert read(tmp_path / "traincope-0-abc-000-node_3.json") == [{"targets": ["127.0.0.1:9401"], "labels": labels}]
    note.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_is_served_on_all_interfaces_is_found_by_the_hosts_name(tmp_path: Path) -> None:
    for where in ("https://0.0.0.0:9400/metrics", "https://[::]:9400/metrics"):
        note = target(tmp_path, job="job", host="node-3", where=where)
        note.write()
        (entry,) = json.loads(note.path.read_text())
        assert entry["targets"] == [f"{socket.gethostname()}:9400"]
        assert entry["labels"]["__scheme__"] == "https"
    assert target(tmp_path, job="job", host="node-3", where="http://[::1]:9400/metrics").path == note.path


def test_nodes_that_share_a_directory_have_a_file_each(tmp_path: Path) -> None:
    where = "http://0.0.0.0:9400/metrics"
    assert len({target(tmp_path, job="job", host=host, where=where).path for host in ("node-3", "node-4")}) == 2


def test_the_run_directory_says_where_whatever_the_host_is_called(tmp_path: Path) -> None:
    note = announcement(tmp_path, host="../node 3", served={"prometheus": "http://127.0.0.1:9400/metrics"})
    note.write()
    assert note.path == tmp_path / "metrics-.._node_3.json"
    assert read(note.path) == {
        "host": "../node 3",
        "pid": os.getpid(),
        "prometheus": "http://127.0.0.1:9400/metrics",
    }


def test_files_of_agents_that_were_killed_are_swept_and_no_others(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    mine, of = f"traincope-{os.getuid()}", "__meta_traincope_"
    for name, pid, host in (
        (f"{mine}-a", dead.pid, "node-3"),
        (f"{mine}-b", os.getpid(), "node-3"),
        (f"{mine}-g", dead.pid, "node-4"),
        ("traincope-elses", dead.pid, "node-3"),
    ):
        labels = {f"{of}pid": str(pid), f"{of}host": host}
        Note(tmp_path / f"{name}.json", [{"targets": [], "labels": labels}]).write()
    for name, text in (("c", "no json"), ("d", "{}"), ("e", "[]"), ("f", '[{"labels": null}]')):
        (tmp_path / f"{mine}-{name}.json").write_text(text)
    sweep(tmp_path, host="node-3")
    kept = {f"{mine}-{name}.json" for name in "bcdefg"} | {"traincope-elses.json"}
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_note_follows_no_link_that_somebody_laid_in_its_way(tmp_path: Path) -> None:
    """The directory of target files may be one that all users write to."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    note = Note(tmp_path / "note.json", {})
    (tmp_path / f".note.json.{os.getpid()}").symlink_to(victim)
    note.path.symlink_to(victim)
    note.write()
    assert victim.read_text() == "precious"
    assert not note.path.is_symlink()
