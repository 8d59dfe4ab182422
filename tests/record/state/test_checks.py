"""Checks of real trainings in one process: what is written, what is not disturbed, and what counts as corruption."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import traincope
from traincope import analyze, open_run
from traincope.analysis.faults.anomalies.corruption import StateChecks
from traincope.analysis.faults.faults import FaultKind
from traincope.record.session.options import Options, resolved_corruption_check_steps
from traincope.record.state import check_file
from traincope.store import read_run
from traincope.store.job.state_checks import HeldCheck, StateCheck
from traincope.store.layout import OLD_STATE_CHECKS_FILE, STATE_CHECKS_FILE

STEPS = 6
Between = Callable[[int, nn.Module, torch.optim.Optimizer], None]
"""Action between two steps, called with the number of the step, the model and its optimizer."""


def train(out: Path, *, every: int | None = 2, between: Between = lambda *_: None, steps: int = STEPS) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    with traincope.run(out, agent=False, corruption_check_steps=every) as run:
        for step in range(steps):
            loss = model(torch.randn(4, 6)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            run.step()
            between(step, model, optimizer)
    return losses


def judged(out: Path) -> StateChecks:
    checks = analyze(open_run(out)).state_checks
    assert checks is not None
    return checks


def found(out: Path) -> list[tuple[FaultKind, tuple[int, ...], int | None, str]]:
    faults = analyze(open_run(out)).faults
    return [(fault.kind, fault.ranks, fault.step, fault.what) for fault in faults if fault.is_fault]


def test_checks_are_off_unless_they_are_requested(tmp_path: Path) -> None:
    train(tmp_path, every=None)
    assert analyze(open_run(tmp_path)).state_checks is None
    assert not list(tmp_path.rglob(STATE_CHECKS_FILE))
    (rank,) = read_run(tmp_path).ranks
    assert rank.info.probes["corruption_checks"].startswith("off: nothing to watch")


def test_checks_change_no_bit_of_the_training(tmp_path: Path) -> None:
    assert train(tmp_path / "checked", every=1) == train(tmp_path / "plain", every=None)


def test_every_second_step_is_checked_and_compared_and_all_bytes_are_held(tmp_path: Path) -> None:
    train(tmp_path)
    (rank,) = read_run(tmp_path).ranks
    assert rank.state_checks is not None
    checks = rank.state_checks.read()
    assert [(type(check), check.step) for check in checks] == [
        *((StateCheck, 0), (HeldCheck, 0), (StateCheck, 2), (HeldCheck, 2), (StateCheck, 4), (HeldCheck, 4))
    ]
    tensors = checks[0].layout.tensors
    assert [tensor.name for tensor in tensors[:4]] == [
        *("0.weight", "step of 0.weight", "exp_avg of 0.weight", "exp_avg_sq of 0.weight")
    ]
    result = judged(tmp_path)
    num_parameters = 6 * 8 + 8 + 8 + 1
    assert (result.parameters.num_bytes, result.parameters.held_bytes) == (4 * num_parameters, 4 * num_parameters)
    assert result.optimizer_state.num_bytes == 2 * 4 * num_parameters + 4 * 4  # and a count of steps for each of four
    assert result.optimizer_state.held_ratio == 1.0
    assert result.parameters.voted_ratio == 0.0
    assert (result.num_checks, result.first_step, result.last_step, result.edited_checks) == (3, 0, 4, 0)
    assert found(tmp_path) == []


def flip(tensor: torch.Tensor, *, byte: int, bit: int) -> None:
    """Flip a bit in memory, behind torch."""
    ctypes.c_uint8.from_address(tensor.data_ptr() + byte).value ^= 1 << bit


@pytest.mark.parametrize("state", [None, "exp_avg"])
def test_a_bit_that_flips_between_the_update_and_the_next_one_is_named(tmp_path: Path, state: str | None) -> None:
    def corrupt(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if step == 2:
            weight = model[2].weight  # type: ignore[index]
            flip(weight if state is None else optimizer.state[weight][state], byte=9, bit=3)

    train(tmp_path, between=corrupt)
    name = "2.weight" if state is None else f"{state} of 2.weight"
    what = f"bit 11 of an element of {name} (float32) flipped on rank 0"
    assert found(tmp_path) == [(FaultKind.CORRUPTED_STATE, (0,), 2, what)]
    (finding, *_) = analyze(open_run(tmp_path)).verdict
    assert (finding.kind.value, finding.ranks, finding.steps) == ("corrupted_state", (0,), (2,))


def test_a_bit_that_flips_in_a_step_without_a_check_is_not_seen_without_replicas(tmp_path: Path) -> None:
    train(tmp_path, between=lambda step, model, _: flip(model[2].weight, byte=9, bit=3) if step == 3 else None)  # type: ignore[index]
    assert found(tmp_path) == []


def through_data(_step: int, model: nn.Module, _: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        parameter.data.clamp_(-0.01, 0.01)


def in_place(_step: int, model: nn.Module, _: torch.optim.Optimizer) -> None:
    with torch.no_grad():
        model[0].weight.neg_()  # type: ignore[index]


def loaded(_step: int, model: nn.Module, _: torch.optim.Optimizer) -> None:
    model.load_state_dict({name: 2 * value for name, value in model.state_dict().items()})


def replaced(_step: int, model: nn.Module, _: torch.optim.Optimizer) -> None:
    model[0].weight.data = -model[0].weight.data  # type: ignore[index]


@pytest.mark.parametrize("write", [through_data, in_place, loaded, replaced])
def test_what_the_program_writes_between_steps_is_not_corruption(tmp_path: Path, write: Between) -> None:
    train(tmp_path, between=write)
    assert found(tmp_path) == []
    result = judged(tmp_path)
    assert result.edited_checks == 3
    assert (result.parameters.held_ratio or 0.0) < 1.0
    assert result.optimizer_state.held_ratio == 1.0


def test_the_files_stay_within_their_bound_and_keep_the_newest_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_file, "MAX_FILE_BYTES", 4_000)
    train(tmp_path, every=1, steps=40)
    (rank,) = read_run(tmp_path).ranks
    assert rank.state_checks is not None
    directory = rank.state_checks.directory
    assert all((directory / name).stat().st_size < 6_000 for name in (STATE_CHECKS_FILE, OLD_STATE_CHECKS_FILE))
    steps = [check.step for check in rank.state_checks.read() if isinstance(check, StateCheck)]
    assert steps == [*range(steps[0], 40)]
    assert 0 < steps[0] < 36


KILLED = """
import sys
from pathlib import Path
from tests.record.state.test_checks import train
import os, signal
train(Path(sys.argv[1]), between=lambda step, *_: os.kill(os.getpid(), signal.SIGKILL) if step == 3 else None)
"""


def test_a_killed_process_leaves_all_its_checks(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, env=dict(os.environ))
    assert ended.returncode == -signal.SIGKILL
    (rank,) = read_run(tmp_path).ranks
    assert rank.state_checks is not None
    assert [check.step for check in rank.state_checks.read()] == [0, 0, 2, 2]


class Fails(torch.optim.SGD):
    """An optimizer whose groups cannot be listed while it does not step."""

    broken = False

    def __getattribute__(self, name: str) -> object:
        if name == "param_groups" and type(self).broken:
            raise RuntimeError("not now")
        return super().__getattribute__(name)


def test_an_optimizer_that_cannot_be_read_does_not_stop_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(2, 1)
    optimizer = Fails(model.parameters(), 1e-2)
    optimizer.register_step_post_hook(lambda *_: monkeypatch.setattr(Fails, "broken", True))
    optimizer.register_step_pre_hook(lambda *_: monkeypatch.setattr(Fails, "broken", False))
    with traincope.run(tmp_path, agent=False, corruption_check_steps=1) as run:
        for _ in range(3):
            model(torch.randn(4, 2)).square().mean().backward()
            optimizer.step()
            run.step()
    (rank,) = read_run(tmp_path).ranks
    assert rank.info.probes["checks.StateChecks._take"] == "failed 3 times: RuntimeError"
    assert analyze(open_run(tmp_path)).state_checks is None


@pytest.mark.parametrize(
    ("given", "variable", "expected"),
    [
        *((None, "", None), (100, "", 100), (100, "off", None), (None, "50", 50), (100, "50", 50)),
        *((0, "", None), (True, "", None), (100, "sometimes", 100)),
    ],
)
def test_the_variable_takes_precedence(
    monkeypatch: pytest.MonkeyPatch, given: int | None, variable: str, expected: int | None
) -> None:
    monkeypatch.setenv("TRAINCOPE_CORRUPTION_CHECK_STEPS", variable)
    assert resolved_corruption_check_steps(Options(corruption_check_steps=given)) == expected
