"""Share of the hardware's peak that the training used: MFU and HFU in both published conventions.

mfu = ideal time / wall time of all steps but the warm-up, summed over ranks; ideal = sum over dtypes of model FLOPs /
dense peak of that dtype. `mfu` halves causal attention, as Megatron-LM and MaxText print it. `mfu_paper` counts it in
full (Korthikanti et al. 2022, PaLM, torchtitan). hfu uses all executed FLOPs, recomputation included.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from traincope.analysis.attribution.terms import UNATTRIBUTED
from traincope.analysis.efficiency.declared_flops import TOKENS, mean_amount, positive
from traincope.analysis.efficiency.experts import ExpertLoads
from traincope.analysis.efficiency.goodput import Goodput
from traincope.analysis.efficiency.peaks import Peak, rank_peak, why_unknown
from traincope.analysis.efficiency.work import JobWork, RankWork, ShapesEvidence, job_work
from traincope.analysis.ledger.ledger import Ledger
from traincope.timeline import Timeline

PEAK_REMEDY = "call run.describe(peak_flops=...)"
GPU_REMEDY = "give the GPU's name in a data sheet: traincope import --gpu NAME"
TRACED = "the traces contain only a part of the job"
NO_STEP = "no complete step was recorded"
MEASURED = "measured"
"""Begin of the source of a peak that was measured."""
PEAK_TOLERANCE = 0.02
IMPOSSIBLE = (
    "the peak was measured too low: the model's FLOPs take longer at this peak than forward and backward took; measure "
    "it again on an idle machine"
)
AT_WORK = ("forward", "backward")
"""Ledger terms that contain the model's FLOPs."""

