"""python -m evaluation.truth.formulas.predicted [CSV]: published step times, and those that `plan` predicts.

Each family of devices has 11 free constants (`layout.families`), fitted on published trainings. No row is scored with
constants that it helped to fit. Groups of rows are left out in turn, by the size of the model and by the number of
GPUs. `source` goes further: it leaves out all rows of a table, so all trainings with that software on that cluster.

Layouts that were tried for BLOOM are predicted without their group too, and no constant is fitted on them.

The interval of a prediction contains four fifths of the errors of a *new group*, not of a new row: rows of a group err
alike, so a few groups with many rows say little about the next one. `spread` has the formula. Its coverage is the share
of the rows of a group that lie inside the interval that the other groups give.

Trainings of `unfitted` are also predicted with the shipped constants. Steps in deterministic mode have no interval.

CSV: more rows of llm-foundry's table, in the columns of llm_foundry.csv. They are predicted with the shipped constants,
and change nothing else.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import comb, exp, inf
from pathlib import Path
from statistics import mean
from types import MappingProxyType

import numpy as np
from rich.console import Console
from rich.table import Table

from evaluation.truth.formulas.fitting import NAMES, Predictor, fit, value
from evaluation.truth.formulas.ranked import Ranking, rankings
from evaluation.truth.formulas.trainings import BLOOM, Training, llm_foundry, trainings
from evaluation.truth.formulas.unfitted import BLOOM_SEARCH, bloom_search, unfitted
from traincope.plan.layout.families import AMPERE, HOPPER, LEVEL, Family

MEDIAN, P90, BIAS = 0.08, 0.20, 0.03
"""Largest errors of step times that are allowed, over all groups by size and by number of GPUs."""
NEAR, GOOD = 0.05, 0.8
"""Loss up to which a layout counts as the best one, and the share of sets in which the predicted best must be that."""
SIZES = (0.5, 2, 5, 10, 20, 50, 120, 260)
"""Limits of the groups of models, in billions of parameters."""
COUNTS = (8, 32, 128, 512)
"""Limits of the groups of numbers of GPUs."""
ROUNDS = 4
SOURCE = "source"

BEFORE: Mapping[tuple[str, str], float] = MappingProxyType(
    {
        ("Megatron 2021", "1.7B, full"): 0.042,
        ("Megatron 2021", "3.6B, full"): 0.038,
        ("Megatron 2021", "7.5B, full"): 0.017,
        ("Megatron 2021", "18.4B, full"): 0.017,
        ("Megatron 2021", "39.1B, full"): 0.005,
        ("Megatron 2021", "76.1B, full"): 0.012,
        ("Megatron 2021", "145.6B, full"): 0.007,
        ("Megatron 2021", "310.1B, full"): 0.015,
        ("Megatron 2021", "529.6B, full"): 0.095,
        ("Megatron 2021", "1008B, full"): 0.002,
        ("Korthikanti 2022", "22B, full"): 0.013,
        ("Korthikanti 2022", "22B, selective"): 0.022,
        ("Korthikanti 2022", "175B, full"): 0.067,
        ("Korthikanti 2022", "175B, selective"): 0.010,
        ("Korthikanti 2022", "530B, full"): 0.179,
        ("Korthikanti 2022", "530B, selective"): 0.015,
        ("Korthikanti 2022", "1T, full"): 0.091,
        ("Korthikanti 2022", "1T, selective"): 0.010,
        ("BLOOM 2022", "176B, full"): 0.055,
        ("Llama 3 2024", "405B, 8192 GPUs, cp 1"): 0.050,
        ("Llama 3 2024", "405B, 16384 GPUs, cp 1"): 0.016,
        ("Llama 3 2024", "405B, 16384 GPUs, cp 16"): 0.335,
    }
)
"""Errors of MFU of the formula with three constants that preceded this one, each row left out alone."""


def _size(training: Training) -> str:
    billions = training.parameters / 1e9
    limit = next((limit for limit in SIZES if billions < limit), None)
    return f"from {SIZES[-1]:g}B" if limit is None else f"below {limit:g}B"


def _count(training: Training) -> str:
    limit = next((limit for limit in COUNTS if training.gpus <= limit), None)
    return f"over {COUNTS[-1]} GPUs" if limit is None else f"to {limit} GPUs"


SAME_CLUSTER: Mapping[str, str] = MappingProxyType({BLOOM_SEARCH: BLOOM})
"""Source -> the one with the same software and cluster."""
SCHEMES: Mapping[str, Callable[[Training], str]] = MappingProxyType(
    {"size": _size, "GPUs": _count, SOURCE: lambda training: SAME_CLUSTER.get(training.source, training.source)}
)
"""Name -> the group of a training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A training that was predicted without its group."""

    training: Training
    scheme: str
    group: str
    log_error: float
    """Logarithm of predicted over published time."""

    @property
    def error(self) -> float:
        return exp(self.log_error) - 1

    @property
    def mfu_error(self) -> float:
        """Relative error of the MFU."""
        return exp(-self.log_error) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors of some rows."""

    rows: int
    median: float
    p90: float
    bias: float
    """Median with its sign."""
    inside: int
    """Rows inside the interval that the other groups give."""
    of_groups: float
    """Mean of the groups' shares of rows inside."""


