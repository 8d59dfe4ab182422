"""Only a whole library is loaded that no other user can change, wherever it comes from."""

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import traincope
from tests.native.library import needs_library, using
from traincope.doctor.finding import State
from traincope.doctor.native import examine_native
from traincope.errors import MissingDependencyError
from traincope.events import Kind
from traincope.native import build, installed
from traincope.native.cached import CACHE_VARIABLE, VARIABLE, check
from traincope.native.installed import find_library, library_name, publish
from traincope.record.instrumentation.dispatcher import KEY
from traincope.record.instrumentation.torch_private import live_kernel
from traincope.record.segments import native_place
from traincope.report.run_list import list_runs
from traincope.store import read_run
from traincope.timeline.observation import Recorder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache. Tests that need the built library read the user's before."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv(VARIABLE, "require")
    return tmp_path / "cache" / "traincope" / "native"


@pytest.fixture
def published(tmp_path: Path) -> Path:
    compiled = tmp_path / "compiled.so"
    compiled.write_bytes(os.urandom(10_000))
    return publish(compiled)


def test_a_library_has_the_name_of_all_that_it_depends_on(cache: Path, published: Path) -> None:
    assert published == cache / library_name()
    assert str(torch.__version__) in published.name
    assert find_library().path == published


def test_without_a_library_the_reason_names_the_remedy() -> None:
    assert find_library().path is None
    assert "traincope doctor --build-native" in find_library().why
    assert examine_native().advice == "traincope doctor --build-native"


@pytest.mark.parametrize("cut", [1, 100, 9_000])
def test_a_cut_library_is_not_used(published: Path, cut: int) -> None:
    os.truncate(published, published.stat().st_size - cut)
    assert find_library().why == f"{published} is not used: it is damaged"


def test_a_changed_library_is_not_used(published: Path) -> None:
    content = bytearray(published.read_bytes())
    content[5_000] ^= 1
    published.write_bytes(content)
    assert find_library().why == f"{published} is not used: it is damaged"


def test_a_library_that_others_can_write_to_is_not_used(published: Path) -> None:
    published.chmod(0o720)
    assert find_library().path is None
    published.chmod(0o700)
    published.parent.chmod(0o777)
    assert find_library().path is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")
def test_a_library_of_another_user_is_not_used(published: Path) -> None:
    os.chown(published, 12_345, -1)
    assert find_library().path is None


def test_a_link_to_a_library_is_not_used(published: Path, tmp_path: Path) -> None:
    published.rename(tmp_path / "elsewhere.so")
    published.symlink_to(tmp_path / "elsewhere.so")
    assert find_library().path is None


def test_many_at_once_leave_one_whole_library(tmp_path: Path, cache: Path) -> None:
    compiled = [tmp_path / f"{number}.so" for number in range(8)]
    for number, path in enumerate(compiled):
        path.write_bytes(bytes([number]) * 1_000_000)
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(publish, compiled)) == {cache / library_name()}
    check(cache / library_name())
    assert [path.name for path in cache.iterdir()] == [library_name()]


def test_without_a_compiler_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.COMPILER_VARIABLE, "no-such-compiler")
    with pytest.raises(MissingDependencyError, match="no C\\+\\+ compiler"):
        build.compile_library(tmp_path / "library.so")


def test_another_build_of_the_same_release_needs_another_library(
    published: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A torch whose library has another size, or none in its package."""
    (tmp_path / "lib").mkdir()
    for name in installed.TORCH_LIBRARIES:
        (tmp_path / "lib" / name).write_bytes(b"another")
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    installed.library_name.cache_clear()
    assert library_name() != published.name
    (tmp_path / "lib" / installed.TORCH_LIBRARIES[0]).unlink()
    assert find_library().why == "this torch has its libraries in another place than its package"
    installed.library_name.cache_clear()


def test_functions_of_python_keep_their_types_for_every_other_library() -> None:
    """ctypes caches attributes of `pythonapi`, so types set there would hold in the whole process."""
    assert native_place.NativePlace is not None
    assert (ctypes.pythonapi.Py_IncRef.argtypes, ctypes.pythonapi.Py_DecRef.argtypes) == (None, None)


@pytest.mark.usefixtures("published")
def test_with_a_library_that_cannot_be_loaded_the_python_hooks_record(tmp_path: Path) -> None:
    """It is whole, and no library."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with traincope.run(tmp_path / "run", agent=False):
        dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    (rank,) = read_run(tmp_path / "run").ranks
    assert "cannot be loaded" in rank.info.probes["native"]
    assert rank.info.probes["collectives"] == "on"
    assert (rank.thread("main")["kind"] == Kind.COLLECTIVE).sum() == 1


@pytest.mark.parametrize(
    ("value", "why", "is_logged"),
    [
        ("", "it is not built for this torch (traincope doctor --build-native)", False),
        ("auto", "it is not built for this torch (traincope doctor --build-native)", False),
        ("off", "TRAINCOPE_NATIVE=off", False),
        ("require", "it is not built for this torch (traincope doctor --build-native)", True),
    ],
)
def test_without_a_library_the_python_hooks_record(
    value: str,
    why: str,
    is_logged: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with traincope.run(tmp_path / "run", agent=False):
        dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    (rank,) = read_run(tmp_path / "run").ranks
    assert (rank.thread("main")["kind"] == Kind.COLLECTIVE).sum() == 1
    assert rank.info.probes["native"] == f"off: {why}"
    assert ("native recorder" in caplog.text) == is_logged
    assert examine_native().state is (State.BAD if is_logged else State.OK)
    assert why in examine_native().fact
    (listed,) = list_runs(tmp_path)
    assert (listed.recorder, listed.why_python) == (Recorder.PYTHON, why)


@needs_library
@pytest.mark.parametrize("value", ["", "auto", "require"])
def test_a_library_that_is_built_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setenv(VARIABLE, value)
    assert examine_native().fact == f"on: {find_library().path}"
    with traincope.run(tmp_path / "run", agent=False):
        pass
    (rank,) = read_run(tmp_path / "run").ranks
    assert rank.info.probes["native"] == "on"
    (listed,) = list_runs(tmp_path)
    assert (listed.recorder, listed.why_python) == (Recorder.NATIVE, None)


@needs_library
def test_the_operators_are_as_before_after_each_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE_VARIABLE)
    operators = ("c10d::allreduce_", "c10d::send", "_c10d_functional::wait_tensor")
    before = [live_kernel(operator, KEY) for operator in operators]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for number in range(3):
        with using(native=True), traincope.run(tmp_path / str(number), agent=False):
            assert [live_kernel(operator, KEY) for operator in operators] != before
            dist.all_reduce(torch.ones(1))
        assert [live_kernel(operator, KEY) for operator in operators] == before
        (rank,) = read_run(tmp_path / str(number)).ranks
        assert rank.info.probes["native"] == "on"
        assert (rank.thread("main")["kind"] == Kind.COLLECTIVE).sum() == 1
    dist.destroy_process_group()
