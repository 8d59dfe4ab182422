"""The proof of `traincope doctor --gpu`: on the virtual GPU its answer is known; on the CPU only its code runs."""

import getpass
import json
import shutil
import socket
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rich.console import Console

from tests.timeline.device.test_live_and_trace import CASES, recorded
from traincope.analysis.ledger.sampling import MeasuredOverhead
from traincope.cli.commands import doctor
from traincope.cli.main import main
from traincope.doctor.gpu_proof import Proof, render_proof, to_proof_document
from traincope.doctor.gpu_proof.judging import RUN, WINDOWS, judge, judge_training, trace_name
from traincope.doctor.gpu_proof.launching import CPU, REASON_FILE, leaving_reason, run_ranks
from traincope.doctor.gpu_proof.proof import Collectives, Problem, TrainingProof
from traincope.doctor.gpu_proof.traced_marks import EXPOSED, PARTS, Difference, TracedMarks
from traincope.errors import DataError, TrainingError

FAILING = "tests.doctor.failing_rank"
PLANTED = "hunter2-node"
FORWARD_KERNEL = 1_005
"""Correlation of the kernel of forward: 20 us."""
OVERHEAD = MeasuredOverhead(estimate=0.0021, low=0.0004, high=0.004)
LATENCY_NS = 1_000
"""From a launch of the virtual GPU to its kernel."""


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run and traces of two virtual GPUs: one step of 80 us, of which a collective of 20 us is exposed."""
    folder = tmp_path_factory.mktemp("proof") / "small kernels"
    assert recorded(CASES["exposed collective"], folder) == [folder / trace_name(rank) for rank in range(2)]
    return folder


@pytest.fixture
def place(two_ranks: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two_ranks, tmp_path / "proof" / two_ranks.name))


def lengthen(trace: Path, correlation: int, microseconds: float) -> None:
    """Let one work of the GPU end later in a trace."""
    document = json.loads(trace.read_text())
    (work,) = [
        each
        for each in document["traceEvents"]
        if each.get("cat") == "kernel" and each["args"]["correlation"] == correlation
    ]
    work["dur"] += microseconds
    trace.write_text(json.dumps(document))


def test_run_and_trace_of_a_virtual_gpu_are_equal(place: Path) -> None:
    proof = judge_training(place, steps=range(1, 2))
    assert proof.problems == ()
    assert [(row.part, row.ledger_ns) for row in proof.by_marks] == [(row.part, row.trace_ns) for row in proof.by_marks]
    assert [row.part for row in proof.by_marks] == list(PARTS)
    assert {row.part: row.ledger_ns for row in proof.by_import} == {"step": 80_000, EXPOSED: 20_000}
    assert all(abs(row.ledger_ns - row.trace_ns) <= LATENCY_NS for row in proof.by_import)
    assert proof.collectives == Collectives(recorded=2, traced=2, nccl_kernels=2, equal=True)


def test_an_error_of_5_percent_of_the_step_fails_and_names_the_terms(place: Path) -> None:
    """Forward's kernel on rank 1 ends 4 us later, and backward begins then."""
    lengthen(place / trace_name(1), FORWARD_KERNEL, 4)
    proof = proof_of(judge_training(place, steps=range(1, 2)))
    failed = {check.name: check.difference for check in proof.checks if not check.passed}
    assert list(failed) == ["forward", "backward"]
    assert failed["forward"] == Difference(
        part="forward", ledger_ns=20_000, trace_ns=22_000, ratio=0.05, rank=1, step=1
    )
    assert not proof.passed


def test_a_collective_that_the_recorder_missed_fails(place: Path) -> None:
    document = json.loads((place / trace_name(0)).read_text())
    call = next(each for each in document["traceEvents"] if each["name"] == "record_param_comms")
    wait = {**call, "args": {**call["args"], "Collective name": "wait"}}
    (place / trace_name(0)).write_text(json.dumps({"traceEvents": [*document["traceEvents"], call, wait]}))
    found = judge_training(place, steps=range(1, 2)).collectives
    assert found == Collectives(recorded=2, traced=3, nccl_kernels=2, equal=False)


def test_a_transfer_between_gpus_needs_kernels_of_nccl() -> None:
    copies = Collectives(recorded=4, traced=4, nccl_kernels=0, equal=True)
    training = TrainingProof(name="small kernels", by_marks=(), collectives=copies)
    assert [check.passed for check in proof_of(training, gpus=1).checks] == [True]
    assert [check.passed for check in proof_of(training, gpus=2).checks] == [False]


def test_steps_that_marks_do_not_measure_are_a_problem(place: Path) -> None:
    problems = judge_training(place, steps=range(1, 4)).problems
    assert [problem.reason for problem in problems] == [
        f"the ledger of rank {rank} lacks 2 steps of 3 (steps 2, 3)" for rank in range(2)
    ]


def test_a_trace_without_a_gpu_is_a_problem(place: Path) -> None:
    (place / trace_name(0)).write_text('{"traceEvents": []}')
    (problem,) = judge_training(place, steps=range(1, 2)).problems
    assert problem.reason == "rank0.json is not a trace of a GPU (ValueError: its compute stream has no work)"


