"""The whole training: its time, money and energy, and what failures and checkpoints cost."""

from dataclasses import dataclass

from traincope.errors import UsageError
from traincope.plan.cadence import RANK_MTBF_SECONDS, Failures, daly_seconds, job_mtbf, useful_ratio
from traincope.plan.layout.prediction import Prediction
from traincope.plan.model.flops import six_n_d
from traincope.units import CURRENCY

DAY_S, HOUR_S = 86_400, 3_600
JOULES_PER_MWH = 3.6e9
TOKENS_PER_PARAMETER = 20
"""Tokens of a training that are best for its FLOPs: Hoffmann et al. 2022, arXiv:2203.15556, section 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Amount of a training, and rates of its prices and failures. Raises UsageError for impossible values."""

    tokens: float
    price_per_gpu_hour: float | None = None
    currency: str = CURRENCY
    watts: float | None = None
    """Power of one device. None: unknown."""
    pue: float = 1.0
    """Energy of the site over the energy of its devices."""
    rank_mtbf_seconds: float = RANK_MTBF_SECONDS
    save_seconds: float = 40.0
    """Time that training stops for one checkpoint. BLOOM-176B wrote 2.3 TB in 40 s."""
    restart_seconds: float = 600.0

    def __post_init__(self) -> None:
        for name in ("tokens", "pue", "rank_mtbf_seconds", "save_seconds"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is {getattr(self, name):g}; it must be greater than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A training from its first step to its last."""

    days: float
    """Time of all steps, without failures and checkpoints."""
    goodput_ratio: float
    """Share of all time that is lasting training, with checkpoints at Daly's interval."""
    elapsed_days: float
    """`days` / `goodput_ratio`."""
    mtbf_hours: float
    """Mean time between failures of the whole job."""
    checkpoint_seconds: float
    """Daly's interval."""
    gpu_hours: float
    """GPUs times the elapsed time."""
    money: float | None
    """Price of the GPU-hours, in the job's currency."""
    energy_mwh: float | None
    """At the power limit of all devices: an upper bound."""


def outcome(prediction: Prediction, job: Job) -> Outcome:
    """The outcome of a training whose every step takes the expected time."""
    seconds = job.tokens / prediction.tokens_per_step * prediction.expected_seconds
    failures = Failures(
        mtbf_seconds=job_mtbf(part_mtbf_seconds=job.rank_mtbf_seconds, parts=prediction.ranks),
        save_seconds=job.save_seconds,
        restart_seconds=job.restart_seconds,
    )
    interval = daly_seconds(failures)
    goodput = useful_ratio(failures, interval)
    if not goodput:
        raise UsageError(
            f"a failure every {failures.mtbf_seconds:.3g} s leaves no time to train; use fewer GPUs, or a longer "
            "time between failures"
        )
    elapsed = seconds / goodput
    gpu_hours = elapsed * prediction.ranks / HOUR_S
    return Outcome(
        days=seconds / DAY_S,
        goodput_ratio=goodput,
        elapsed_days=elapsed / DAY_S,
        mtbf_hours=failures.mtbf_seconds / HOUR_S,
        checkpoint_seconds=interval,
        gpu_hours=gpu_hours,
        money=None if job.price_per_gpu_hour is None else gpu_hours * job.price_per_gpu_hour,
        energy_mwh=None if job.watts is None else elapsed * prediction.ranks * job.watts * job.pue / JOULES_PER_MWH,
    )


def days(*, parameters: float, tokens: float, gpus: int, peak_flops: float, mfu: float) -> float:
    """Days of a training of 6 N D FLOPs, without failures: Kaplan et al. 2020, arXiv:2001.08361, section 2.1."""
    return six_n_d(parameters=parameters, tokens=tokens) / (gpus * peak_flops * mfu) / DAY_S


def mfu_for(*, parameters: float, tokens: float, gpus: int, peak_flops: float, days: float) -> float:
    """MFU that finishes 6 N D FLOPs in `days`."""
    return six_n_d(parameters=parameters, tokens=tokens) / (gpus * peak_flops * days * DAY_S)
