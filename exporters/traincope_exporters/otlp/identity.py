"""Identity of the sender, trace and spans. A run has the same ids each time it is sent."""

from collections.abc import Mapping
from hashlib import blake2b
from importlib.metadata import version

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import SpanContext, TraceFlags

from traincope.store import RankRecords
from traincope.store.job.manifests import RunInfo

SERVICE = "traincope"
"""Default of `service.name`. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override it."""
SCOPE = InstrumentationScope(name="traincope", version=version("traincope"))

MAX_TEXT_CHARS = 1024
"""Maximum length of a text. Collectors accept messages of some MB."""

DL_AXES = {"tp": "dl.tensor_parallel.rank"}
"""Axis -> the name of a rank's place on it in NVIDIA's shared library. With `dl.rank`, `dl.world_size` and a step's
`dl.iteration`, both join in one backend.
"""

Value = str | int | float | bool | tuple[str, ...] | tuple[int, ...]
"""Value of an attribute."""


def resource(instance: str, attributes: Mapping[str, Value]) -> Resource:
    """Resource of the sender by OpenTelemetry's semantic conventions. `instance` is unique within the service.

    https://opentelemetry.io/docs/specs/semconv/resource/
    """
    merged = {
        "service.name": SERVICE,
        "service.version": version("traincope"),
        "service.instance.id": instance,
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "opentelemetry",
        "telemetry.sdk.version": version("opentelemetry-sdk"),
        **attributes,
    }
    return Resource({key: clean(value) for key, value in merged.items()}, Schemas.V1_28_0.value).merge(
        OTELResourceDetector().detect()
    )


def job_resource(run: RunInfo) -> Resource:
    """Resource of the whole run."""
    return resource(run.id, {"traincope.run": run.label, "traincope.world_size": run.world_size})


def rank_resource(run: RunInfo, rank: RankRecords) -> Resource:
    """Resource of one rank's process."""
    device = rank.info.device.get("name")
    attributes: dict[str, Value] = {
        "traincope.run": run.label,
        "traincope.rank": rank.rank,
        "traincope.attempt": rank.attempt,
        "traincope.world_size": run.world_size,
        "host.name": rank.info.host.name,
        "process.pid": rank.info.pid,
        "process.command": run.command,
        **{f"traincope.coord.{axis}": index for axis, index in rank.info.coord.coords.items()},
        **({"traincope.device": str(device)} if device else {}),
        "dl.rank": rank.rank,
        "dl.world_size": run.world_size,
        **{name: index for axis, index in rank.info.coord.coords.items() if (name := DL_AXES.get(axis))},
    }
    return resource(f"{run.id}/{rank.attempt}/{rank.rank}", attributes)


def clean(value: Value) -> Value:
    """Limit a text's length and replace what is not Unicode. Names from a run may hold anything."""
    if isinstance(value, tuple):
        return tuple(str(clean(item)) for item in value) if value and isinstance(value[0], str) else value
    return value[:MAX_TEXT_CHARS].encode(errors="replace").decode() if isinstance(value, str) else value


class Ids:
    """Ids of one run's trace and spans."""

    def __init__(self, run: RunInfo) -> None:
        self.trace = _number(f"{run.id}\n{run.started_wall_ns}", num_bytes=16)

    def span(self, *place: object) -> SpanContext:
        """Span at this place: no arguments for the run itself, otherwise attempt, rank, step, ..."""
        number = _number("\n".join(map(str, (self.trace, *place))), num_bytes=8)
        return SpanContext(self.trace, number, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    def attempt(self, attempt: int) -> SpanContext:
        return self.span(attempt)

    def rank(self, attempt: int, rank: int) -> SpanContext:
        return self.span(attempt, rank)

    def step(self, attempt: int, rank: int, step: int) -> SpanContext:
        return self.span(attempt, rank, "step", step)

    def detail(self, attempt: int, rank: int, step: int, thread: str, row: int) -> SpanContext:
        """Span of an event. `row`: its position among the thread's events of that step."""
        return self.span(attempt, rank, step, thread, row)


def _number(text: str, *, num_bytes: int) -> int:
    """Hash of the text; never 0, which OpenTelemetry reserves."""
    return int.from_bytes(blake2b(text.encode(errors="replace"), digest_size=num_bytes).digest(), "big") or 1
