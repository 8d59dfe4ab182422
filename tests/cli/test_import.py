"""`traincope import`, from traces to a report, and its errors."""

import gzip
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli import forked
from tests.ingest.tables.jobs import Job, table, write_csv
from tests.ingest.writing import complete, kineto
from traincope.cli.commands import import_
from traincope.cli.main import main, make_parser
from traincope.errors import LEFT_OUT
from traincope.ingest import import_traces, importing
from traincope.plan.hardware import find_hardware
from traincope.plan.search.clusters import ACCELERATORS, device_name
from traincope.store import read_run

KEPT = ("rank0", "rank5")


def traincope(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return forked.traincope(*map(str, arguments), environment=os.environ | environment)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """100 us of a GPU: 40 compute, 30 of nccl, 30 nothing."""
    events = [complete("gemm", "10", "40"), complete("ncclX", "50", "30", tid=20), complete("gemm", "110", "0")]
    file = tmp_path / "rank0.json"
    file.write_text(kineto(events))
    return file


def test_a_trace_becomes_a_report(trace: Path, tmp_path: Path) -> None:
    done = traincope("import", trace, "-o", tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"{trace}: rank 0 (from the name rank0.json), 3 of 3 events kept",
        f"see the result:  traincope report {tmp_path / 'run'}",
    ]
    reported = json.loads(traincope("report", tmp_path / "run", "--format", "json").stdout)
    assert reported["gpu_partition"][0]["span_ns"] == 100_000
    assert reported["gpu_partition"][0]["exposed_communication_ns"] == 30_000
    assert reported["ledger"] is None


def test_a_folder_is_imported_with_progress_on_a_terminal(trace: Path, tmp_path: Path) -> None:
    """FORCE_COLOR makes rich treat a pipe as a terminal."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for rank in range(3):
        (folder / f"rank{rank}.json").write_text(trace.read_text())
    done = traincope("import", folder, "-o", tmp_path / "run", FORCE_COLOR="1", TERM="xterm")
    assert done.returncode == 0
    assert [line.split(":")[1].split(" (")[0] for line in done.stdout.splitlines()[:3]] == [
        f" rank {rank}" for rank in range(3)
    ]
    assert "reading traces" in done.stderr
    assert "3/3" in done.stderr


@pytest.mark.parametrize("processes", [1, 2])
def test_files_that_are_not_traces_are_named_and_left_out(
    trace: Path, processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if processes == 2:
        monkeypatch.setattr(importing, "WORTH_A_PROCESS", 0)
    folder = tmp_path / "folder"
    (folder / "directory.json").mkdir(parents=True)
    for rank in (0, 5):
        (folder / f"rank{rank}.json").write_text(trace.read_text())
    others = {
        "config.json": b'{"hidden_size": 8}',
        "cut.json.gz": gzip.compress(trace.read_bytes())[:12],
        "dump_1.json": b'{"entries": [], "pg_config": {}}',
        "empty.json": b"",
        "tokenizer.json.gz": gzip.compress(b"[1, 2]"),
    }
    for name, content in others.items():
        (folder / name).write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        main(["import", str(folder), "-o", str(tmp_path / "run")])
    assert ended.value.code == LEFT_OUT
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        *(f"{folder / name}.json: rank {name[4]} (from the name {name}.json), 3 of 3 events kept" for name in KEPT),
        "left out: 5 files, so the exit code is 14",
        f"see the result:  traincope report {tmp_path / 'run'}",
    ]
    named = [line.removeprefix(f"left out: {folder}/").partition(" ")[0] for line in printed.err.splitlines()]
    assert named == sorted(others)
    assert f"traincope hang {folder / 'dump_1.json'}" in printed.err
    assert [rank.rank for rank in read_run(tmp_path / "run").ranks] == [0, 5]


def test_a_folder_without_a_whole_trace_is_refused(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text('{"traceEvents": []}')
    done = traincope("import", tmp_path, "-o", tmp_path / "run")
    assert (done.returncode, done.stdout) == (6, "")
    assert "a.json contains no operator, kernel or range of torch's profiler" in done.stderr
    assert "; 1 other file cannot be read either" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_truncated_trace_is_imported_with_a_note(trace: Path, tmp_path: Path) -> None:
    trace.write_text(trace.read_text()[:-60])
    done = traincope("import", trace, "-o", tmp_path / "run")
    assert done.returncode == 0
    assert "incomplete: it ends before its events do" in done.stdout
    assert f"{trace.name} of rank 0 is not whole" in traincope("report", tmp_path / "run").stdout


def test_an_event_without_a_time_is_named(tmp_path: Path) -> None:
    times = ((1, 1), (None, 1), (2, -1))
    events = [{"ph": "X", "cat": "kernel", "name": "k", "ts": ts, "dur": ns, "pid": 0, "tid": 7} for ts, ns in times]
    (tmp_path / "rank2.json").write_text(json.dumps({"traceEvents": events}))
    done = traincope("import", tmp_path / "rank2.json", "-o", tmp_path / "run")
    assert "2 of 3 events kept\n  left out: 1 event without a valid time\n  counted as 0 ns: 1 event" in done.stdout
    report = " ".join(traincope("report", tmp_path / "run").stdout.split())
    assert "of rank 2 has 1 event without a valid time: a kernel among them is idle time" in report


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (
            "hello",
            6,
            "is not a trace of torch's profiler: it has no list of traceEvents; give a file written by",
        ),
        (
            '{"traceEvents": []}',
            6,
            "contains no operator, kernel or range of torch's profiler, so there is nothing to import",
        ),
    ],
)
def test_a_file_that_is_not_a_trace_is_refused_in_one_sentence(
    content: str, code: int, message: str, tmp_path: Path
) -> None:
    (tmp_path / "x.json").write_text(content)
    done = traincope("import", tmp_path / "x.json", "-o", tmp_path / "run")
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["report", "view"])
@pytest.mark.parametrize("price", ["-1", "0", "nan", "inf", "cheap"])
def test_an_invalid_price_is_refused(command: str, price: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        make_parser([command]).parse_args([command, "run", f"--price-per-gpu-hour={price}"])
    assert refused.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.endswith(f"argument --price-per-gpu-hour: {price} is not a price; give a number above 0, e.g. 2.5")


@pytest.mark.parametrize("command", ["report", "view"])
def test_a_currency_has_three_letters(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = make_parser([command])
    assert parser.parse_args([command, "run"]).currency == "USD"
    assert parser.parse_args([command, "run", "--currency", "eur"]).currency == "EUR"
    for wrong in ("euros", "E2R", "\N{EURO SIGN}"):
        with pytest.raises(SystemExit):
            parser.parse_args([command, "run", "--currency", wrong])
        assert "is not a currency; give its three letters, e.g. EUR" in capsys.readouterr().err


def test_a_trace_with_steps_has_the_ledger_of_its_gpu(tmp_path: Path) -> None:
    """Two steps of 50 and 60 us. In each, the GPU works for 40 us and idles until the host has launched."""
    events = [
        complete("ProfilerStep#7", "100", "50", cat="user_annotation", pid=1, tid=1),
        complete("ProfilerStep#8", "150", "60", cat="user_annotation", pid=1, tid=1),
        complete("## forward ##", "100", "100", cat="user_annotation", pid=1, tid=1),
        complete("cudaLaunchKernel", "105", "2", cat="cuda_runtime", pid=1, tid=1, correlation=1),
        complete("cudaLaunchKernel", "151", "2", cat="cuda_runtime", pid=1, tid=1, correlation=2),
        complete("gemm", "110", "40", correlation=1),
        complete("gemm", "170", "40", correlation=2),
    ]
    (tmp_path / "rank0.json").write_text(kineto(events))
    traincope("import", tmp_path / "rank0.json", "-o", tmp_path / "run")
    ledger = json.loads(traincope("report", tmp_path / "run", "--format", "json").stdout)["ledger"]
    assert ledger["clock"] == "device"
    assert ledger["wall_ns"] == 110_000
    assert {term: ns for term, ns in ledger["terms"].items() if ns} == {"forward": 80_000, "launch_gap": 30_000}
    assert "on the GPUs' clocks" in " ".join(traincope("report", tmp_path / "run").stdout.split())
    assert "traces of rank 0" not in traincope("doctor", tmp_path / "run").stdout


def test_what_a_trace_lacks_can_be_given(tmp_path: Path) -> None:
    events = [
        complete("my step", "100", "50", cat="user_annotation", pid=1, tid=1),
        complete("cudaLaunchKernel", "105", "2", cat="cuda_runtime", pid=1, tid=1, correlation=1),
        complete("gemm", "110", "40", correlation=1),
    ]
    (tmp_path / "rank0.json").write_text(kineto(events))
    given = ("--step-marker", "my step", "--gpu", "NVIDIA H100 80GB HBM3", "--axes", "0=dp,mesh_tp=tp")
    assert traincope("import", tmp_path / "rank0.json", "-o", tmp_path / "run", *given).returncode == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["settings"] == {
        "axes": {"0": "dp", "mesh_tp": "tp"},
        "step_marker": "my step",
    }
    ranks = tmp_path.glob("run/attempt-000/rank-*/rank.json")
    assert [json.loads(rank.read_text())["device"] for rank in ranks] == [{"count": 1, "name": "NVIDIA H100 80GB HBM3"}]
    assert json.loads(traincope("report", tmp_path / "run", "--format", "json").stdout)["run"]["steps"] == 1


def test_a_wrong_axis_is_refused_with_an_example(tmp_path: Path) -> None:
    done = traincope("import", tmp_path, "-o", tmp_path / "run", "--axes", "tp")
    assert done.returncode == 2
    assert "'tp' is not GROUP=AXIS[,...], for example 3=tp,mesh_fsdp=fsdp" in " ".join(done.stderr.split())


def timed_step(**job: object) -> str:
    """A step of 1 ms on an H100: one kernel, without shapes."""
    events = [
        complete("ProfilerStep#1", "0", "1000", cat="user_annotation", pid=9, tid=1),
        complete("cudaLaunchKernel", "0", "1", cat="cuda_runtime", pid=9, tid=1, correlation=5),
        complete("gemm", "0", "1000", pid=0, correlation=5),
    ]
    head = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}], "distributedInfo": job}
    return kineto(events, head=head)


def utilization(file: Path, *arguments: object) -> dict[str, object]:
    run = file.parent / "run"
    done = traincope("import", file, *arguments, "-o", run)
    assert (done.returncode, done.stderr) == (0, "")
    return dict(json.loads(traincope("report", run, "--format", "json").stdout)["utilization"])


MODEL = "layers = 1\nhidden = 1000\nheads = 1\nffn = 4000\nvocabulary = 1\nsequence = 100\n"
"""12,001,000 weights."""
TOKENS = 1000
FLOPS = 6 * 12_001_000 * TOKENS + 12 * 1000 * 100 * TOKENS / 2


def test_a_model_gives_the_mfu(tmp_path: Path) -> None:
    """Of 8 ranks, one has a trace: an eighth of the model's FLOPs in 1 ms at 989.4 TFLOP/s."""
    (file := tmp_path / "rank0.json").write_text(timed_step(rank=0, world_size=8))
    (model := tmp_path / "model.toml").write_text(MODEL)
    used = utilization(file, "--model", model, "--tokens-per-step", TOKENS, "--dtype", "bfloat16")
    assert used["mfu"] == pytest.approx(FLOPS / 8 / 989.4e12 / 1e-3)
    assert used["hfu"] is None
    assert used["tokens_per_second"] == pytest.approx(TOKENS / 1e-3)


def test_without_shapes_the_number_format_must_be_given(tmp_path: Path) -> None:
    (file := tmp_path / "rank0.json").write_text(timed_step(rank=0, world_size=8))
    (model := tmp_path / "model.toml").write_text(MODEL)
    used = utilization(file, "--model", model, "--tokens-per-step", TOKENS)
    assert used["mfu"] is None
    assert "give --dtype to traincope import" in str(used["reason"])


def test_a_model_needs_the_tokens_of_a_step(trace: Path, tmp_path: Path) -> None:
    done = traincope("import", trace, "--model", "llama3-8b", "-o", tmp_path / "run")
    assert (done.returncode, done.stderr) == (
        2,
        "traincope import: --model needs the number of tokens; give --tokens-per-step\n",
    )


def shaped_step(**job: object) -> str:
    """A step of 1 ms: a product of 2 x 1,000 x 2,000 x 3,000 FLOPs forward, and its two gradients backward."""
    mm = {"cat": "cpu_op", "pid": 9, "tid": 1}
    types = {"Input type": ["c10::BFloat16"] * 2}
    node = "autograd::engine::evaluate_function: MmBackward0"
    events = [
        complete("ProfilerStep#1", "0", "1000", cat="user_annotation", pid=9, tid=1),
        complete("## forward ##", "0", "100", cat="user_annotation", pid=9, tid=1),
        complete("aten::mm", "10", "20", **mm, **types, **{"Input Dims": [[1000, 2000], [2000, 3000]]}),
        complete(node, "100", "100", **mm),
        complete("aten::mm", "110", "20", **mm, **types, **{"Input Dims": [[1000, 3000], [3000, 2000]]}),
        complete("aten::mm", "140", "20", **mm, **types, **{"Input Dims": [[2000, 1000], [1000, 3000]]}),
        *(
            complete("cudaLaunchKernel", str(at), "1", cat="cuda_runtime", pid=9, tid=1, correlation=at)
            for at in (12, 112, 142)
        ),
        *(complete("nvjet_gemm", str(at), "20", pid=0, correlation=at) for at in (12, 112, 142)),
    ]
    head = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}], "distributedInfo": job}
    return kineto(events, head=head)


