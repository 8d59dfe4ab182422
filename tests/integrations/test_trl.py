"""TRL's GRPOTrainer under `traincope run`, unchanged: rollouts, rewards, and the rank that scores slowly."""

import json
import re
from pathlib import Path

import pytest

from tests.integrations.training import PLAIN, Training, train
from traincope.analysis import analyze

pytestmark = pytest.mark.integrations

SLOW = "slow"
SLOWER_SECONDS = 0.1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trl")


@pytest.fixture(scope="module")
def slow(folder: Path) -> Training:
    return train(folder / SLOW, "trl", "grpo", SLOW, under=True)


def test_recording_changes_no_bit_of_weights_and_losses(folder: Path) -> None:
    plain = train(folder / PLAIN, "trl", "grpo", PLAIN)
    recorded = train(folder / "recorded", "trl", "grpo", PLAIN, under=True)
    assert recorded.results == plain.results
    assert len(plain.results[0]["losses"]) == 40


def test_the_parts_of_a_step_are_terms_and_little_is_left(slow: Training) -> None:
    ledger = analyze(slow.timeline).ledger
    assert all(ledger.total(term) for term in ("generate", "reward", "forward", "backward", "optimizer"))
    assert (ledger.share("unattributed") or 0.0) <= 0.05


def test_the_reward_is_what_its_function_measures(slow: Training) -> None:
    """Rank 1 is the slow one, so the rest of its part, a gather of a few bytes, takes little."""
    _, late = analyze(slow.timeline).ledger.ranks
    measured = sum(json.loads((slow.folder / "reward-1.json").read_text())[: len(late.numbers)])
    own = late.own("reward")
    assert own is not None
    assert own.sum() / 1e9 == pytest.approx(measured, rel=0.05)


def test_the_rank_that_scores_slowly_is_named_with_its_part_and_its_line(slow: Training) -> None:
    first = slow.document["verdict"][0]
    assert (first["kind"], first["ranks"]) == ("straggler", [1])
    assert "grpo.py" in first["evidence"]
    longer = re.search(r"reward takes ([\d.]+) ms on rank 1, ([\d.]+) ms on the others", first["evidence"])
    assert longer is not None
    assert float(longer[1]) - float(longer[2]) == pytest.approx(1e3 * SLOWER_SECONDS, rel=0.1)
