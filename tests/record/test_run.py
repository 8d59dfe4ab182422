"""`traincope.run()` in one process: its records, and that it never harms the training."""

import gc
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import traincope
from traincope.events import NO_STEP, OPEN, Kind, Phase
from traincope.record.segments import writer
from traincope.record.session import recorder as recording
from traincope.record.session.ending import exit_code
from traincope.store import RankRecords, read_run
from traincope.timeline.observation import NATIVE_PROBE


def only_rank(path: Path) -> RankRecords:
    (rank,) = read_run(path).ranks
    return rank


def recorded(path: Path, kind: Kind) -> list[tuple[str, int]]:
    """Return (name, step) of the records of a kind on the training thread."""
    rank = only_rank(path)
    records = rank.thread("main")
    return [(rank.name(int(r["name"])), int(r["step"])) for r in records[records["kind"] == kind]]


def phases(path: Path) -> list[Phase]:
    records = only_rank(path).thread("main")
    return [Phase(int(phase)) for phase in records["phase"][records["kind"] == Kind.PHASE] if phase != Phase.GC]


def states(rank: RankRecords) -> set[str]:
    """Return the states of the default level's probes that have something to observe on this machine."""
    idle = ("off: needs level ", "off: nothing to watch")
    return {state for name, state in rank.info.probes.items() if name != NATIVE_PROBE and not state.startswith(idle)}


def train_one_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_training_of_three_lines_is_recorded(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with traincope.run(tmp_path / "run") as run:
        for _ in range(2):
            train_one_step(model, optimizer)
            run.step()
    one_step = [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OPTIMIZER]
    assert phases(tmp_path / "run") == one_step * 2
    assert [step for _, step in recorded(tmp_path / "run", Kind.PHASE) if _ == "SGD"] == [0, 1]


def test_data_evaluation_and_recomputation_are_distinguished(tmp_path: Path) -> None:
    inner = torch.nn.Linear(4, 4)
    data = torch.utils.data.DataLoader(torch.ones(2, 4), batch_size=2)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)
            return result

    model = Model()
    with traincope.run(tmp_path / "run"):
        for batch in data:
            model(batch.requires_grad_()).sum().backward()
        with torch.no_grad():
            model.eval()(torch.ones(2, 4))
    assert phases(tmp_path / "run") == [
        Phase.DATA_WAIT,
        Phase.FORWARD,
        Phase.BACKWARD,
        Phase.RECOMPUTE,
        Phase.DATA_WAIT,
        Phase.EVALUATION,
    ]


def test_spans_and_events_carry_their_names_and_step(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run") as run:
        with traincope.span("load"):
            pass
        run.step()
        with traincope.span("tokenise"):
            traincope.event("spike", loss=9.5)
    assert recorded(tmp_path / "run", Kind.SPAN) == [("load", NO_STEP), ("tokenise", 0)]
    rank = only_rank(tmp_path / "run")
    (event,) = rank.thread("main")[rank.thread("main")["kind"] == Kind.EVENT]
    assert (rank.name(int(event["name"])), rank.details[int(event["group"])]) == ("spike", {"loss": 9.5})


def test_a_run_is_a_decorator(tmp_path: Path) -> None:
    @traincope.run(tmp_path / "run")
    def train(steps: int) -> int:
        """Train the model."""
        for _ in range(steps):
            traincope.step()
        return steps

    assert train(3) == 3
    assert train.__doc__ == "Train the model."
    assert len(recorded(tmp_path / "run", Kind.STEP)) == 3


def test_the_decorator_works_without_parentheses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINCOPE_OUT", str(tmp_path / "run"))

    @traincope.run
    def train(steps: int) -> int:
        for _ in range(steps):
            traincope.step()
        return steps

    assert train(2) == 2
    assert len(recorded(tmp_path / "run", Kind.STEP)) == 2


def test_a_decorated_generator_is_unchanged_and_a_warning_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):

        @traincope.run()
        def batches() -> Iterator[int]:
            yield 1

    assert list(batches()) == [1]
    assert "is not recorded" in caplog.text