def test_shapes_give_the_mfu_and_the_hfu(tmp_path: Path) -> None:
    (file := tmp_path / "rank0.json").write_text(shaped_step(rank=0, world_size=8))
    used = utilization(file)
    assert used["mfu"] == used["hfu"] == pytest.approx(3 * 2 * 1000 * 2000 * 3000 / 989.4e12 / 1e-3)
    assert used["model_flops_per_step"] == 3 * 2 * 1000 * 2000 * 3000


def test_a_model_gives_the_mfu_next_to_the_hfu_of_shapes(tmp_path: Path) -> None:
    (file := tmp_path / "rank0.json").write_text(shaped_step(rank=0, world_size=8))
    (model := tmp_path / "model.toml").write_text(MODEL)
    used = utilization(file, "--model", model, "--tokens-per-step", TOKENS)
    assert used["mfu"] == pytest.approx(FLOPS / 8 / 989.4e12 / 1e-3)
    assert used["hfu"] == pytest.approx(3 * 2 * 1000 * 2000 * 3000 / 989.4e12 / 1e-3)


def test_a_gpu_without_a_data_sheet_needs_its_name(tmp_path: Path) -> None:
    text = shaped_step(rank=0, world_size=8).replace("NVIDIA H100 80GB HBM3", "NVIDIA Secret")
    (file := tmp_path / "rank0.json").write_text(text)
    used = utilization(file)
    assert (used["mfu"], used["hfu"]) == (None, None)
    assert str(used["reason"]).startswith("the peak of NVIDIA Secret for bfloat16 is unknown")
    assert "traincope import --gpu NAME" in str(used["reason"])


