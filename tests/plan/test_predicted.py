"""Predicted step times of published trainings. `make truth-plan` prints the tables."""

import csv
from collections import Counter, defaultdict
from collections.abc import Sequence
from math import exp, inf, log
from pathlib import Path

import numpy as np
import pytest

from evaluation.truth.formulas.fitting import NAMES, Predictor, fit, value
from evaluation.truth.formulas.predicted import (
    BIAS,
    MEDIAN,
    P90,
    Row,
    binomial_interval,
    every_row,
    known_software,
    more_rows,
    of_family,
    shipped,
    spread,
    spreads,
    width,
    worse_than_before,
)
from evaluation.truth.formulas.ranked import rankings
from evaluation.truth.formulas.trainings import LLM_FOUNDRY, Training, trainings
from evaluation.truth.formulas.unfitted import BLOOM_SEARCH, ORDERED, bloom_search, unfitted
from traincope.plan.layout.families import AMPERE, HOPPER, LEVEL, Family
from traincope.plan.search.caveats import CHECKED, MEDIAN_ERROR_RATIO, P90_ERROR_RATIO, Checked
from traincope.plan.search.clusters import ACCELERATORS


@pytest.fixture(scope="module")
def predictors() -> list[Predictor]:
    return [Predictor(training) for training in trainings()]


@pytest.mark.sweep
def test_trainings_are_predicted_without_their_groups(predictors: list[Predictor]) -> None:
    """Within the errors and with the intervals that the answers state. One published MFU got worse, by 5.5 points."""
    rows = every_row(predictors)
    for family in shipped().values():
        assert spreads(rows, family) == pytest.approx((family.spread, family.other_spread), abs=0.003)
    errors = np.array([row.error for row in known_software(rows)])
    median, p90 = float(np.median(np.abs(errors))), float(np.quantile(np.abs(errors), 0.9))
    assert (median, p90) == pytest.approx((MEDIAN_ERROR_RATIO, P90_ERROR_RATIO), abs=0.002)
    assert median <= MEDIAN
    assert p90 <= P90
    assert abs(np.median(errors)) <= BIAS
    assert {line.split(":")[0] for line in worse_than_before(rows)} <= {"Megatron 2021, 76.1B, full"}


@pytest.mark.slow
@pytest.mark.parametrize("family", [AMPERE, HOPPER], ids=lambda family: family.name)
def test_the_constants_are_those_of_the_fit(family: Family, predictors: list[Predictor]) -> None:
    members = of_family(predictors, family)
    fitted = fit(members, family, rounds=2)
    for name in NAMES:
        assert value(fitted, name) == pytest.approx(value(family, name), rel=0.02), name
    assert family.source.startswith(f"{len(members)} published trainings")


def test_most_trainings_lie_in_the_interval_of_the_constants_fitted_on_them(predictors: list[Predictor]) -> None:
    for family in shipped().values():
        errors = [abs(each.log_error(family)) for each in of_family(predictors, family)]
        assert family.spread is not None
        assert np.mean([error <= family.spread for error in errors]) >= LEVEL - 0.05


@pytest.mark.slow
def test_the_predicted_best_layout_of_a_set_is_nearly_the_measured_best() -> None:
    found = list(rankings(shipped()))
    assert len(found) == 29
    assert sum(each.loss <= 0.05 for each in found) / len(found) >= 0.8


def test_steps_of_trainings_outside_the_fit() -> None:
    """32 layouts that were tried for BLOOM, and Megatron-LM's 7B tests in deterministic mode."""
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    for training in unfitted():
        error = abs(Predictor(training).log_error(shipped()[training.family.name]))
        errors[training.source, training.family.name].append(error)
    assert {group: len(each) for group, each in errors.items()} == {
        (BLOOM_SEARCH, "Ampere"): 32,
        (ORDERED, "Ampere"): 2,
        (ORDERED, "Hopper"): 2,
    }
    assert [float(np.median(each)) for each in errors.values()] == pytest.approx([0.055, 0.09, 0.015], abs=0.01)


def test_no_row_of_the_fit_is_missing(predictors: list[Predictor]) -> None:
    sources = Counter(each.training.source for each in predictors)
    rows = list(csv.DictReader(LLM_FOUNDRY.read_text().splitlines()))
    assert sources["llm-foundry 2023"] == len(rows) == 65
    names = {(each.training.source, each.training.name) for each in predictors}
    assert len(names) == len(predictors) == CHECKED.trainings - len(list(bloom_search()))


def test_more_rows_are_scored_and_not_fitted(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("\n".join(LLM_FOUNDRY.read_text().splitlines()[:4]) + "\n")
    (line,) = more_rows(file)
    assert line.startswith(f"{file}: 3 rows by the shipped constants; median ")


def test_a_binomial_interval_contains_the_share() -> None:
    """Of 10, 8: 44 to 97 % (Clopper and Pearson 1934); of 10, all: the lower limit has 0.025 = share ** 10."""
    assert binomial_interval(8, 10) == pytest.approx((0.444, 0.975), abs=0.001)
    assert binomial_interval(10, 10) == pytest.approx((exp(log(0.025) / 10), 1.0), abs=0.001)


def rows_of(*groups: Sequence[float], training: Training) -> list[Row]:
    return [
        Row(training=training, scheme="size", group=str(number), log_error=error)
        for number, errors in enumerate(groups)
        for error in errors
    ]


def test_an_interval_counts_groups_and_not_rows(predictors: list[Predictor]) -> None:
    """Of 4 groups each weighs 1 / 5, so 80 % of a new group need all of them. Many rows of one group weigh no more."""
    training = predictors[0].training
    four = rows_of([0.01] * 50, [0.02], [0.03], [-0.2, 0.1], training=training)
    assert spread(four) == 0.2
    # With 9 groups of 1 / 10 each, the eighth is the last that counts.
    nine = rows_of(*([number / 100] for number in range(1, 10)), training=training)
    assert spread(nine) == 0.08


def test_three_groups_are_too_few_for_an_interval(predictors: list[Predictor]) -> None:
    training = predictors[0].training
    few, more = (rows_of(*([0.1] for _ in range(number)), training=training) for number in (3, 4))
    assert spread(few) == inf
    assert width(few, more) == 0.1


def test_only_devices_of_the_trainings_have_an_interval() -> None:
    held = {each.spec.name for each in ACCELERATORS.values() if each.family.spread is not None}
    assert held == {"A100 80GB SXM", "H100 SXM"}


def test_the_sizes_that_the_answer_names_are_those_of_the_trainings(predictors: list[Predictor]) -> None:
    rows = [*(each.training for each in predictors), *bloom_search()]
    layouts = [layout for training in rows for layout in training.layouts]
    assert (
        Checked(
            trainings=len(rows),
            gpus=(min(layout.ranks for layout in layouts), max(layout.ranks for layout in layouts)),
            tp=max(layout.tp for layout in layouts),
            pp=max(layout.pp for layout in layouts),
            cp=max(layout.cp for layout in layouts),
            zero=frozenset(layout.zero for layout in layouts),
            schedules=frozenset(layout.order_name for layout in layouts),
        )
        == CHECKED
    )
    assert not any(training.shape.experts for training in rows)
