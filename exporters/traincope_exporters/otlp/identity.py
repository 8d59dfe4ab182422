"""Who speaks, and how traces and spans are numbered: the same run has the same ids whenever it is sent."""

from collections.abc import Mapping
from hashlib import blake2b
from importlib.metadata import version

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import SpanContext, TraceFlags

from traincope.store import RankRecords
from traincope.store.cards import RunInfo

SERVICE = "traincope"
"""`service.name`, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES say another."""
SCOPE = InstrumentationScope(name="traincope", version=version("traincope"))

LONGEST = 1024
"""Characters of a text that are sent: collectors take messages of some MB."""

Value = str | int | float | bool | tuple[str, ...] | tuple[int, ...]
"""Of an attribute."""


def resource(instance: str, said: Mapping[str, Value]) -> Resource:
    """What speaks, by OpenTelemetry's semantic conventions; `instance` is the only one of its name.

    https://opentelemetry.io/docs/specs/semconv/resource/
    """
    own = {
        "service.name": SERVICE,
        "service.version": version("traincope"),
        "service.instance.id": instance,
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "opentelemetry",
        "telemetry.sdk.version": version("opentelemetry-sdk"),
        **said,
    }
    return Resource({key: clean(value) for key, value in own.items()}, Schemas.V1_28_0.value).merge(
        OTELResourceDetector().detect()
    )


def job_resource(run: RunInfo) -> Resource:
    """The run as a whole."""
    return resource(run.id, {"traincope.run": run.id, "traincope.world_size": run.world_size})


def rank_resource(run: RunInfo, rank: RankRecords) -> Resource:
    """The process of one rank."""
    device = rank.info.device.get("name")
    said: dict[str, Value] = {
        "traincope.run": run.id,
        "traincope.rank": rank.rank,
        "traincope.attempt": rank.attempt,
        "traincope.world_size": run.world_size,
        "host.name": rank.info.host.name,
        "process.pid": rank.info.pid,
        "process.command": run.command,
        **{f"traincope.coord.{axis}": index for axis, index in rank.info.coord.coords.items()},
        **({"traincope.device": str(device)} if device else {}),
    }
    return resource(f"{run.id}/{rank.attempt}/{rank.rank}", said)


def clean(value: Value) -> Value:
    """A name from a run is data: it may hold what is no Unicode, and be of any length."""
    if isinstance(value, tuple):
        return tuple(str(clean(one)) for one in value) if value and isinstance(value[0], str) else value
    return value[:LONGEST].encode(errors="replace").decode() if isinstance(value, str) else value


class Ids:
    """Of one run."""

    def __init__(self, run: RunInfo) -> None:
        self.trace = _number(f"{run.id}\n{run.started_wall_ns}", num_bytes=16)

    def span(self, *place: object) -> SpanContext:
        """The span at this place in the run: nothing for the run itself, else attempt, rank, step, ..."""
        number = _number("\n".join(map(str, (self.trace, *place))), num_bytes=8)
        return SpanContext(self.trace, number, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    def attempt(self, attempt: int) -> SpanContext:
        return self.span(attempt)

    def rank(self, attempt: int, rank: int) -> SpanContext:
        return self.span(attempt, rank)

    def step(self, attempt: int, rank: int, step: int) -> SpanContext:
        return self.span(attempt, rank, "step", step)

    def detail(self, attempt: int, rank: int, step: int, thread: str, row: int) -> SpanContext:
        """`row`: of what the thread recorded in that step, so that the step alone is enough to tell."""
        return self.span(attempt, rank, step, thread, row)


def _number(text: str, *, num_bytes: int) -> int:
    """Never 0, which OpenTelemetry takes for none."""
    return int.from_bytes(blake2b(text.encode(errors="replace"), digest_size=num_bytes).digest(), "big") or 1