def test_a_table_of_operations_becomes_a_report(tmp_path: Path) -> None:
    job = Job(replicas=2, stages=2, microbatches=2, steps=(5, 8))
    lost = {"rank": 3, "step": 8}
    rows = [row for row in table(job) if any(row[name] != value for name, value in lost.items())]
    rows.append({**rows[0], "optype": "moe-dispatch"})
    file = write_csv(tmp_path / "job.csv", rows)
    done = traincope("import", file, "-o", tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"{file}: 53 operations of 4 workers (2 data-parallel ranks x 2 stages) in 1 step",
        "  the table counts time from the start of each step, so the steps are shown one after the other",
        "  unknown type 'moe-dispatch': 1 operation, shown as spans and in no other result",
        "  left out: 1 step that is not whole: step 8, dp_rank 1, stage 1 has no row",
        f"see the result:  traincope report {tmp_path / 'run'}",
    ]
    shown = traincope("report", tmp_path / "run").stdout
    assert "4 ranks (pp 2 x dp 2), 1 step, median step" in shown
    assert "imported from a table of operations" in " ".join(shown.split())
    assert "SLOWDOWN  S = 1.000, cause: none" in shown
    assert "a table of operations was imported: it contains no bytes" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["other.csv"], "is a table of a whole job; import it alone"),
        (["other.csv.gz"], "other.csv.gz is a packed table; unpack it first: gunzip --keep "),
        (["--axes", "3=tp"], "--axes and --step-marker are for traces"),
    ],
)
def test_a_table_is_imported_alone_and_without_the_options_of_traces(
    tmp_path: Path, more: list[str], message: str
) -> None:
    file = write_csv(tmp_path / "job.csv", table(Job(replicas=1, stages=1, microbatches=1, steps=(1,))))
    done = traincope("import", file, *more, "-o", tmp_path / "run")
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_logbook_becomes_a_report(tmp_path: Path) -> None:
    """100 h on 8 ranks, 5 interruptions of one cause: 20 h between them."""
    logbook = tmp_path / "logbook.csv"
    logbook.write_text("kind,cause,count,hours,ranks\nperiod,,,100,8\ninterruption,gpu,5,,\nnote,gpu,,,\n")
    done = traincope("import", logbook, "-o", tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"{logbook}: 0 runs, 5 interruptions, 0 known steps",
        "  1 row of kind note: in no number",
        f"see the result:  traincope report {tmp_path / 'run'}",
    ]
    reported = traincope("report", tmp_path / "run")
    assert "5 interruptions in 100 h 0 min; mean time between them 20 h 0 min" in " ".join(reported.stdout.split())
    refused = traincope("import", logbook, "--gpu", "H100", "-o", tmp_path / "other")
    assert refused.returncode == 2
    assert "it has no steps that a model or GPU belongs to" in refused.stderr
    logbook.write_text("kind,cause\noutage,gpu\n")
    refused = traincope("import", logbook, "-o", tmp_path / "other")
    assert refused.returncode == 6
    assert "line 2: kind 'outage'" in refused.stderr
    assert not (tmp_path / "other").exists()


