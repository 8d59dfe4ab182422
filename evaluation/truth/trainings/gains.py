"""python -m evaluation.truth gains: the gain of the verdict's finding, compared with the training without the cause.

Each training runs on gloo ranks with a cause and without it, in turn. The gain that the verdict of the first states may
differ from the true one by a fifth of it, or by 1 % of the step if that is more. The first pair on a
quiet machine counts; without one, that of median gain of three. `noise` is that of `what_if.py`.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evaluation.truth.rows import Row
from evaluation.truth.trainings.on_paper import wired
from evaluation.truth.trainings.predicted import WITHIN_GAIN, WITHIN_STEP
from evaluation.truth.trainings.weighing import WITHIN
from evaluation.truth.trainings.what_if import NAMED, Effect, run
from evaluation.truth.trainings.workloads import MS, Workload
from tests.distributed.ranks.pool import Pool
from traincope.analysis.verdict.findings import FindingKind as Kind

STEPS = 24
ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cure:
    """A training, the finding about its cause, and the training without the cause."""

    name: str
    """Of the workload."""
    kind: Kind
    without: Mapping[str, Any]
    """Fields of the workload without the cause."""
    removed: Mapping[tuple[int | None, str], float] = field(default_factory=dict)
    """The same change as (rank, term) -> factor."""
    at_most: bool = False
    """The finding states a bound: the advice may not remove the whole cause."""

    @property
    def training(self) -> Workload:
        return NAMED[self.name]

    @property
    def cured(self) -> Workload:
        return replace(self.training, **self.without)

    @property
    def title(self) -> str:
        return f"{self.kind} of {self.name}"

    @property
    def on_paper(self) -> tuple[Workload, Workload]:
        """The same with the links of a training on paper, which take some time."""
        links = wired(self.training).links_ns
        return wired(self.training), replace(self.cured, links_ns={**links, **dict(self.without.get("links_ns", {}))})


def _straggler(name: str, rank: int, term: str, factor: float = 0.0, **without: Any) -> Cure:
    return Cure(name=name, kind=Kind.STRAGGLER, without=without, removed={(rank, term): factor})


def _slow_link(name: str) -> Cure:
    links = dict.fromkeys(NAMED[name].links_ns, 0)
    removed = {(None, f"exposed_transfer[{axis}]"): 0.0 for axis, _ in links}
    return Cure(name=name, kind=Kind.EXPOSED_TRANSFER, without={"links_ns": links}, removed=removed, at_most=True)


CURES = (
    _straggler("ddp: slow link, rank 0 late", 0, "unattributed", late_ns=(0,)),
    _straggler("ddp: rank 1 slow", 1, "backward", 150 / 190, backward_ns=(150 * MS,)),
    _straggler("tp: slow link, rank 0 slow", 0, "forward", 100 / 140, forward_ns=(100 * MS,)),
    _straggler("dp x tp: slow links, rank 3 late", 3, "unattributed", late_ns=(0,)),
    _straggler("ddp: slow loader of rank 1", 1, "data_wait", 1 / 9, data_ns=(10 * MS,)),
    _straggler("fsdp: rank 0 saves", 0, "checkpoint_stall", save_ns=(0,)),
    Cure(
        name="ddp: slow loaders",
        kind=Kind.DATA_BOUND,
        without={"data_ns": (0,)},
        removed={(None, "data_wait"): 0.0},
    ),
    Cure(
        name="ddp: all save and evaluate",
        kind=Kind.CHECKPOINT_STALL,
        without={"save_ns": (0,)},
        removed={(None, "checkpoint_stall"): 0.0},
    ),
    _slow_link("ddp: link slower than a layer"),
    _slow_link("fsdp: slow link"),
    _slow_link("async: partly hidden"),
)


def gain_rows() -> Iterator[Row]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        pools = {ranks: Pool(ranks) for ranks in {cure.training.ranks for cure in CURES}}
        for pool in pools.values():
            stack.callback(pool.stop)
        for number, cure in enumerate(CURES):
            counted = row(cure, *_pair(pools[cure.training.ranks], cure, directory / str(number)))
            print(f"{counted.case}: {counted.truth}, stated {counted.measured}", file=sys.stderr, flush=True)
            yield counted


def _pair(pool: Pool, cure: Cure, directory: Path) -> tuple[Effect, Effect]:
    """The training with and without the cause."""
    pairs = []
    for round_ in range(ROUNDS):
        before = run(pool, cure.training, directory / f"{round_}", steps=STEPS, times=1)
        after = run(pool, cure.cured, directory / f"{round_}-cured", steps=STEPS, times=1)
        if max(before.noise, after.noise) <= WITHIN:
            return before, after
        pairs.append((before, after))
    return sorted(pairs, key=lambda pair: true_gain(*pair))[ROUNDS // 2]


def true_gain(before: Effect, after: Effect) -> float:
    """Share of the step that the training without the cause takes less."""
    return 1 - after.step_ns / before.step_ns


def row(cure: Cure, before: Effect, after: Effect) -> Row:
    """The row of a cause. It misses without the finding, and if the gains differ by more than both tolerances."""
    stated = next((each for each in before.analysis.verdict if each.kind == cure.kind), None)
    gain, true = None if stated is None else stated.estimated_gain_ratio, true_gain(before, after)
    bound = "at most " if stated is not None and stated.gain_at_most else ""
    return Row(
        part="gains",
        case=cure.title,
        quantity="gain",
        truth=f"{true:.1%} of {before.step_ns / 1e6:.0f} ms",
        measured="no such finding" if gain is None else f"{bound}{gain:.1%}",
        error="" if gain is None else f"{gain / true - 1:+.1%}",
        noise=f"{max(before.noise, after.noise):.2%}",
        of_step=None if gain is None else gain - true,
        holds=gain is not None and abs(gain - true) <= max(WITHIN_GAIN * true, WITHIN_STEP),
    )
