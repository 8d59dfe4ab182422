"""The plan page's fields, and what they make of a model."""

import pytest

from traincope.errors import UsageError
from traincope.viewer.pages.plan import PRESETS, prediction

MIXTRAL = PRESETS["8x7B on 64"]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_fits_its_gpus(name: str) -> None:
    assert prediction(PRESETS[name]).fits


def test_experts_are_sent_over_an_axis_of_their_own_and_their_memory_is_shared_by_it() -> None:
    spread, whole = prediction(MIXTRAL), prediction({**MIXTRAL, "ep": "1"})
    assert "ep" in spread.axis_seconds
    assert "ep" not in whole.axis_seconds
    assert max(rank.total for rank in spread.memory) < max(rank.total for rank in whole.memory)


def test_a_model_without_experts_has_no_axis_of_theirs() -> None:
    with pytest.raises(UsageError, match="ep = 8 needs experts; the model has none"):
        prediction({**MIXTRAL, "experts": "0"})
