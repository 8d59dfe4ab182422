"""Step time with other settings, predicted from what a run measured: its actions, messages, collectives, data waits.

- Settings of the pipeline replay the measured actions in the new order (`pipeline_change`).
- `tp` divides the time of all compute by the new number of ranks, and takes the axis' collectives by a law fitted on
  the run (`link_law`).
- `prefetch` loads batches while the training computes: a step waits for a batch only if loading takes longer.
- `stragglers=none` gives each rank the median work of its stage.
- `dp`, `cp`, `ep`, `zero`, ZeRO++ and offload are computed by the formula of `plan search`, with the run's rates
  (`layout_change`).

`tp`, `prefetch` and `stragglers` replay the recorded steps (`replay`). The interval spans all assumptions, and is
widened by the error of a replay without changes and by the scatter of the steps.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from statistics import mean, median, median_low, quantiles

from traincope.analysis.analyze import Analysis
from traincope.analysis.attribution.terms import COMPUTE, exposed_transfer, exposed_wait
from traincope.analysis.ledger.ledger import RankLedger
from traincope.analysis.replaying.pipeline_change import Measured, changed_ns, recorded_pipeline, replayed_ns
from traincope.analysis.replaying.replay import Factors, replay
from traincope.analysis.what_if.layout_change import changed_layout
from traincope.analysis.what_if.link_law import LinkLaw, link_laws, sent_messages
from traincope.analysis.what_if.settings import Settings
from traincope.analysis.what_if.what_if import NO_ORDER, RANK_TERMS, RecordedSteps, recorded_steps, why_no_step
from traincope.errors import UsageError
from traincope.plan.pipeline.orders import SCHEDULES, Shape, resolve_schedule
from traincope.plan.pipeline.stage_layers import is_possible, stage_layers
from traincope.units import count, duration

TENSOR_AXIS = "tp"
DATA_WAIT = "data_wait"
MEDIAN_ERROR = 1.25 / 1.35
"""Standard error of a median over interquartile range / sqrt(n), for a normal distribution."""

Term = tuple[int | None, str]
REPLICAS = ("dp_replicate", "fsdp", "dp")
"""Axes whose ranks divide the sequences of a step."""
DIVIDED_BY_TP = ("heads", "kv_heads", "ffn")
"""Sizes of the model that tp divides."""


def check_pipeline(settings: Mapping[str, object], *, schedule: str, shape: Shape) -> Iterator[str]:
    """Yield what is assumed where the run does not declare its sizes. Raises UsageError for an impossible pipeline."""
    layers = _size(settings, "model", "layers")
    if layers is None:
        yield f"the layers are assumed to fill {shape.stages} stages: the run does not declare their number"
    elif not is_possible(stage_layers(layers, schedule=schedule, shape=shape)):
        raise UsageError(
            f"the {layers} layers of this run do not fill {shape.stages} stages; choose fewer pipeline ranks or stages "
            "per rank"
        )
    sequences = _sequences(settings)
    if sequences is None:
        yield f"the batch is assumed to divide into {shape.microbatches} microbatches: the run does not declare it"
    elif sequences % shape.microbatches:
        raise UsageError(
            f"the {sequences} sequences of a replica do not divide into {shape.microbatches} microbatches; choose a "
            f"divisor of {sequences}"
        )


def check_tensor(settings: Mapping[str, object], *, tp: int) -> Iterator[str]:
    """Yield what is assumed where the run does not declare its sizes. Raises UsageError for an impossible tp."""
    sizes = {name: _size(settings, "model", name) for name in DIVIDED_BY_TP}
    for name, size in sizes.items():
        if size is not None and size % tp:
            raise UsageError(
                f"model.{name} = {size} of this run does not divide over tp={tp}; choose a divisor of {size}"
            )
    if None in sizes.values():
        yield f"heads and widths are assumed to divide over tp={tp}: the run does not declare them"


def _sequences(settings: Mapping[str, object]) -> int | None:
    """Sequences of one replica in one round of the schedule; None if the settings do not have all of it."""
    batch, rounds = (_size(settings, "train", name) for name in ("batch", "accumulation"))
    replicas = [_size(settings, "parallel", name) for name in REPLICAS]
    if batch is None or rounds is None or None in replicas:
        return None
    return batch // rounds // prod(size for size in replicas if size is not None)


def _size(settings: Mapping[str, object], table: str, name: str) -> int | None:
    values = settings.get(table)
    value = values.get(name) if isinstance(values, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsPrediction:
    """Median step of the job with other settings, ns."""

    settings: Settings
    step_ns: float = 0.0
    """As recorded."""
    predicted_ns: float = 0.0
    least_ns: float = 0.0
    """Lower end of the interval; `most_ns`: the upper one."""
    most_ns: float = 0.0
    stands_on: tuple[str, ...] = ()
    """Measurements and assumptions of the prediction, one sentence each."""
    reason: str | None = None
    """Reason for a missing prediction."""

    @property
    def change_ratio(self) -> float:
        """Change of the step as a ratio; negative: shorter."""
        return self.predicted_ns / self.step_ns - 1


def predict_settings(analysis: Analysis, settings: Settings) -> SettingsPrediction:
    """Predict the step. Raises UsageError for settings that this run, or its schedule, cannot have."""
    steps = recorded_steps(analysis)
    if steps is None:
        return SettingsPrediction(settings=settings, reason=why_no_step(analysis))
    if settings.changes_pipeline:
        return _pipeline(analysis, settings, steps)
    if settings.changes_layout:
        return _layout(analysis, settings, steps)
    if settings.tp is not None:
        return _replayed(settings, steps, *_tensor(analysis, settings.tp))
    if settings.prefetch is not None:
        return _replayed(settings, steps, *_prefetch(analysis, settings.prefetch))
    prediction = _replayed(settings, steps, *_without_stragglers(analysis))
    if prediction.reason is None and prediction.most_ns >= prediction.step_ns:
        gain, error = prediction.step_ns - prediction.predicted_ns, prediction.most_ns - prediction.predicted_ns
        raise UsageError(
            f"without stragglers a step of this run would take {duration(max(gain, 0.0))} less, which is within the "
            f"error of the replay and the scatter of the steps ({duration(error)}), so it shows no straggler to remove"
        )
    return prediction


# -- pipelines ------------------------------------------------------------------------------------


def _pipeline(analysis: Analysis, settings: Settings, steps: RecordedSteps) -> SettingsPrediction:
    measured = recorded_pipeline(analysis.bubble, analysis.context.on_streams, analysis.comm)
    schedule, shape = _wanted(measured, settings)
    assumed = tuple(check_pipeline(analysis.timeline.run.info.settings, schedule=schedule, shape=shape))
    base = replayed_ns(measured)
    times = changed_ns(measured, schedule=schedule, shape=shape)
    step_ns = median(steps.recorded_ns)
    error_ns = abs(measured.span_ns - base) if measured.is_synchronised else abs(step_ns - base)
    around = error_ns + _scatter_ns(steps.recorded_ns)
    return SettingsPrediction(
        settings=settings,
        step_ns=step_ns,
        predicted_ns=step_ns + times[0] - base,
        least_ns=max(step_ns + min(times) - base - around, 0.0),
        most_ns=step_ns + max(times) - base + around,
        stands_on=(*_pipeline_facts(measured, settings, schedule), *assumed),
    )


def _wanted(measured: Measured, settings: Settings) -> tuple[str, Shape]:
    """Schedule and size. Another schedule has its own number of stages per rank, unless `virtual` gives it."""
    changed = settings.schedule is not None
    chunks = settings.virtual if settings.virtual is not None or changed else measured.shape.chunks
    name, chunks = resolve_schedule(settings.schedule or measured.schedule, chunks=chunks)
    return name, Shape(
        ranks=settings.pp or measured.shape.ranks,
        microbatches=settings.microbatches or measured.shape.microbatches,
        chunks=chunks,
    )


def _pipeline_facts(measured: Measured, settings: Settings, schedule: str) -> Iterator[str]:
    work = [measured.work_ns(rank) for rank in measured.orders]
    forward, backward = (mean(each[kind] for each in work) for kind in ("F", "B"))
    yield (
        f"a microbatch takes {duration(forward)} forward and {duration(backward)} backward on a rank "
        f"(mean of {count(len(work), 'rank')}, medians of one step)"
    )
    yield f"a message between stages takes {duration(measured.message_ns)}"
    if settings.microbatches is not None:
        yield "the batch stays, so an action has other sequences: its time is assumed proportional to them"
        yield "a message's time may be proportional to its bytes, or constant: both are computed"
    if SCHEDULES[schedule].splits_backward and measured.weight_share is None:
        yield "no backward of the run is split: W takes a half of it, or a third"
    if settings.pp is not None and settings.pp != measured.shape.ranks:
        yield "all stages take equal times; what runs outside of the pipeline stays"
    end = "ends with a collective of all stages" if measured.is_synchronised else "begins on each rank on its own"
    yield f"every step {end}"


def _layout(analysis: Analysis, settings: Settings, steps: RecordedSteps) -> SettingsPrediction:
    step_ns, around = median(steps.recorded_ns), _scatter_ns(steps.recorded_ns)
    changed = changed_layout(analysis, settings, step_seconds=step_ns / 1e9)
    return SettingsPrediction(
        settings=settings,
        step_ns=step_ns,
        predicted_ns=changed.expected * 1e9,
        least_ns=max(changed.least * 1e9 - around, 0.0),
        most_ns=changed.most * 1e9 + around,
        stands_on=changed.facts,
    )


# -- replays of recorded steps --------------------------------------------------------------------


def _replayed(
    settings: Settings, steps: RecordedSteps, assumed: Sequence[Mapping[Term, float]], facts: Sequence[str]
) -> SettingsPrediction:
    """Replay with each of the assumed factors, and expect the mean of their steps."""
    base = replay(steps.moves, Factors({}))
    changed = [replay(steps.moves, Factors(each)) for each in assumed]
    if base is None or None in changed:
        return SettingsPrediction(settings=settings, reason=NO_ORDER)
    step_ns = median(steps.recorded_ns)
    ratios = [median(each) / median(base) for each in changed if each is not None]
    error_ns = abs(median(base) - step_ns) + _scatter_ns(steps.recorded_ns)
    return SettingsPrediction(
        settings=settings,
        step_ns=step_ns,
        predicted_ns=step_ns * mean(ratios),
        least_ns=max(step_ns * min(ratios) - error_ns, 0.0),
        most_ns=step_ns * max(ratios) + error_ns,
        stands_on=tuple(facts),
    )


def _scatter_ns(recorded: Sequence[int]) -> float:
    """Standard error of the median step."""
    if len(recorded) < 2:
        return 0.0
    low, _, high = quantiles(recorded, n=4)
    return MEDIAN_ERROR * (high - low) / sqrt(len(recorded))


def _tensor(analysis: Analysis, wanted: int) -> tuple[list[Mapping[Term, float]], list[str]]:
    ranks = _axis_ranks(analysis, TENSOR_AXIS)
    if ranks is None:
        raise UsageError("this run has no collective on axis tp, so it shows no rate of tp; measure one with tp = 2")
    sizes = tuple(check_tensor(analysis.timeline.run.info.settings, tp=wanted))
    messages = sent_messages(analysis.comm, TENSOR_AXIS)
    laws = link_laws(messages, ranks=ranks)
    if not laws:
        raise UsageError("no record of this run gives the time of a transfer on axis tp, so its rate is unknown")
    compute: dict[Term, float] = {(None, term): ranks / wanted for term in COMPUTE}
    assumed: list[Mapping[Term, float]] = []
    for law in laws:
        before, after = (
            sum(each.count * law.seconds(each.operation, num_bytes=each.num_bytes, ranks=size) for each in messages)
            for size in (ranks, wanted)
        )
        factors = {**compute, (None, exposed_transfer(TENSOR_AXIS)): after / before}
        if wanted == 1:
            factors[None, exposed_wait(TENSOR_AXIS)] = 0.0
        assumed.append(factors)
    return assumed, [
        f"compute takes {ranks} / {wanted} of its time: all of it is assumed to divide over tp",
        _law_fact(laws),
        f"groups of {wanted} ranks are assumed to have the links of those of {ranks}",
        *_kept_fact(ranks, wanted),
        *sizes,
    ]


def _kept_fact(ranks: int, wanted: int) -> Iterator[str]:
    if wanted != ranks:
        weights = "fewer" if wanted > ranks else "more"
        yield f"messages of other axes stay as they are, although each rank then holds {weights} weights"


def _law_fact(laws: tuple[LinkLaw, ...]) -> str:
    if len(laws) > 1:
        return "all messages on tp have one size, so their time may be latency or bandwidth: both are computed"
    (law,) = laws
    rate = f"{1 / law.seconds_per_byte / 1e9:.3g} GB/s" if law.seconds_per_byte else "unlimited bandwidth"
    return f"tp: {duration(law.latency_seconds * 1e9)} per step of a ring, {rate}, fitted on {law.num_sizes} sizes"


def _axis_ranks(analysis: Analysis, axis: str) -> int | None:
    """Ranks of the largest group of an axis; None without one."""
    sizes = [len(group.ranks) for rank in analysis.timeline.ranks for group in rank.groups if group.axis == axis]
    return max((size for size in sizes if size > 1), default=None)


def _prefetch(analysis: Analysis, processes: int) -> tuple[list[Mapping[Term, float]], list[str]]:
    factors: dict[Term, float] = {}
    longest = 0.0
    for rank in analysis.ledger.ranks:
        total = rank.total(DATA_WAIT) or 0
        steps = int(rank.counted.sum())
        if total and steps:
            loading, rest = total / steps, (rank.total_wall_ns - total) / steps
            longest = max(longest, loading)
            factors[rank.rank, DATA_WAIT] = max(loading / processes - rest, 0.0) / loading
    if not factors:
        raise UsageError("this run waits for no data, so prefetching cannot change its step")
    return [factors], [
        f"a batch takes up to {duration(longest)} to load, all of it in the step: nothing is assumed to load ahead",
        f"with prefetch={processes}, a batch loads while the rest of the step runs, on cores of its own",
    ]


def _without_stragglers(analysis: Analysis) -> tuple[list[Mapping[Term, float]], list[str]]:
    ledgers = {rank.rank: rank for rank in analysis.ledger.ranks if rank.counted.any()}
    stages = {rank.rank: rank.stage for rank in analysis.timeline.ranks}
    factors: dict[Term, float] = {}
    for rank, ledger in ledgers.items():
        peers = [each for each in ledgers if stages.get(each) == stages.get(rank)]
        peers = peers if len(peers) > 1 else list(ledgers)
        for term in RANK_TERMS:
            mine = _per_step(ledger, term)
            usual = median_low(_per_step(ledgers[each], term) for each in peers)
            if mine > usual:
                factors[rank, term] = usual / mine
    if not factors:
        raise UsageError("all ranks of this run do equal work, so it has no straggler to remove")
    saved = {
        rank: sum((1 - factor) * _per_step(ledgers[rank], term) for (of, term), factor in factors.items() if of == rank)
        for rank in ledgers
    }
    slowest = max(saved, key=saved.__getitem__)
    return [factors], [
        "each term of a rank's own work takes at most the median of the ranks of its stage",
        f"rank {slowest} saves most",
    ]


def _per_step(ledger: RankLedger, term: str) -> float:
    """Mean of a term per counted step, ns. Ranks may have counted different numbers of steps."""
    return (ledger.total(term) or 0) / int(ledger.counted.sum())