Flops = Callable[[RankWork], Mapping[str, float] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Shares of peak; None if unknown."""

    mfu: float | None = None
    mfu_paper: float | None = None
    mfu_job: float | None = None
    """MFU of steps whose result survived, in all attempts, over all elapsed time: startup, restarts, evaluation, lost
    steps and pauses included."""
    hfu: float | None = None
    ideal_ns: Mapping[str, float] | None = None
    """dtype -> ns that its model FLOPs take at peak, per step, summed over ranks."""
    waterfall: Mapping[str, float | None] | None = None
    """Shares of wall time that sum to 1: `ideal` (= mfu), `redundant` at peak, `kernel_inefficiency` (the rest of
    forward and backward), and every other term of the ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """Utilization of the whole job."""

    ratios: Ratios
    tokens_per_second: float | None
    reason: str | None
    """Reason why MFU is unknown."""
    job_reason: str | None = None
    """Reason why the MFU of the whole job is unknown."""
    work: JobWork
    peak: Peak | None
    """Peak of the first rank."""
    experts: ExpertLoads | None = None
    """Loads of a mixture's experts; None: the training logged none."""


def utilization(
    timeline: Timeline,
    ledger: Ledger,
    job: Goodput | None,
    *,
    experts: ExpertLoads | None,
    shapes: ShapesEvidence | None = None,
) -> Utilization:
    """Divide FLOPs, counted or declared, by the devices' peaks and by the wall time of the steps and of the job.

    `shapes`: evidence of an imported run, None for a recorded one.
    """
    settings = timeline.run.info.settings
    steps = {step for rank in ledger.ranks for step in rank.numbers[rank.timed].tolist()}
    work = job_work(timeline, steps=steps, experts=experts, shapes=shapes)
    dtypes, peaks = _dtypes(work), _peaks(timeline, work)
    unrated = work.reason or _why_unrated(ledger, peaks, dtypes, remedy=PEAK_REMEDY if shapes is None else GPU_REMEDY)
    rated = _Rated(ledger=ledger, work=work, peaks=peaks)
    unrated = unrated or rated.why_impossible()
    reason = unrated or work.model_reason
    job_reason = reason or (_why_no_job(job) if shapes is None else TRACED)
    if unrated:
        ratios = Ratios()
    elif work.model_reason:
        ratios = Ratios(hfu=rated.over_steps(lambda rank: rank.executed))
    else:
        ratios = rated.ratios(None if job_reason else job)
    return Utilization(
        ratios=ratios,
        tokens_per_second=_tokens_per_second(
            ledger, mean_amount(timeline, TOKENS, steps=steps) or positive(settings.get("tokens_per_step"))
        ),
        reason=reason,
        job_reason=job_reason,
        work=work,
        peak=None if unrated else peaks[min(work.ranks)],
        experts=experts,
    )


def waterfall_of(
    timeline: Timeline, ledger: Ledger, job_utilization: Utilization, *, ranks: frozenset[int]
) -> Mapping[str, float | None]:
    """`Ratios.waterfall` for the steps of these ranks alone; the ledger's shares if the job has no MFU.

    `job_utilization` is the job's `utilization`; `ranks` is a subset of the ledger's ranks.
    """
    selected = replace(ledger, ranks=tuple(rank for rank in ledger.ranks if rank.rank in ranks))
    if job_utilization.reason is not None:
        return {term: selected.share(term) for term in selected.order}
    return _Rated(ledger=selected, work=job_utilization.work, peaks=_peaks(timeline, job_utilization.work)).waterfall()


def _dtypes(work: JobWork) -> set[str]:
    return {dtype for each in work.ranks.values() for dtype in (*each.model, *(each.executed or ()))}


def _peaks(timeline: Timeline, work: JobWork) -> dict[int, Peak]:
    settings, dtypes = timeline.run.info.settings, _dtypes(work)
    return {rank.rank: rank_peak(rank.info.device, settings, dtypes=dtypes) for rank in timeline.run.ranks}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rated:
    """FLOPs and peaks of every rank of the ledger."""

    ledger: Ledger
    work: JobWork
    peaks: Mapping[int, Peak]

    def ratios(self, job: Goodput | None) -> Ratios:
        return Ratios(
            mfu=self.over_steps(lambda rank: rank.model),
            mfu_paper=self.over_steps(lambda rank: rank.paper),
            mfu_job=None if job is None else self.over_job(job),
            hfu=self.over_steps(lambda rank: rank.executed),
            ideal_ns=self.ideal_by_dtype(),
            waterfall=self.waterfall(),
        )

    def waterfall(self) -> dict[str, float | None]:
        """Shares of wall time. Redundant work that is unknown is part of the kernel inefficiency."""
        ideal = self.over_steps(lambda rank: rank.model)
        redundant = self.over_steps(lambda rank: rank.redundant)
        busy = sum(self.ledger.share(term) or 0.0 for term in AT_WORK)
        return {
            "ideal": ideal,
            "redundant_compute": redundant,
            "kernel_inefficiency": busy - (ideal or 0.0) - (redundant or 0.0),
            **{term: self.ledger.share(term) for term in self.ledger.order if term not in AT_WORK},
        }

    def why_impossible(self) -> str | None:
        """Return why the peaks cannot be right: a measured one is too low if anything else ran on the machine then."""
        measured = [peak for peak in self.peaks.values() if peak.source.startswith(MEASURED)]
        known = all(each.model is not None for each in self.work.ranks.values())
        if not measured or not known:
            return None
        at_peak = self.over_steps(lambda rank: rank.model) or 0.0
        took = sum(self.ledger.share(term) or 0.0 for term in (*AT_WORK, UNATTRIBUTED))
        return IMPOSSIBLE if at_peak > (1 + PEAK_TOLERANCE) * took else None

    def over_steps(self, flops: Flops) -> float | None:
        ideal_ns = 0.0
        for rank in self.ledger.ranks:
            rank_flops = flops(self.work.ranks[rank.rank])
            if rank_flops is None:
                return None
            ideal_ns += int(rank.timed.sum()) * sum(self._ideal_ns(rank.rank, rank_flops).values())
        return ideal_ns / self.ledger.timed_wall_ns

    def over_job(self, job: Goodput) -> float | None:
        """Job MFU. It assumes that each rank did one step's work in each step, and was there the whole time."""
        elapsed_ns = job.elapsed_ns * len(self.work.ranks)
        return (job.steps_kept or 0) * sum(self.ideal_by_dtype().values()) / elapsed_ns if elapsed_ns else None

    def ideal_by_dtype(self) -> dict[str, float]:
        sums: dict[str, float] = {}
        for rank, work in self.work.ranks.items():
            for dtype, ns in self._ideal_ns(rank, work.model).items():
                sums[dtype] = sums.get(dtype, 0.0) + ns
        return sums

    def _ideal_ns(self, rank: int, flops: Mapping[str, float]) -> dict[str, float]:
        peak = self.peaks[rank].flops
        return {dtype: 1e9 * count / peak[dtype] for dtype, count in flops.items()}


def _why_no_job(job: Goodput | None) -> str | None:
    if job is None:
        return NO_STEP
    ranks = {len(attempt.endings) for attempt in job.attempts if attempt.num_steps}
    if len(ranks) > 1:
        return f"its attempts ran on different numbers of ranks ({', '.join(map(str, sorted(ranks)))})"
    return job.reason


def _why_unrated(ledger: Ledger, peaks: Mapping[int, Peak], dtypes: set[str], *, remedy: str) -> str | None:
    if not ledger.rank_steps:
        return NO_STEP
    return next((why for peak in peaks.values() if (why := why_unknown(peak, dtypes, remedy=remedy)) is not None), None)


def _tokens_per_second(ledger: Ledger, tokens_per_step: float | None) -> float | None:
    """Tokens over all timed steps per second; None if the training neither logged nor declared tokens."""
    wall_ns = sum(int(rank.wall_ns[rank.timed].sum()) for rank in ledger.ranks)
    if tokens_per_step is None or not wall_ns:
        return None
    return tokens_per_step * sum(int(rank.timed.sum()) for rank in ledger.ranks) / (wall_ns / 1e9)