FORK_BESIDE_A_THREAD = """
import os, sys, threading
import traincope

def work(ready, stop):
    while not stop.is_set():
        with traincope.span("in a thread"):
            ready.set()

with traincope.run(sys.argv[1]) as run:
    run.step()
    ready, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=work, args=(ready, stop))
    thread.start()
    ready.wait()
    for _ in range(5):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    stop.set()
    thread.join()
"""


def test_a_fork_during_a_write_of_another_thread_keeps_its_segment_intact(tmp_path: Path) -> None:
    """The child drops its copy of the thread's writer. It must not cut the file under the parent (SIGBUS)."""
    command = [sys.executable, "-W", "ignore", "-c", FORK_BESIDE_A_THREAD, str(tmp_path / "run")]
    subprocess.run(command, check=True, timeout=150)
    assert only_rank(tmp_path / "run").problems == ()


def train_compiled(directory: Path | None) -> tuple[list[float], int]:
    """Return losses, and how often torch.compile gave up on a graph."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = model(batch).square().mean()
        return result

    compiled, losses = torch.compile(loss_of, backend="aot_eager", fullgraph=True), []
    with traincope.run(directory) if directory else nullcontext():
        for seed in range(3):
            torch.manual_seed(seed)
            loss = compiled(torch.randn(4, 4))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses, sum(torch._dynamo.utils.counters["graph_break"].values())


def test_a_compiled_training_is_the_same_and_stays_one_graph(tmp_path: Path) -> None:
    assert train_compiled(tmp_path / "run") == train_compiled(None)


def test_a_mesh_without_groups_and_fake_tensors_switch_no_hook_off(tmp_path: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import DeviceMesh

    with traincope.run(tmp_path / "run"):
        store = f"file://{tmp_path}/rendezvous"
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        mesh = DeviceMesh("cpu", [0], mesh_dim_names=("dp",), _init_backend=False)
        with FakeTensorMode():
            dist.all_reduce(torch.ones(1))
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
        del mesh
    rank = only_rank(tmp_path / "run")
    assert states(rank) == {"on"}
    assert (rank.thread("main")["kind"] == Kind.COLLECTIVE).sum() == 1


def test_an_exception_passes_and_is_recorded_with_the_open_step(tmp_path: Path) -> None:
    def train() -> None:
        with traincope.run(tmp_path / "run") as run:
            run.step()
            raise ZeroDivisionError("bad sample in shard 7")

    with pytest.raises(ZeroDivisionError):
        train()
    rank = only_rank(tmp_path / "run")
    assert rank.info.ending == "ZeroDivisionError"
    records = rank.thread("main")
    assert records["end_ns"][records["kind"] == Kind.STEP].tolist() == [OPEN]
    (event,) = records[records["kind"] == Kind.EVENT]
    details = rank.details[int(event["group"])]
    assert details["type"] == "ZeroDivisionError"
    assert details["at"].startswith("test_run.py:")
    assert details["message"] == "bad sample in shard 7"
    assert [frame.rpartition(" in ")[2] for frame in details["traceback"]][-1] == "train"


def test_the_message_of_an_exception_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(out: Path, *, messages: bool) -> None:
        with traincope.run(out, messages=messages):
            raise ValueError("a secret")

    with pytest.raises(ValueError, match="a secret"):
        train(tmp_path / "by argument", messages=False)
    monkeypatch.setenv("TRAINCOPE_MESSAGES", "off")
    with pytest.raises(ValueError, match="a secret"):
        train(tmp_path / "by variable", messages=True)
    for run in ("by argument", "by variable"):
        (details,) = only_rank(tmp_path / run).details.values()
        assert "message" not in details
        assert "a secret" not in str(details)


def test_a_failed_allocation_is_recognised_for_every_exception_type(tmp_path: Path) -> None:
    """A failed allocation of torch on a CPU is a RuntimeError. Its message is not needed."""

    def train(out: Path, *, leave: bool) -> None:
        with traincope.run(out, messages=False):
            try:
                torch.empty(1 << 50)
            except RuntimeError:
                sys.exit(1) if leave else None
                raise

    for leave, error in ((False, RuntimeError), (True, SystemExit)):
        with pytest.raises(error):
            train(tmp_path / error.__name__, leave=leave)
        (details,) = only_rank(tmp_path / error.__name__).details.values()
        assert details["out_of_memory"] is True
        assert "allocate" not in str(details)


def test_a_nested_run_records_nothing_and_logs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with traincope.run(tmp_path / "outer"), caplog.at_level(logging.WARNING):
        with traincope.run(tmp_path / "inner") as inner:
            inner.step()
        with traincope.span("still outer"):
            pass
    assert "already recording" in caplog.text
    assert not (tmp_path / "inner").exists()
    assert recorded(tmp_path / "outer", Kind.SPAN) == [("still outer", NO_STEP)]


def test_the_off_switch_records_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINCOPE", "off")
    with traincope.run(tmp_path / "run") as run:
        run.step()
        run.describe(tokens_per_step=1)
        traincope.event("nothing")
    assert not (tmp_path / "run").exists()


def test_training_continues_if_nothing_can_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING), traincope.run(tmp_path / "file") as run:
        run.step()
        with traincope.span("x"):
            pass
    assert run.directory is None
    assert "training goes on" in caplog.text


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run") as run:
        run.step()
        child = os.fork()
        if child == 0:
            with traincope.span("in the child"):
                run.step()
            os._exit(0)
        os.waitpid(child, 0)
        with traincope.span("in the parent"):
            pass
    assert recorded(tmp_path / "run", Kind.SPAN) == [("in the parent", 0)]
    assert len(recorded(tmp_path / "run", Kind.STEP)) == 1


def test_the_garbage_collector_may_run_while_a_thread_takes_its_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        with traincope.span("work"):
            pass

    with traincope.run(tmp_path / "run") as run:
        run.step()
        for name in ("_Lease", "ThreadWriter"):
            make = getattr(recording, name)
            monkeypatch.setattr(recording, name, lambda *given, make=make, **of: (gc.collect(), make(*given, **of))[1])
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rank = only_rank(tmp_path / "run")
    assert rank.info.recorder["dropped"] == 0
    assert sum(int((rank.thread(name)["kind"] == Kind.SPAN).sum()) for name in rank.threads) == 3


def test_consecutive_threads_share_a_lane_and_concurrent_threads_do_not(tmp_path: Path) -> None:
    def work(name: str) -> None:
        for _ in range(100):
            with traincope.span(name):
                pass

    with traincope.run(tmp_path / "run") as run:
        run.step()
        for number in range(40):
            thread = threading.Thread(target=work, args=(f"worker {number}",))
            thread.start()
            work("main")
            thread.join()
        at_once = [threading.Thread(target=work, args=(f"worker {number}",)) for number in (40, 41, 42)]
        for thread in at_once:
            thread.start()
        for thread in at_once:
            thread.join()
    rank = only_rank(tmp_path / "run")
    assert rank.problems == ()
    counts = {name: int((rank.thread(name)["kind"] == Kind.SPAN).sum()) for name in rank.threads}
    spans = {name: count for name, count in counts.items() if count}  # a garbage collection may have a lane of its own
    assert 2 <= len(spans) <= 4
    assert spans.pop("main") == 4000
    assert sum(spans.values()) == 4300


def test_leaving_by_sys_exit_0_is_a_clean_end(tmp_path: Path) -> None:
    def train(code: object, name: str) -> None:
        with traincope.run(tmp_path / name) as run:
            run.step()
            sys.exit(code)  # type: ignore[arg-type]

    for code, name, ending in ((0, "zero", "clean"), (None, "none", "clean"), (3, "three", "SystemExit")):
        with pytest.raises(SystemExit):
            train(code, name)
        assert only_rank(tmp_path / name).info.ending == ending


def leave_after_a_caught_error(out: Path) -> None:
    with traincope.run(out):
        try:
            {}["missing"]
        except KeyError:
            sys.exit("no shard left")


def test_sys_exit_after_a_caught_error_records_both(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        leave_after_a_caught_error(tmp_path / "run")
    rank = only_rank(tmp_path / "run")
    (details,) = rank.details.values()
    line = int(str(details["at"]).partition(":")[2])
    function = leave_after_a_caught_error.__name__
    assert details == {
        "type": "SystemExit",
        "at": f"test_run.py:{line}",
        "message": "no shard left",
        "traceback": [f"{__file__}:{line} in {function}"],
        "code": 1,
        "handling": "KeyError",
        "handling_at": f"test_run.py:{line - 2}",
        "handling_message": "'missing'",
        "handling_traceback": [f"{__file__}:{line - 2} in {function}"],
    }
    assert (rank.info.ending, rank.info.with_process) == ("SystemExit", False)


@pytest.mark.parametrize(
    ("code", "process_code"), [(None, 0), (0, 0), (3, 3), (True, 1), (256, 0), (-1, 255), ("no", 1)]
)
def test_the_exit_code_is_the_processs(code: object, process_code: int) -> None:
    assert exit_code(SystemExit(code)) == process_code
    ended = subprocess.run([sys.executable, "-Sc", f"raise SystemExit({code!r})"], check=False, capture_output=True)
    assert ended.returncode == process_code


def test_a_garbage_collection_inside_a_hook_breaks_no_record(tmp_path: Path) -> None:
    """With a threshold of 1 the collector runs all the time, and its callback writes between our own lines."""
    thresholds = gc.get_threshold()
    with traincope.run(tmp_path / "run") as run:
        run.step()
        gc.set_threshold(1, 1, 1)
        gc.enable()  # tests run without the collector, see `tests/conftest.py`
        try:
            for _ in range(500):
                with traincope.span("work"):
                    [[] for _ in range(3)]
        finally:
            gc.disable()
            gc.set_threshold(*thresholds)
    records = only_rank(tmp_path / "run").thread("main")
    assert (records["kind"] == Kind.SPAN).sum() == 500
    assert (records["phase"] == Phase.GC).sum() > 100
    assert (records["end_ns"] >= records["start_ns"]).all()


def test_dataloader_workers_write_no_records(tmp_path: Path) -> None:
    loader = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2, num_workers=2)
    with traincope.run(tmp_path / "run"):
        assert len(list(loader)) == 4
    names = [name for name, _ in recorded(tmp_path / "run", Kind.PHASE) if name == "DataLoader"]
    assert len(names) == 5
    assert only_rank(tmp_path / "run").problems == ()


def test_a_loader_without_workers_has_a_name_of_its_own(tmp_path: Path) -> None:
    loader = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
    with traincope.run(tmp_path / "run"):
        assert len(list(loader)) == 4
    names = [name for name, _ in recorded(tmp_path / "run", Kind.PHASE) if name.startswith("DataLoader")]
    assert names == ["DataLoader without workers"] * 5


def test_a_recreated_process_group_is_another_group(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run"):
        for number in range(2):
            store = f"file://{tmp_path}/rendezvous-{number}"
            dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
            dist.all_reduce(torch.ones(1))
            dist.barrier()
            dist.destroy_process_group()
    rank = only_rank(tmp_path / "run")
    assert [group.key for group in rank.groups] == ["0", "0#2"]
    collectives = rank.thread("main")[rank.thread("main")["kind"] == Kind.COLLECTIVE]
    assert list(zip(collectives["group"], collectives["sequence"], strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_the_trainings_description_is_kept(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run") as run:
        run.step()
        run.describe(tokens_per_step=4096)
    assert read_run(tmp_path / "run").info.settings == {"tokens_per_step": 4096}


def test_an_unwritable_value_is_lost_alone(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "one") as run:
        run.describe(table={(1, 2): object()}, tokens_per_step=8)
        run.step()
    assert read_run(tmp_path / "one").info.settings["tokens_per_step"] == 8
    with traincope.run(tmp_path / "two"):
        with traincope.span(["no", "name"]):  # type: ignore[arg-type]
            pass
        with traincope.span("goes on"):
            pass
    assert recorded(tmp_path / "two", Kind.SPAN) == [("['no', 'name']", NO_STEP), ("goes on", NO_STEP)]


def test_probes_report_their_states(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run") as run:
        run.step()
    assert states(only_rank(tmp_path / "run")) == {"on"}


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import traincope
with traincope.run(sys.argv[1]) as run:
    run.step()
    with traincope.span("by hand"):
        pass
"""


