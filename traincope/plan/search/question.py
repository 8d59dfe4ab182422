"""A question to `plan search`: a model, a cluster, a job, and conditions on the layouts. Its fields are options."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from traincope.errors import UsageError
from traincope.plan.cadence import RANK_MTBF_SECONDS
from traincope.plan.layout.layout import Place
from traincope.plan.model.precision import Precision
from traincope.plan.model.sources import read_model
from traincope.plan.model.transformer import Transformer
from traincope.plan.search.answer import Answer, to_answer
from traincope.plan.search.clusters import Cluster, find_accelerator
from traincope.plan.search.job import HOUR_S, TOKENS_PER_PARAMETER, Job
from traincope.plan.search.rates import MeasuredRates
from traincope.plan.search.search import Found, Report, search
from traincope.plan.search.space import Wanted
from traincope.units import CURRENCY

RANK_MTBF_HOURS = RANK_MTBF_SECONDS / HOUR_S
POSITIVE = ("gpus", "tokens", "pue", "gpu_mtbf_hours", "save_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteOptions:
    """Place where a training is to run. Raises UsageError for values that are not above 0."""

    gpu: str
    """Name of an accelerator."""
    gpus: int
    domain: int | None = None
    rails: int | None = None
    pod: int | None = None
    oversubscription: float = 1.0
    reserve: float = 0.1
    tokens: float | None = None
    """Tokens of the training. None: TOKENS_PER_PARAMETER per active parameter."""
    price_per_gpu_hour: float | None = None
    currency: str = CURRENCY
    """Currency of the price."""
    pue: float = 1.0
    gpu_mtbf_hours: float = RANK_MTBF_HOURS
    save_seconds: float = 40.0
    restart_seconds: float = 600.0

    def __post_init__(self) -> None:
        _require_positive(self, POSITIVE)

    @property
    def cluster(self) -> Cluster:
        """The cluster. Raises UsageError for an unknown accelerator and impossible values."""
        return Cluster(
            accelerator=find_accelerator(self.gpu),
            gpus=self.gpus,
            domain=self.domain,
            rails=self.rails,
            pod=self.pod,
            oversubscription=self.oversubscription,
            reserve=self.reserve,
        )

    def job(self, shape: Transformer | None) -> Job:
        """The job that trains a model. Raises UsageError for impossible values."""
        parameters = 1 if shape is None else shape.active_parameters
        return Job(
            tokens=TOKENS_PER_PARAMETER * parameters if self.tokens is None else self.tokens,
            price_per_gpu_hour=self.price_per_gpu_hour,
            currency=self.currency,
            watts=find_accelerator(self.gpu).watts,
            pue=self.pue,
            rank_mtbf_seconds=self.gpu_mtbf_hours * HOUR_S,
            save_seconds=self.save_seconds,
            restart_seconds=self.restart_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(SiteOptions):
    """Options of `traincope plan search` under their names. Raises UsageError for values that are not above 0."""

    model: str
    """A preset, or a file of shapes."""
    seq: int | None = None
    batch: int
    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    zero: int | None = None
    schedule: str | None = None
    micro_batch: int | None = None
    quantized: bool = False
    offload: str | None = None
    """Place of offloaded state."""
    top: int = 10
    like: str | None = None
    """Run directory, or JSON of a preflight, whose rates the search takes."""
    rates: str | None = None
    """File of kernels' times that `traincope doctor --measure-peak --rates` wrote."""

    def __post_init__(self) -> None:
        _require_positive(self, (*POSITIVE, "batch", "top", "dp", "tp", "pp", "cp", "ep", "micro_batch"))

    @property
    def shape(self) -> Transformer:
        """The model. Raises UsageError as `read_model`."""
        return read_model(self.model, sequence=self.seq)

    def wanted(self, *, engine: bool = False) -> Wanted:
        """Conditions on the layouts. `engine`: only layouts that `traincope train` has."""
        names = ("dp", "tp", "pp", "cp", "ep", "zero", "schedule", "micro_batch", "quantized")
        place = None if self.offload is None else Place(self.offload)
        return Wanted(**{name: getattr(self, name) for name in names}, offload=place, engine=engine)

    @property
    def command(self) -> str:
        """The command line that asks this question."""
        return shlex.join(["traincope", "plan", "search", *self._options()])

    def _options(self) -> Iterator[str]:
        first = ("model", "seq", "gpu", "gpus", "batch")
        for each in sorted(fields(self), key=lambda each: first.index(each.name) if each.name in first else len(first)):
            value = getattr(self, each.name)
            if value != each.default:
                yield f"--{each.name.replace('_', '-')}"
                if value is True:
                    continue
                yield value if isinstance(value, str) else f"{value:.15g}"


def _require_positive(site: SiteOptions, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(site, name)
        if value is not None and not value > 0:
            raise UsageError(f"--{name.replace('_', '-')} is {value:g}; it must be greater than 0")


def find(
    question: Question,
    *,
    engine: bool = False,
    rates: MeasuredRates | None = None,
    report: Report = lambda _: None,
) -> Found:
    """Search the layouts that the question asks for; `rates` are those of `like`. Raises UsageError as `search`."""
    return search(
        question.shape,
        cluster=replace(question.cluster, rates=rates),
        batch=question.batch,
        precision=Precision(),
        wanted=question.wanted(engine=engine),
        best=question.top,
        report=report,
    )


def answer(question: Question, found: Found, *, rates: MeasuredRates | None = None) -> Answer:
    """The answer, with the outcome of the whole training for each layout. Raises UsageError for an impossible job."""
    shape = question.shape
    return to_answer(
        found,
        shape=shape,
        cluster=replace(question.cluster, rates=rates),
        batch=question.batch,
        job=question.job(shape),
    )