def test_a_trace_that_cannot_be_imported_whole_is_a_problem_without_its_folder(place: Path) -> None:
    document = json.loads((place / trace_name(1)).read_text())
    document["traceEvents"].append({"ph": "X", "cat": "cpu_op", "name": "x", "ts": 1e300, "dur": 1, "pid": 1, "tid": 1})
    (place / trace_name(1)).write_text(json.dumps(document))
    (problem,) = judge_training(place, steps=range(1, 2)).problems
    assert problem.reason == "rank1.json is incomplete: an event has no valid time"
    assert str(place) not in problem.reason


# -- the result -----------------------------------------------------------------------------------


def proof_of(*trainings: TrainingProof, gpus: int = 2, overhead: MeasuredOverhead | None = OVERHEAD) -> Proof:
    return Proof(
        gpus=("NVIDIA H100 80GB HBM3",) * gpus,
        on_gpu=True,
        driver="550.54.15",
        versions={"torch": "2.13.0", "nccl": "2.27.5"},
        trainings=trainings,
        overhead=overhead,
        windows=9,
    )


def difference(part: str, ratio: float) -> Difference:
    return Difference(part=part, ledger_ns=12_340_000, trace_ns=12_350_000, ratio=ratio, rank=0, step=3)


GOOD_TRAINING = TrainingProof(
    name="small kernels",
    by_marks=(difference("step", 0.0012), difference(EXPOSED, 0.02)),
    by_import=(difference(EXPOSED, 0.003),),
    collectives=Collectives(recorded=20, traced=20, nccl_kernels=24, equal=True),
)

TEXT = """
2 x NVIDIA H100 80GB HBM3, driver 550.54.15, torch 2.13.0, nccl 2.27.5

Recorder and torch's profiler on the same steps; limit 2.0 % of the step
    part of a step                       ledger ms  trace ms  difference
    small kernels
        step                                 12.34     12.35      0.12 %  pass
        exposed communication                12.34     12.35      2.00 %  pass
        exposed communication, imported      12.34     12.35      0.30 %  pass
        NCCL collectives                  20 calls  20 calls  24 kernels  pass
    overhead of detail: 0.21 % (95 %: 0.04 % to 0.40 %), limit 1.0 %  pass

Not proved
    The link between the 2 GPUs: whether NCCL used NVLink or PCIe is not known.
    A network between hosts, and the split of exposed communication into wait
    and transfer.
    Light steps: the overhead is that of detail, compared with them.
    CUDA graphs, torch.compile, DDP, FSDP, pipelines and any model but the
    built-in one.

PASSED: 5 of 5 rows
"""


def shown(proof: Proof) -> str:
    written = StringIO()
    render_proof(proof, Console(file=written, width=80))
    return "\n" + written.getvalue()


def test_the_table_is_read_aloud() -> None:
    assert shown(proof_of(GOOD_TRAINING)) == TEXT


def test_a_proof_that_failed_gives_its_reasons() -> None:
    bad = replace(
        GOOD_TRAINING,
        by_marks=(difference("step", 0.0201),),
        problems=(Problem(reason="probes, waits: bad", detail="failed in /home/me"),),
    )
    text = shown(proof_of(bad, overhead=None, gpus=1))
    assert "FAILED: 2 of 4 rows passed, 1 problem" in text
    assert "not measured in 9 windows; give a larger --seconds" in text
    assert "small kernels: probes, waits: bad (failed in /home/me)" in text
    assert "NVLink and every transfer between GPUs: there was one GPU." in text


@pytest.mark.parametrize(
    ("low", "passed"), [(-0.001, True), (0.01, True), (0.0101, False)], ids=["contains 0", "at the limit", "above"]
)
def test_an_overhead_fails_if_its_whole_interval_is_above_1_percent(low: float, passed: bool) -> None:
    overhead = MeasuredOverhead(estimate=0.02, low=low, high=0.03)
    assert proof_of(GOOD_TRAINING, overhead=overhead).passed is passed


def test_a_proof_without_a_training_or_a_gpu_does_not_pass() -> None:
    assert proof_of(GOOD_TRAINING).passed
    assert not proof_of().passed
    assert not replace(proof_of(GOOD_TRAINING), on_gpu=False).passed