def test_without_torch_spans_are_still_recorded(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path / "run")]
    subprocess.run(command, check=True, timeout=150, capture_output=True)
    assert recorded(tmp_path / "run", Kind.SPAN) == [("by hand", 0)]
    probes = only_rank(tmp_path / "run").info.probes
    assert probes["gc"] == "on"
    assert probes["collectives"].startswith("absent: ")


def test_a_group_unknown_to_torch_affects_no_other_record(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run"):
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
        by_hand = dist.ProcessGroupGloo(dist.FileStore(f"{tmp_path}/other", 1), 0, 1)
        by_hand.allreduce([torch.ones(1)]).wait()
        boxed = dist.ProcessGroup(dist.HashStore(), 0, 1)
        boxed._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, by_hand)
        for _ in range(3):
            boxed.allreduce([torch.ones(1)]).wait()
            dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
    rank = only_rank(tmp_path / "run")
    records = rank.thread("main")
    axes = [rank.groups[number].axis for number in records["group"][records["kind"] == Kind.COLLECTIVE]]
    assert axes.count("unregistered") == 3
    assert axes.count("world") == 3
    assert states(rank) == {"on"}


def gloo_of_a_library(store: Any, rank: int, size: int, _timeout: Any) -> Any:
    return dist.ProcessGroupGloo(store, rank, size)


