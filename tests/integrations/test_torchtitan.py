"""torchtitan's Trainer with the metrics processor: the same training, recorded with its tokens and what it logs."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.integrations.training import (
    PLAIN,
    RECORDED,
    Training,
    faults,
    logged,
    settings,
    step_numbers,
    tokens_per_step,
    train,
)
from traincope.events import Kind

pytestmark = pytest.mark.integrations

STEPS, TOKENS = 12, 2 * 4 * 16
"""Ranks, sequences and tokens of a sequence."""
LOG_STEPS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("torchtitan")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Training:
    return train(folder / PLAIN, "torchtitan", "torchtitan_fsdp", PLAIN)


@pytest.fixture(scope="module")
def recorded(folder: Path) -> Training:
    return train(folder / RECORDED, "torchtitan", "torchtitan_fsdp", RECORDED)


def test_the_processor_changes_no_bit_of_weights_and_losses(plain: Training, recorded: Training) -> None:
    assert recorded.results == plain.results
    assert len(plain.results[0]["losses"]) == STEPS


def test_each_step_has_its_tokens_and_what_torchtitan_logs(recorded: Training) -> None:
    assert step_numbers(recorded.timeline) == [[*range(STEPS)]] * 2
    values = logged(recorded.timeline, 0)
    losses = [float.fromhex(loss) for loss in recorded.results[0]["losses"]]
    assert values["loss"] == {step: [loss] for step, loss in enumerate(losses)}
    assert values["n_tokens_seen"] == {step: [(step + 1) * TOKENS] for step in range(STEPS)}
    assert values.keys() >= {"largest_loss", "grad_norm", "lr"}
    assert tokens_per_step(recorded.document) == pytest.approx(TOKENS)
    assert settings(recorded.timeline)["trainer"] == "torchtitan 0.2.2"


def test_the_structured_log_becomes_spans_and_values(folder: Path) -> None:
    plain = train(folder / "log-plain", "torchtitan_log", "torchtitan_log", PLAIN)
    recorded = train(folder / "log", "torchtitan_log", "torchtitan_log", RECORDED, under=True)
    assert recorded.results == plain.results
    assert _records(recorded.folder) == _records(plain.folder)
    assert step_numbers(recorded.timeline) == [[*range(LOG_STEPS)]] * 2
    for rank in recorded.timeline.ranks:
        spans = rank.of_kind(Kind.SPAN)
        names = Counter(rank.name(int(number)) for number in spans["name"])
        assert names == {"fwd_bwd": 2 * LOG_STEPS, "optim": LOG_STEPS, "eval": 1}
        assert (spans["end_ns"] > spans["start_ns"]).all()
        assert logged(recorded.timeline, rank.rank) == {
            "local_valid_tokens": {step: [float(step + 1)] for step in range(LOG_STEPS)}
        }
    assert not faults(recorded.document)


def _records(folder: Path) -> list[list[str]]:
    """Kinds of the records in torchtitan's own files, one file per rank."""
    paths = sorted(folder.glob("structured_logs/*.jsonl"))
    assert len(paths) == 2
    return [[json.loads(line)["log_type_name"] for line in path.read_text().splitlines()] for path in paths]
