"""Copies of runs behind a URL, from fsspec's file system in memory."""

import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from traincope.errors import MissingDependencyError, NotARunError, UsageError
from traincope.store import read_run
from traincope.store.places.fetched import Needs, copies_below, fetch, local_copy
from traincope.store.places.remote import RemoteFiles, check_url, url_of

DEMO = Path(__file__).parents[3] / "sample_runs" / "demo"
URL = "memory://places/demo"


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["fsspec.AbstractFileSystem"]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    files = fsspec.filesystem("memory")
    files.put(str(DEMO), "/places/", recursive=True)
    yield files
    files.rm("/places", recursive=True)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://bucket/run", "s3://bucket/run"),
        ("s3:/bucket/run", "s3://bucket/run"),
        ("file:///tmp/run/", "file:///tmp/run"),
        ("file:/tmp/run", "file:///tmp/run"),
        ("traincope_runs/run", None),
        ("/s3://bucket", None),
        ("C:/run", None),
        ("run:1", None),
    ],
)
def test_a_url_is_recognized_also_as_a_path(text: str, url: str | None) -> None:
    assert url_of(Path(text)) == url


@pytest.mark.parametrize("url", ["ftp://me:word@host/x", "s3://key:word@bucket/x", "https://token@host/x"])
def test_a_url_with_a_secret_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(UsageError) as error:
        check_url(url)
    assert "word" not in str(error.value).replace("a password", "")
    assert "token" not in str(error.value)


@pytest.mark.usefixtures("memory")
def test_a_run_behind_a_url_is_read_like_one_of_this_machine() -> None:
    there, here = read_run(URL), read_run(DEMO)
    assert (there.info, there.missing, there.problems) == (here.info, here.missing, here.problems)
    for one, other in zip(there.ranks, here.ranks, strict=True):
        assert one.thread("main").tobytes() == other.thread("main").tobytes()
    assert read_run("memory://places").info == here.info  # the only run below the URL


def test_only_needed_and_changed_files_are_fetched(memory: "fsspec.AbstractFileSystem") -> None:
    memory.pipe_file("/places/demo/tiles/1/main.column", b"x" * 1000)
    memory.pipe_file("/places/demo/attempt-000/rank-00000/agent.log", b"log")
    first = fetch(RemoteFiles(URL), needs=Needs.RECORDS)
    names = {path.name for path in first.directory.rglob("*")}
    assert names.isdisjoint({"main.column", "agent.log"})
    assert fetch(RemoteFiles(URL), needs=Needs.RECORDS).num_files == 0
    memory.pipe_file("/places/demo/attempt-000/rank-00001/names.jsonl", b'[0, "other"]\n')
    memory.rm_file("/places/demo/attempt-000/rank-00002/names.jsonl")
    again = fetch(RemoteFiles(URL), needs=Needs.RECORDS)
    assert (again.num_files, again.num_bytes) == (1, len(b'[0, "other"]\n'))
    assert not (again.directory / "attempt-000" / "rank-00002" / "names.jsonl").exists()
    assert (again.directory / "run.json").stat().st_mode & 0o077 == 0


@pytest.mark.usefixtures("memory")
def test_a_list_needs_no_records() -> None:
    directory = copies_below("memory://places")
    assert [path.name for path in directory.iterdir()] == ["demo"]
    assert not list(directory.rglob("*.seg"))
    assert len(list(directory.rglob("rank.json"))) == 4


def test_a_name_that_leads_out_of_the_copy_is_refused(memory: "fsspec.AbstractFileSystem") -> None:
    memory.store["/places/demo/../../evil"] = memory.store["/places/demo/run.json"]
    try:
        with pytest.raises(NotARunError, match="not one of a run"):
            local_copy(URL)
    finally:
        del memory.store["/places/demo/../../evil"]


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("memory://nothing-there", NotARunError, "has no run.json"),
        ("nosuch://x/y", UsageError, "Protocol not known"),
        ("gs://bucket/run", MissingDependencyError, "pip install"),
    ],
)
def test_errors_say_what_and_what_to_do(url: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        local_copy(url)


def test_a_path_of_this_machine_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert local_copy(tmp_path) == tmp_path
    os.makedirs(tmp_path / "s3:" / "odd")
    monkeypatch.chdir(tmp_path)
    assert local_copy(Path("s3:/odd")) == Path("s3:/odd")
