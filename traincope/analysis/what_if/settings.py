"""Settings of a training that a prediction changes, such as `pp=4,microbatches=16`."""

import re
from dataclasses import dataclass, fields

from traincope.errors import UsageError
from traincope.plan.layout.layout import ZERO_STAGES, Place
from traincope.plan.pipeline.orders import SCHEDULES

SETTING = re.compile(r"\s*(?P<name>[a-z_]+)\s*=\s*(?P<value>\S+)\s*")
QUANTIZING = ("quantize_weights", "quantize_gradients")
OFFLOADING = ("offload_optimizer", "offload_parameters")
LAYOUT = ("dp", "cp", "ep", "zero", "node_ranks", *QUANTIZING, *OFFLOADING)
"""Settings of a layout that are computed by formula, with the rates of the run."""
OTHER_NAMES = {"fsdp": "dp, the ranks that see other sequences", "micro_batch": "microbatches"}
"""Name of a setting that is changed under another one -> that one."""
NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Changed settings; None: as in the run."""

    pp: int | None = None
    microbatches: int | None = None
    """The batch stays, so a microbatch has more or fewer sequences."""
    schedule: str | None = None
    virtual: int | None = None
    """Stages per rank."""
    tp: int | None = None
    prefetch: int | None = None
    """Processes that load batches while the training computes."""
    dp: int | None = None
    """Ranks that see other sequences: DDP's, or FSDP's with all of its copies. The batch stays."""
    cp: int | None = None
    ep: int | None = None
    zero: int | None = None
    """ZeRO stage."""
    node_ranks: int | None = None
    """Ranks that share a copy of the weights from forward to backward (ZeRO++'s hpZ); 1: no such copy."""
    quantize_weights: bool | None = None
    quantize_gradients: bool | None = None
    offload_optimizer: Place | None = None
    """Place of the optimizer's state."""
    offload_parameters: Place | None = None
    """Place of ZeRO-3's weights and gradients."""
    stragglers: str | None = None
    """`none`: each rank's work takes at most the median of the ranks."""

    @property
    def changes_pipeline(self) -> bool:
        return any(value is not None for value in (self.pp, self.microbatches, self.schedule, self.virtual))

    @property
    def changes_layout(self) -> bool:
        return any(getattr(self, name) is not None for name in LAYOUT)

    @property
    def changes_memory(self) -> bool:
        return self.changes_pipeline or self.changes_layout or self.tp is not None

    @property
    def text(self) -> str:
        given = ((each.name, getattr(self, each.name)) for each in fields(self))
        return ", ".join(f"{name}={_text(value)}" for name, value in given if value is not None)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


NAMES = tuple(each.name for each in fields(Settings))


def parse_settings(expression: str) -> Settings | None:
    """Parse an expression of settings; None if it names none of them.

    Raises UsageError for a mixture of settings and factors, for settings that cannot be predicted, and for impossible
    values.
    """
    parts = expression.split(",")
    matches = [SETTING.fullmatch(part) for part in parts]
    names = [None if match is None else match["name"] for match in matches]
    for name in names:
        if name in OTHER_NAMES:
            raise UsageError(f"{name} is not a setting here; use {OTHER_NAMES[name]}. Choose among {', '.join(NAMES)}")
    if not any(name in NAMES for name in names):
        return None
    values: dict[str, int | str | Place] = {}
    for part, match in zip(parts, matches, strict=True):
        if match is None or match["name"] not in NAMES:
            raise UsageError(f"{part.strip()!r} cannot be combined with settings; ask for it alone")
        if match["name"] in values:
            raise UsageError(f"{match['name']} stands twice; give it once")
        values[match["name"]] = _value(match["name"], match["value"])
    settings = Settings(**values)  # type: ignore[arg-type]
    others = [name for name in ("tp", "prefetch", "stragglers") if name in values]
    if len(others) + settings.changes_pipeline + settings.changes_layout > 1:
        alone = others[0] if others else next(name for name in LAYOUT if name in values)
        raise UsageError(
            f"{settings.text}: only changes of the pipeline can be combined with each other, and {', '.join(LAYOUT)}; "
            f"ask for {alone} alone"
        )
    return settings


def _value(name: str, text: str) -> int | str | Place:
    if name == "schedule":
        return _chosen(name, text, tuple(SCHEDULES))
    if name == "stragglers":
        return _chosen(name, text, (NONE,))
    if name == "zero":
        return int(_chosen(name, text, tuple(map(str, ZERO_STAGES))))
    if name in QUANTIZING:
        return _chosen(name, text, ("true", "false")) == "true"
    if name in OFFLOADING:
        return Place(_chosen(name, text, tuple(Place)))
    if not text.isdecimal() or not 1 <= int(text) <= 1 << 20:
        raise UsageError(f"{name}={text}: {name} is a whole number from 1 to {1 << 20}")
    return int(text)


def _chosen(name: str, text: str, choices: tuple[str, ...]) -> str:
    if text not in choices:
        raise UsageError(f"{name}={text}: choose one of {', '.join(choices)}")
    return text
