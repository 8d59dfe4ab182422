"""FLOPs by settings of `run.describe()` and logged amounts."""

from dataclasses import replace

import pytest

from tests.analysis.efficiency.test_experts import logged
from tests.timeline.build import Row, rank, run
from traincope.analysis.efficiency.declared_flops import DeclaredFlops, configured_flops, declared_flops, positive
from traincope.timeline import build_timeline


@pytest.mark.parametrize(("value", "number"), [(1, 1.0), (2.5, 2.5), (10**24, 1e24)])
def test_a_positive_number_is_accepted(value: object, number: float) -> None:
    assert positive(value) == number


@pytest.mark.parametrize("value", [0, -1, True, "1", None, [1], 1e300, 1e-300, 10**400])
def test_unusable_values_are_none(value: object) -> None:
    assert positive(value) is None


FORMULA = {"formula_flops_per_token": 10.0, "formula_flops_per_squared_length": 2.0}


def test_squared_lengths_of_a_callback_only_complete_the_formula_of_the_configuration() -> None:
    """One step of 8 tokens. The callback saw 64 squared; packed documents have 20, as the training logs or declares."""
    amounts = [*logged("step_tokens", 8), *logged("step_formula_squared_lengths", 64)]
    documents = logged("step_squared_lengths", 20)
    declared = {"flops_per_token": 10.0, "flops_per_squared_length": 2.0}

    def model(rows: list[Row], **settings: float) -> tuple[float | None, float | str | None]:
        records = run(rank(0, *rows))
        timeline = build_timeline(replace(records, info=replace(records.info, settings=settings | FORMULA)))
        by_formula = configured_flops(timeline, steps=[0], experts=None)
        by_user = declared_flops(timeline, steps=[0], experts=None)
        return by_formula and by_formula.paper, by_user.paper if isinstance(by_user, DeclaredFlops) else by_user

    assert model(amounts) == (10 * 8 + 2 * 64, None)
    assert model([*amounts, *documents], **declared) == (10 * 8 + 2 * 20, 10 * 8 + 2 * 20)
    assert model(amounts, squared_lengths_per_step=20.0, **declared) == (10 * 8 + 2 * 20, 10 * 8 + 2 * 20)
    assert model(logged("step_tokens", 8)) == (None, None)