def test_the_json_has_no_name_of_a_host_a_user_or_a_path(place: Path) -> None:
    """Names are planted in every text of the manifests that is a user's."""
    shutil.copytree(place / RUN, place.parent / WINDOWS)
    for manifest in place.parent.rglob("*.json"):
        if manifest.name in ("run.json", "rank.json"):
            planted = json.loads(manifest.read_text())
            planted |= {"host": PLANTED, "command": f"{PLANTED}/train.py --key {PLANTED}"}
            planted |= {"environment": {"PATH": PLANTED}, "settings": {"model": PLANTED}, "git_revision": PLANTED}
            planted |= {"probes": {"waits": f"failed 3 times: OSError: {PLANTED}"}}
            planted |= {"device": {"name": "NVIDIA H100", "uuid": f"GPU-{PLANTED}"}}
            planted |= {"versions": {"torch": "2.13.0", "cuda": "12.8", PLANTED: PLANTED}}
            manifest.write_text(json.dumps(planted))
    proof = judge(place.parent, on_gpu=True, driver="550.54.15")
    document = json.dumps(to_proof_document(proof))
    assert PLANTED in shown(proof)
    for name in (PLANTED, socket.gethostname(), str(place.parent), str(Path.home()), f"/{getpass.getuser()}"):
        assert name not in document
    assert json.loads(document)["gpus"] == ["NVIDIA H100"] * 2
    assert json.loads(document)["versions"] == {"torch": "2.13.0", "cuda": "12.8"}
    assert "probes, waits: bad" in json.loads(document)["trainings"][0]["problems"]


# -- the command and its processes ----------------------------------------------------------------


def ended(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["doctor", *words])
    return int(str(end.value.code))


def test_without_a_gpu_one_sentence_is_printed_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert ended("--gpu", "--out", str(tmp_path / "proof.json")) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("traincope doctor: nothing was proved: torch ")
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("overhead", "code"), [(OVERHEAD, 0), (None, 1)], ids=["passed", "failed"])
def test_the_proof_is_printed_and_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    overhead: MeasuredOverhead | None,
    code: int,
) -> None:
    proof = proof_of(GOOD_TRAINING, overhead=overhead)
    monkeypatch.setattr(doctor, "prove", lambda **_: proof)
    out = tmp_path / "proof.json"
    assert ended("--gpu", "--out", str(out)) == code
    assert json.loads(out.read_text()) == json.loads(json.dumps(to_proof_document(proof)))
    assert f"written: {out}" in capsys.readouterr().out


def test_a_failed_training_leaves_one_sentence_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> Proof:
        raise TrainingError("rank 1 ran out of GPU memory")

    monkeypatch.setattr(doctor, "prove", fail)
    assert ended("--gpu", "--out", str(tmp_path / "proof.json")) == TrainingError.exit_code
    assert capsys.readouterr().err == "traincope doctor: rank 1 ran out of GPU memory\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--out", "x.json"], "--out and --seconds belong to --gpu"),
        (["--gpu", "somewhere"], "--gpu examines this machine, not a run"),
        (["--gpu", "--seconds", "0"], "--seconds must be above 0 and at most 600"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(*words) == 2
    assert sentence in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused_before_the_trainings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert ended("--gpu", "--out", str(tmp_path / "absent" / "proof.json")) == 2
    assert "give another --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried\nmore"), "rank 3 ran out of GPU memory; end other programs"),
        (torch.AcceleratorError("CUDA error: out of memory\nmore"), "rank 3 cannot use its GPU; end other programs"),
        (dist.DistBackendError("NCCL error in: x.cpp\nmore"), "rank 3 failed in torch.distributed; set NCCL_DEBUG"),
    ],
)
def test_the_first_rank_that_fails_leaves_its_reason(tmp_path: Path, error: Exception, sentence: str) -> None:
    for failure in (error, torch.OutOfMemoryError("later")):
        with pytest.raises(TrainingError), leaving_reason(tmp_path, rank=3):
            raise failure
    reason = (tmp_path / REASON_FILE).read_text()
    assert reason.startswith(sentence)
    assert reason.endswith(f"({str(error).splitlines()[0]})")


def test_other_errors_keep_their_type(tmp_path: Path) -> None:
    with pytest.raises(KeyError), leaving_reason(tmp_path, rank=0):
        raise KeyError("x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("memory", r"rank \d ran out of GPU memory.*Tried to allocate 2.00 GiB\)"),
        ("nccl", r"rank \d failed in torch.distributed.*unhandled system error"),
        ("killed", r"rank \d was killed by SIGKILL"),
        ("sleeps", "did not end within 12 s and were stopped"),
    ],
)
def test_a_child_that_fails_is_one_clear_error(tmp_path: Path, how: str, sentence: str) -> None:
    (tmp_path / "how.txt").write_text(how)
    seconds = 10 if how == "sleeps" else 120
    with pytest.raises(TrainingError, match=sentence):
        run_ranks(tmp_path, ranks=2, seconds=2, device=CPU, module=FAILING, other_seconds=seconds)


@pytest.mark.sweep
def test_the_whole_flow_runs_on_the_cpu_and_proves_nothing(tmp_path: Path) -> None:
    """Two ranks over gloo. The ledger is the hosts', so no row can pass."""
    run_ranks(tmp_path, ranks=2, seconds=5, device=CPU)
    proof = judge(tmp_path, on_gpu=False, driver=None)
    assert proof.ranks == 2
    assert [problem.reason for _, problem in proof.problems] == [
        "the ledger is on the hosts' clocks: no rank used a GPU"
    ]
    assert proof.windows > 0
    assert (proof.on_gpu, proof.checks, proof.passed) == (False, (), False)
    with pytest.raises(DataError, match=r"rank1\.json is not a trace of a GPU"):
        TracedMarks(tmp_path / "small kernels" / trace_name(1))
