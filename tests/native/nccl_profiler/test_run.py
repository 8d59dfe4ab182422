"""A run that asks for the plugin: what NCCL finds, what the probe, `doctor` and the table say, what is left alone."""

import os
import re
from pathlib import Path

import pytest

import traincope
from tests.native.nccl_profiler.driver import Communicator, Nccl, needs_plugin, wanted
from tests.native.nccl_profiler.test_records import all_reduce
from traincope.doctor.finding import State
from traincope.doctor.native import examine_plugin
from traincope.native.cached import CACHE_VARIABLE
from traincope.native.nccl import NCCL_VARIABLE, VARIABLE, find_plugin, load_plugin
from traincope.record.gpu.nccl import NOTHING, other_plugin
from traincope.store import read_run
from traincope.tables.query import run_query, table_of
from traincope.tables.sources import Sources

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "nccl-plugin.md"
asked = pytest.mark.usefixtures(wanted.__name__)


def probe(run: Path) -> str | None:
    (rank,) = read_run(run).ranks
    return rank.info.probes.get("nccl_plugin")


@asked
@needs_plugin
def test_nccl_finds_the_plugin_during_the_run_only(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run", agent=False):
        assert os.environ[NCCL_VARIABLE] == str(find_plugin().path)
        nccl = Nccl(6)
        communicator = Communicator(nccl=nccl, hash=1, num_ranks=2, rank=0)
        communicator.enqueue(all_reduce(0, (100, 200)))
    assert NCCL_VARIABLE not in os.environ
    assert probe(tmp_path / "run") == "on"
    communicator.start(after := all_reduce(1, (100, 200)), 3, 3)
    assert after.handle is None


@asked
@needs_plugin
def test_a_communicator_of_an_earlier_run_is_recorded_in_the_next_one(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "first", agent=False):
        communicator = Communicator(nccl=Nccl(6), hash=0xE0, num_ranks=2, rank=1)
    with traincope.run(tmp_path / "second", agent=False):
        communicator.enqueue(all_reduce(4, (100, 200)))
    (row,) = table_of([Sources.at(tmp_path / "second", name="run")], "nccl").to_pylist()
    assert (row["communicator"], row["communicator_size"], row["sequence"]) == ("00000000000000e0", 2, 4)
    assert [probe(tmp_path / name) for name in ("first", "second")] == ["on", "on"]


@asked
@needs_plugin
def test_a_run_in_which_nccl_loads_nothing_says_so(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run", agent=False):
        pass
    assert probe(tmp_path / "run") == NOTHING


@needs_plugin
@pytest.mark.parametrize("value", ["", "off", "yes"])
def test_without_being_asked_nothing_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(VARIABLE, value)
    monkeypatch.delenv(NCCL_VARIABLE, raising=False)
    with traincope.run(tmp_path / "run", agent=False):
        assert NCCL_VARIABLE not in os.environ
    assert probe(tmp_path / "run") is None
    assert examine_plugin().fact == "off: TRAINCOPE_NCCL_PLUGIN is not `on`"


@asked
@needs_plugin
def test_the_plugin_of_another_tool_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(NCCL_VARIABLE, "inspector")
    with traincope.run(tmp_path / "run", agent=False):
        assert os.environ[NCCL_VARIABLE] == "inspector"
    assert os.environ[NCCL_VARIABLE] == "inspector"
    why = "NCCL loads another profiler: NCCL_PROFILER_PLUGIN=inspector"
    assert probe(tmp_path / "run") == f"off: {why}"
    assert why in caplog.text
    assert (examine_plugin().state, examine_plugin().fact) == (State.NOTE, f"asked for, and off: {why}")


@pytest.mark.parametrize("name", ["libnccl-profiler.so", "libnccl-net.so"])
def test_a_plugin_that_nccl_would_find_by_itself_is_another_one(name: str, tmp_path: Path) -> None:
    library = tmp_path / name
    environment = {"LD_LIBRARY_PATH": f"/nowhere:{tmp_path}"}
    assert other_plugin(environment, own="ours") is None
    library.write_bytes(b"\x7fELF ncclNet_v8 ")
    assert other_plugin(environment, own="ours") is None
    library.write_bytes(b"\x7fELF ncclProfiler_v4 ")
    assert other_plugin(environment, own="ours") == str(library)
    assert other_plugin({}, own="ours") is None


def test_a_network_plugin_with_a_profiler_is_another_one(tmp_path: Path) -> None:
    (tmp_path / "libnccl-net-fast.so").write_bytes(b"ncclProfiler_v4")
    environment = {"LD_LIBRARY_PATH": str(tmp_path), "NCCL_NET_PLUGIN": "fast"}
    assert other_plugin(environment, own="ours") == str(tmp_path / "libnccl-net-fast.so")
    by_path = {"NCCL_NET_PLUGIN": str(tmp_path / "libnccl-net-fast.so")}
    assert other_plugin(by_path, own="ours") == str(tmp_path / "libnccl-net-fast.so")


def test_a_plugin_in_a_file_of_nccls_settings_is_another_one(tmp_path: Path) -> None:
    settings = tmp_path / "nccl.conf"
    settings.write_text("# NCCL_PROFILER_PLUGIN=no\nNCCL_DEBUG=INFO\n")
    assert other_plugin({"NCCL_CONF_FILE": str(settings)}, own="ours") is None
    settings.write_text("NCCL_DEBUG=INFO\nNCCL_PROFILER_PLUGIN=theirs\n")
    assert other_plugin({"NCCL_CONF_FILE": str(settings)}, own="ours") == f"NCCL_PROFILER_PLUGIN in {settings}"


def test_our_own_plugin_is_no_other_one() -> None:
    assert other_plugin({NCCL_VARIABLE: "ours"}, own="ours") is None


@asked
def test_without_the_plugin_the_run_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    with traincope.run(tmp_path / "run", agent=False):
        assert NCCL_VARIABLE not in os.environ
    assert probe(tmp_path / "run") == "off: it is not built (traincope doctor --build-native)"
    assert examine_plugin().state is State.NOTE


@asked
@needs_plugin
def test_doctor_names_the_plugin_that_nccl_will_find() -> None:
    finding = examine_plugin()
    assert finding.state is State.OK
    assert finding.fact.startswith(f"on, if NCCL loads it: {find_plugin().path}")


@asked
@needs_plugin
def test_python_and_nccl_have_one_library(tmp_path: Path) -> None:
    """Loaded twice, it has one state: otherwise NCCL's half would have no segments."""
    with traincope.run(tmp_path / "run", agent=False):
        path = find_plugin().path
        assert path is not None
        before = list(load_plugin(path).counts)
        Communicator(nccl=Nccl(5), hash=1, num_ranks=2, rank=0)
        assert load_plugin(path).counts[1] == before[1] + 1


@asked
@needs_plugin
def test_the_table_has_nccls_operations(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run", agent=False):
        communicator = Communicator(nccl=Nccl(6), hash=0xABC, num_ranks=4, rank=2)
        done, standing = all_reduce(0, (100, 250), (90, 200)), all_reduce(1, (300, 400))
        for truth in (done, standing):
            communicator.enqueue(truth)
        communicator.run_on_device(done)
        communicator.begin_channels(standing)
    ended, begun = table_of([Sources.at(tmp_path / "run", name="run")], "nccl").to_pylist()
    expected = {
        "run": "run", "rank": 0, "step": None, "communicator": "0000000000000abc", "communicator_rank": 2,
        "communicator_size": 4, "function": "AllReduce", "message": False, "sequence": 0, "peer": 0,
        "datatype": "ncclFloat32", "bytes": 40, "algorithm": "RING", "protocol": "SIMPLE", "channels": 2,
        "channels_begun": 2, "channels_ended": 2, "gpu_start_ns": 90, "gpu_end_ns": 250, "gpu_duration_ns": 160,
        "interface": 6,
    }  # fmt: skip
    assert {name: ended[name] for name in expected} == expected
    assert ended["call_ns"] <= ended["enqueued_ns"] <= ended["start_ns"] <= ended["end_ns"]
    assert done.ended[1] - done.called[0] >= ended["end_ns"] - ended["call_ns"] >= done.ended[0] - done.called[1]
    assert (begun["sequence"], begun["channels_begun"], begun["channels_ended"]) == (1, 1, 0)
    assert (begun["end_ns"], begun["gpu_start_ns"], begun["gpu_duration_ns"]) == (None, None, None)


def documented_query(word: str) -> str:
    """The query of the page that contains this word."""
    (query,) = (text for text in re.findall(r'traincope sql RUN "([^"]*)"', PAGE.read_text()) if word in text)
    return query


@asked
@needs_plugin
def test_the_documented_query_splits_wait_from_transfer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks, of which one joins late: all leave together, and NCCL's kernel waits for its peers until then.

    The clocks of the GPUs differ. A collective that one rank has not ended has no split.
    """
    monkeypatch.setenv("WORLD_SIZE", "2")
    late_ns = ((0, 700), (3_000, 0), (0, 0))
    for rank, epoch_ns in ((0, 1_000_000), (1, 9_000_000)):
        monkeypatch.setenv("RANK", str(rank))
        with traincope.run(tmp_path / "run", agent=False):
            communicator = Communicator(nccl=Nccl(6), hash=0xC0, num_ranks=2, rank=rank)
            for sequence, late in enumerate(late_ns):
                at_ns = epoch_ns + sequence * 100_000
                truth = all_reduce(sequence, (at_ns + late[rank], at_ns + max(late) + 5_000))
                communicator.enqueue(truth)
                begun = communicator.begin_channels(truth)
                if (rank, sequence) != (1, 2):
                    communicator.end_channels(truth, begun)
    sources = Sources.at(tmp_path / "run", name="run")
    rows = run_query([sources], documented_query("transfer_ns")).to_pylist()
    assert [(row["sequence"], row["transfer_ns"], row["wait_ns"], row["last_rank"]) for row in rows] == [
        (1, 5_000, 3_000, 0),
        (0, 5_000, 700, 1),
    ]
