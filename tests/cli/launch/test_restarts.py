"""`--max-restarts` under real torchrun: killed trainings continue from the last good checkpoint.

The log of `killed_worker` is the truth. `make test-kill` kills random ranks at random instants.
"""

import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import traincope
from traincope.analysis.efficiency.goodput import goodput
from traincope.engine.checkpoint.manifest import MANIFEST, check_file, read_manifest
from traincope.engine.checkpoint.places.directory import complete_checkpoints, step_of
from traincope.engine.launch import Launch, launch
from traincope.errors import UsageError
from traincope.store.job.launcher import notes_path, read_notes

WORKER = "tests.cli.launch.killed_worker"
STEPS, EVERY = 8, 2
CONFIG = f"""
[model]
layers = 1
hidden = 32
heads = 2
kv_heads = 2
ffn = 32
sequence = 16
dropout = 0.1
[data]
path = "{{text}}"
[parallel]
dp = 2
[train]
steps = {STEPS}
batch = 4
[checkpoint]
every = {EVERY}
"""
TRAININGS = int(os.environ.get("TRAINCOPE_KILLS", "100")) // 50
KILLS_EACH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    attempt: int
    step: int
    loss: float
    at_ns: int


def train(
    directory: Path, *, kills: Sequence[dict[str, Any]], settings: Sequence[str] = (), bad: Sequence[int] = ()
) -> tuple[Path, list[Step]]:
    """Train to the end, with as many restarts as kills. Returns the run directory and the log.

    `bad`: batches whose loss is NaN on rank 1.
    """
    directory.mkdir()
    (directory / "text").write_text("\n".join(f"{n} squared is {n * n}" for n in range(200)))
    (directory / "config.toml").write_text(CONFIG.format(text=directory / "text"))
    run, log = directory / "run", directory / "log"
    overrides = [word for setting in settings for word in ("--set", setting)]
    launch(
        Launch(
            ranks=2,
            arguments=(str(directory / "config.toml"), "--out", str(run), *overrides),
            max_restarts=len(kills),
            module=WORKER,
            notes=notes_path(run),
            environment={"KILLED": json.dumps(kills), "STEPS_LOG": str(log), "BAD_BATCHES": json.dumps(bad)},
        )
    )
    return run, [Step(**json.loads(line)) for line in log.read_text().splitlines()]


def test_a_training_killed_while_it_saves_continues_in_the_same_run(tmp_path: Path) -> None:
    """Rank 0 is killed in the checkpoint of step 6, so the training continues after step 4. Step 5 was complete."""
    run, log = train(tmp_path / "job", kills=[{"rank": 0, "saving": 6}])
    assert [(step.attempt, step.step) for step in log] == [
        *((0, step) for step in range(1, 7)),
        *((1, step) for step in range(5, 9)),
    ]
    first = {step.step: step.loss for step in log if step.attempt == 0}
    assert [step.loss for step in log if step.attempt == 1][:2] == [first[5], first[6]]
    assert [step_of(path) for path in complete_checkpoints(run / "checkpoints")] == [8, 6]
    assert sorted(path.name for path in run.glob("attempt-*")) == ["attempt-000", "attempt-001"]
    assert [(note.attempt, note.rank, note.exit_code) for note in read_notes(notes_path(run)) if note.first] == [
        (0, 0, -9)
    ]
    result = goodput(traincope.open_run(run))
    assert result is not None
    assert [attempt.num_steps for attempt in result.attempts] == [5, 4]
    assert [attempt.resumed_step for attempt in result.attempts] == [None, 4]
    assert (result.steps_done, result.steps_lost, result.steps_kept) == (9, 1, STEPS)
    assert result.productive_ns is not None
    assert result.lost_ns is not None
    assert result.checkpoint_stall_ns > 0
    parts = (result.startup_ns, result.restart_ns, result.checkpoint_stall_ns, result.evaluation_ns, result.other_ns)
    assert result.elapsed_ns == result.productive_ns + result.lost_ns + sum(parts)
    ends = {(step.attempt, step.step): step.at_ns for step in log}
    assert 0 < result.lost_ns < ends[0, 5] - ends[0, 3]
    assert 0 < result.restart_ns < ends[1, 5] - ends[0, 6]


@pytest.mark.sweep
def test_no_restart_continues_the_checkpoints_of_another_launch(tmp_path: Path) -> None:
    """The second training is refused and then restarted by torchrun. It has no --resume."""
    run, _ = train(tmp_path / "first", kills=[])
    folder, second = run / "checkpoints", tmp_path / "second"
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(UsageError, match="the training was refused"):
        train(second, kills=[{"rank": None}], settings=[f"checkpoint.directory={folder}", "train.steps=20"])
    notes = read_notes(notes_path(second / "run"))
    assert {(note.attempt, note.exit_code) for note in notes} == {(0, 2), (1, 2)}
    assert sorted(path.name for path in folder.iterdir()) == before
    assert before == ["claim-00000001", "step-00000006", "step-00000008"]


@pytest.mark.sweep
@pytest.mark.parametrize("training", range(TRAININGS))
def test_after_kills_at_random_instants_the_training_is_the_uninterrupted_one(tmp_path: Path, training: int) -> None:
    rng = random.Random(training)
    kills = [{"rank": rng.randrange(2), "seconds": round(rng.uniform(0, 0.5), 3)} for _ in range(KILLS_EACH)]
    settings = ["train.steps=40", f"checkpoint.asynchronous={'true' if training % 2 else 'false'}"]
    _, undisturbed = train(tmp_path / "undisturbed", kills=[], settings=settings)
    bucket = tmp_path / "bucket"
    run, log = train(tmp_path / "job", kills=kills, settings=[*settings, f"checkpoint.upload=file://{bucket}"])
    for checkpoint in complete_checkpoints(run / "checkpoints"):
        for name, saved in read_manifest(checkpoint).files.items():
            check_file(checkpoint, name, saved, whole=True)
    copies = [path.parent for path in bucket.glob(f"*/{MANIFEST}")]
    assert max(path.name[:13] for path in copies) == "step-00000040"
    for copy in copies:
        for name, saved in read_manifest(copy).files.items():
            check_file(copy, name, saved, whole=True)
    losses = {step.step: step.loss for step in undisturbed}
    assert all(step.loss == losses[step.step] for step in log)
    assert log[-1].step == 40
    limit = EVERY * (2 if training % 2 else 1)
    for before, after in pairwise(log):
        lost = before.step + 1 - after.step
        assert lost == 0 or (before.attempt < after.attempt and 0 < lost <= limit)