def shipped() -> Mapping[str, Family]:
    return {family.name: family for family in (AMPERE, HOPPER)}


def of_family(predictors: Sequence[Predictor], family: Family) -> list[Predictor]:
    return [each for each in predictors if each.training.family.name == family.name]


def held_out(predictors: Sequence[Predictor], family: Family, *, unfitted: Sequence[Predictor] = ()) -> Iterator[Row]:
    """Predict each training of a family by constants fitted on all groups but its own, and never on `unfitted`."""
    for scheme, group_of in SCHEMES.items():
        groups = defaultdict(list)
        for each in (*predictors, *unfitted):
            groups[group_of(each.training)].append(each)
        for group, members in groups.items():
            others = [each for each in predictors if group_of(each.training) != group]
            fitted = fit(others, family, rounds=ROUNDS)
            for each in members:
                yield Row(training=each.training, scheme=scheme, group=group, log_error=each.log_error(fitted))


def spread(rows: Sequence[Row]) -> float:
    """Absolute log error that LEVEL of the rows of a new group do not exceed; infinite with too few groups for that.

    Each of K groups weighs 1 / (K + 1), spread evenly over its rows, and the rest is the new group's, whose errors may
    be as large as they like: Lee, Barber and Willett 2023, arXiv:2306.06342 (hierarchical conformal prediction).
    """
    groups = Counter((row.training.family.name, row.scheme, row.group) for row in rows)
    weighed = sorted(
        (abs(row.log_error), 1 / groups[row.training.family.name, row.scheme, row.group] / (len(groups) + 1))
        for row in rows
    )
    reached = accumulate(weight for _, weight in weighed)
    return next((error for (error, _), sum_ in zip(weighed, reached, strict=True) if sum_ >= LEVEL - 1e-9), inf)


def width(rows: Sequence[Row], of_all_families: Sequence[Row]) -> float:
    """`spread` of a family's rows, or of all families' if its groups are too few."""
    own = spread(rows)
    return own if own < inf else spread(of_all_families)


def known_software(rows: Sequence[Row]) -> list[Row]:
    """Rows whose software and cluster had other rows in the fit."""
    return [row for row in rows if row.scheme != SOURCE]


def score(rows: Sequence[Row], of_interval: Sequence[Row], of_all_families: Sequence[Row]) -> Score:
    """Score of `rows`, a part of `of_interval`, from whose other groups each interval comes. `of_all_families`: as
    `of_interval`, of all families.
    """
    errors = np.array([row.error for row in rows])
    inside: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for group in dict.fromkeys((row.scheme, row.group) for row in rows):
        mine = [row for row in rows if (row.scheme, row.group) == group]
        family = mine[0].training.family.name
        most = width(
            [row for row in of_interval if (row.scheme, row.group) != group],
            [row for row in of_all_families if (row.training.family.name, row.scheme, row.group) != (family, *group)],
        )
        inside[group] = [abs(row.log_error) <= most for row in mine]
    return Score(
        rows=len(errors),
        median=float(np.median(np.abs(errors))),
        p90=float(np.quantile(np.abs(errors), 0.9)),
        bias=float(np.median(errors)),
        inside=sum(sum(each) for each in inside.values()),
        of_groups=mean(mean(each) for each in inside.values()),
    )