def test_a_group_of_this_rank_alone_may_have_members_in_other_jobs_if_a_library_made_it(tmp_path: Path) -> None:
    """torchft registers the groups between its replicas so. A group of torch's own backends has no other members."""
    dist.Backend.register_backend("of_a_library", gloo_of_a_library, devices="cpu")
    with traincope.run(tmp_path / "run"):
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
        for backend in ("of_a_library", "gloo"):
            dist.all_reduce(torch.ones(1), group=dist.new_group([0], backend=backend, group_desc=f"mesh_{backend}"))
        dist.destroy_process_group()
    groups = {group.axis: group.ranks for group in only_rank(tmp_path / "run").groups}
    assert groups == {"of_a_library": (), "gloo": (0,)}


def test_a_span_in_compiled_code_records_nothing_and_breaks_no_graph(tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        with traincope.span("inside"):
            return x * 2

    with traincope.run(tmp_path / "run"):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
        with traincope.span("outside"):
            pass
    assert [name for name, _ in recorded(tmp_path / "run", Kind.SPAN)] == ["outside"]


def test_entering_a_run_again_continues_it(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run") as run:
        with run:
            run.step()
        with traincope.span("still recording"):
            pass
    assert recorded(tmp_path / "run", Kind.SPAN) == [("still recording", 0)]
    assert only_rank(tmp_path / "run").info.ending == "clean"


def test_a_prefetching_thread_begins_no_step(tmp_path: Path) -> None:
    loader = torch.utils.data.DataLoader(torch.ones(4, 4), batch_size=2)
    with traincope.run(tmp_path / "run"):
        thread = threading.Thread(target=lambda: list(loader))
        thread.start()
        thread.join()
        assert recorded_steps(tmp_path / "run") == []
    rank = only_rank(tmp_path / "run")
    waited = [name for name in rank.threads if Phase.DATA_WAIT in rank.thread(name)["phase"]]
    assert len(waited) == 1
    assert waited != ["main"]


def recorded_steps(path: Path) -> list[int]:
    """Return the number of steps begun so far. The run may still be in its provisional directory."""
    return [int(step) for step in only_rank(path).thread("main")["step"] if step != NO_STEP]


def test_logged_values_are_on_the_timeline_of_their_step(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run") as run:
        for loss in (4.5, torch.tensor(2.25, requires_grad=True), float("nan")):
            run.step()
            traincope.log(loss=loss, bad="not a number")
    rank = only_rank(tmp_path / "run")
    scalars = rank.thread("main")[rank.thread("main")["kind"] == Kind.SCALAR]
    assert {rank.name(int(n)) for n in scalars["name"]} == {"loss"}
    assert scalars["step"].tolist() == [0, 1, 2]
    assert scalars["value"].view("f8").tolist()[:2] == [4.5, 2.25]
    assert "failed 3 times: ValueError" in rank.info.probes["run._log"]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A gloo group of this process only."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def wrapped_in_ddp() -> torch.nn.Module:
    """A DDP model with several buckets."""
    layers = [torch.nn.Linear(512, 512) for _ in range(4)]
    return torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1)  # type: ignore[arg-type]


def mapped_segments(run: Path) -> int:
    """Number of the run's segments that this process maps. A test before may have left one of its own."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sum(str(run) in line and line.endswith(".seg") for line in maps)


@pytest.mark.usefixtures("alone")
def test_works_of_ddp_keep_no_segment_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "CAPACITY", 100)
    model, max_mapped = wrapped_in_ddp(), 0
    with traincope.run(tmp_path / "run", budget=None) as run:
        for _ in range(200):
            model(torch.ones(2, 512)).sum().backward()
            run.step()
            max_mapped = max(max_mapped, mapped_segments(tmp_path))
    assert len(list((tmp_path / "run").rglob("main-*.seg"))) > 10
    assert 0 < max_mapped <= 3
    records = only_rank(tmp_path / "run").thread("main")
    assert (records["kind"] == Kind.COLLECTIVE).sum() > 700


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("compiled_in_run", [True, False])
def test_a_compiled_ddp_has_the_same_graphs_and_breaks_as_unobserved(tmp_path: Path, compiled_in_run: bool) -> None:
    """torch.compile decides by the file of DDP's forward whether it compiles the whole of DDP as one frame."""

    def graphs(directory: Path | None) -> tuple[int, dict[str, int]]:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        compiled = None if compiled_in_run else torch.compile(model, backend="aot_eager")
        with traincope.run(directory, budget=None) if directory else nullcontext():
            if compiled is None:
                compiled = torch.compile(model, backend="aot_eager")
            for _ in range(2):
                compiled(torch.ones(2, 4)).sum().backward()
        counters = torch._dynamo.utils.counters
        return counters["stats"]["unique_graphs"], dict(counters["graph_break"])

    assert graphs(tmp_path / "run") == graphs(None)


@pytest.mark.usefixtures("alone")
def test_arguments_of_any_name_reach_the_module(tmp_path: Path) -> None:
    """Parameter names of our wrappers must not collide with the training's."""

    class Model(torch.nn.Module):
        def forward(self, *, module: float, mesh: float, args: float) -> torch.Tensor:
            return torch.ones(1) * module * mesh * args

    with traincope.run(tmp_path / "run", level=2):
        assert Model()(module=2.0, mesh=3.0, args=5.0).item() == 30.0
        dist.DeviceMesh(device_type="cpu", mesh=[0], _init_backend=False)


def test_a_directory_whose_name_is_no_text_is_recorded_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its bytes may be of another encoding than this process's."""
    directory = tmp_path / os.fsdecode(b"l\xe4uft")
    with traincope.run(directory) as run:
        run.step()
    (rank,) = read_run(directory).ranks
    assert (rank.info.ending, caplog.text) == ("clean", "")