def test_commands_that_need_ranks_say_so_of_a_logbook(tmp_path: Path) -> None:
    logbook = Path(__file__).parents[2] / "sample_runs" / "opt-175b"
    refused = traincope("export", logbook, "--to", "openmetrics", "-o", tmp_path / "run.om")
    assert refused.returncode == 4
    assert "is a list of interruptions: openmetrics needs a run that ranks recorded" in refused.stderr
    examined = traincope("doctor", logbook)
    assert examined.returncode == 0
    assert "none: imported from a list of runs and interruptions" in examined.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_hidden_folder(
    number: signal.Signals,
    trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It comes when the trace is read and written aside."""
    before = signal.getsignal(number)

    def end(_: float) -> None:
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".run")]
        os.kill(os.getpid(), number)

    def import_and_end(paths: Sequence[Path], target: Path, **_: object) -> None:
        import_traces(paths, target, on_read=end)

    monkeypatch.setattr(import_, "import_traces", import_and_end)
    with pytest.raises(SystemExit, match="130"):
        main(["import", str(trace), "-o", str(tmp_path / "run")])
    assert [path.name for path in tmp_path.iterdir()] == [trace.name]
    assert signal.getsignal(number) is before
    assert capsys.readouterr().err == "traincope import: interrupted\n"


@pytest.mark.parametrize("name", [name for name in ACCELERATORS if not name.startswith(("tpu", "trainium"))])
def test_import_takes_the_names_of_gpus_that_plan_takes(name: str) -> None:
    for spelling in (name, name.upper()):
        assert find_hardware(device_name(spelling)) == ACCELERATORS[name].spec


def test_a_gpu_of_plan_gives_a_trace_its_roofline(trace: Path, tmp_path: Path) -> None:
    assert traincope("import", trace, "--gpu", "H100", "-o", tmp_path / "run").returncode == 0
    (rank,) = (tmp_path / "run").rglob("rank.json")
    assert json.loads(rank.read_text())["device"]["name"] == "H100 SXM"


def test_the_name_of_a_torch_device_stays() -> None:
    assert device_name("NVIDIA H100 80GB HBM3") == "NVIDIA H100 80GB HBM3"