def binomial_interval(inside: int, rows: int, *, level: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's interval of a share, by bisection."""

    def tail(share: float, first: int) -> float:
        """Probability of `first` or more."""
        return sum(comb(rows, k) * share**k * (1 - share) ** (rows - k) for k in range(first, rows + 1))

    def where(reached: Callable[[float], bool]) -> float:
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if reached(middle) else (middle, high)
        return low

    beyond = (1 - level) / 2
    lower = where(lambda share: tail(share, inside) >= beyond) if inside else 0.0
    upper = where(lambda share: 1 - tail(share, inside + 1) <= beyond) if inside < rows else 1.0
    return lower, upper


# -- text -----------------------------------------------------------------------------------------


def groups_table(rows: Sequence[Row], family: Family) -> Table:
    """Errors and coverage by group of a family. `rows`: those of all families."""
    table = _table(f"{family.name}: step time by group left out", "left out", "group", "inside", "95 %", "of groups")
    for scheme in SCHEMES:
        alike = [row for row in rows if (row.scheme == SOURCE) == (scheme == SOURCE)]
        others = [row for row in alike if row.training.family.name == family.name]
        of_scheme = [row for row in others if row.scheme == scheme]
        for group in dict.fromkeys(row.group for row in sorted(of_scheme, key=_order(scheme))):
            each = score([row for row in of_scheme if row.group == group], others, alike)
            table.add_row(scheme, group, *_cells(each), *_inside(each), "")
        each = score(of_scheme, others, alike)
        table.add_row(scheme, "all", *_cells(each), *_inside(each), f"{each.of_groups:.0%}", style="bold")
    return table


def _order(scheme: str) -> Callable[[Row], float]:
    """Key by which the groups of a scheme stand in order."""
    if scheme == SOURCE:
        return lambda _: 0
    return lambda row: row.training.gpus if scheme == "GPUs" else row.training.parameters


def _table(title: str, first: str, second: str, *more: str) -> Table:
    table = Table(title=title, box=None)
    for head in (first, second, "n", "median", "p90", "bias", *more):
        table.add_column(head, justify="left" if head in (first, second) else "right", no_wrap=True)
    return table


def _cells(each: Score) -> tuple[str, ...]:
    return str(each.rows), f"{each.median:.1%}", f"{each.p90:.1%}", f"{each.bias:+.1%}"


def _inside(each: Score) -> tuple[str, str]:
    low, high = binomial_interval(each.inside, each.rows)
    return f"{each.inside / each.rows:.0%}", f"{low:.0%} to {high:.0%}"


def rows_table(rows: Sequence[Row]) -> Table:
    table = Table(title="Errors of step times, by the group left out", box=None)
    for head in ("source", "training", "published", *SCHEMES):
        table.add_column(head, justify="left" if head in (SOURCE, "training") else "right", no_wrap=True)
    errors: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        errors[row.training.source, row.training.name][row.scheme] = row
    for (source, name), of_schemes in errors.items():
        cells = (f"{of_schemes[scheme].error:+.1%}" for scheme in SCHEMES)
        seconds = next(iter(of_schemes.values())).training.seconds
        table.add_row(source, name, f"{seconds:.2f} s", *cells)
    return table


def worse_than_before(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the rows scored before whose MFU is now off by 5 points more, with their group left out."""
    for row in known_software(rows):
        before = BEFORE.get((row.training.source, row.training.name))
        if before is not None and abs(row.mfu_error) > before + 0.05:
            yield (
                f"{row.training.source}, {row.training.name}: MFU off by {abs(row.mfu_error):.1%} without its group by "
                f"{row.scheme}, {before:.1%} before"
            )


def ranking_lines(found: Sequence[Ranking]) -> Iterator[str]:
    good = sum(each.loss <= NEAR for each in found)
    exact = sum(each.loss == 0 for each in found)
    yield (
        f"{len(found)} sets of layouts: the predicted best is the measured best in {exact}, and within 5 % of it in "
        f"{good} ({good / len(found):.0%}; {GOOD:.0%} are wanted)"
    )
    for each in found:
        if each.loss > NEAR:
            yield f"  {each.name}: {each.chosen} is {each.loss:.1%} slower than {each.best}"


def unfitted_table() -> Table:
    """Errors of the shipped constants on trainings that no constant is fitted on, by source and family."""
    table = _table("Not in the fit, by the shipped constants", SOURCE, "family")
    groups = defaultdict(list)
    for training in unfitted():
        family = shipped()[training.family.name]
        groups[training.source, family.name].append(exp(Predictor(training).log_error(family)) - 1)
    for group, errors in groups.items():
        sizes = np.abs(errors)
        cells = f"{np.median(sizes):.1%}", f"{np.quantile(sizes, 0.9):.1%}", f"{np.median(errors):+.1%}"
        table.add_row(*group, str(len(errors)), *cells)
    return table


def more_rows(path: Path) -> Iterator[str]:
    errors, inside = [], 0
    for training in llm_foundry(path):
        family = shipped()[training.family.name]
        log_error = Predictor(training).log_error(family)
        errors.append(exp(log_error) - 1)
        assert family.spread is not None
        inside += abs(log_error) <= family.spread
    low, high = binomial_interval(inside, len(errors))
    yield (
        f"{path}: {len(errors)} rows by the shipped constants; median {np.median(np.abs(errors)):.1%}, p90 "
        f"{np.quantile(np.abs(errors), 0.9):.1%}, bias {np.median(errors):+.1%}; {inside / len(errors):.0%} inside "
        f"their intervals ({low:.0%} to {high:.0%})"
    )


def every_row(predictors: Sequence[Predictor]) -> list[Row]:
    """All trainings of all families, predicted without their groups."""
    tried = [Predictor(training) for training in bloom_search()]
    return [
        row
        for family in shipped().values()
        for row in held_out(of_family(predictors, family), family, unfitted=of_family(tried, family))
    ]


def spreads(rows: Sequence[Row], family: Family) -> tuple[float, float]:
    """`Family.spread` and `Family.other_spread` by the rows of all families."""
    known, foreign = known_software(rows), [row for row in rows if row.scheme == SOURCE]
    of = family.name
    return (
        width([row for row in known if row.training.family.name == of], known),
        width([row for row in foreign if row.training.family.name == of], foreign),
    )


def main(arguments: Sequence[str] = ()) -> int:
    console, predictors = Console(width=130), [Predictor(training) for training in trainings()]
    every = every_row(predictors)
    for family in shipped().values():
        members = of_family(predictors, family)
        console.print(groups_table(every, family))
        fitted = fit(members, family)
        constants = ", ".join(f"{name} {value(fitted, name):.3g}" for name in NAMES)
        print(f"{family.name}: {len(members)} rows, {len(NAMES)} constants: {constants}")
        half, other_half = spreads(every, family)
        print(
            f"{family.name}: {LEVEL:.0%} interval +- {exp(half) - 1:.1%} ({half:.4f}); +- {exp(other_half) - 1:.1%} "
            f"({other_half:.4f}) for a software and a cluster that are not in the tables\n"
        )
    console.print(rows_table(every))
    console.print(unfitted_table())
    known = known_software(every)
    errors = np.array([row.error for row in known])
    median, p90, bias = (
        float(np.median(np.abs(errors))),
        float(np.quantile(np.abs(errors), 0.9)),
        float(np.median(errors)),
    )
    print("fp8, experts, ZeRO++, offload, and devices other than A100 and H100: not held to reality")
    worse, ranked = list(worse_than_before(every)), list(rankings(shipped()))
    for line in (
        *worse,
        *ranking_lines(ranked),
        *(m for path in arguments for m in more_rows(Path(path))),
    ):
        print(line)
    print(
        f"{len(known) // 2} trainings, left out by size and by GPUs: step time off by {median:.1%} in the median "
        f"({MEDIAN:.0%} allowed), {p90:.1%} at the 90th percentile ({P90:.0%}), bias {bias:+.1%} ({BIAS:.0%}); "
        f"{len(worse)} rows worse than before"
    )
    good = sum(each.loss <= NEAR for each in ranked) >= GOOD * len(ranked)
    return int(median > MEDIAN or p90 > P90 or abs(bias) > BIAS or bool(worse) or not good)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
