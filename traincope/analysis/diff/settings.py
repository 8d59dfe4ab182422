"""Differences in the set-up of two runs: layout, settings, versions, environment, machines."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from traincope.timeline import Timeline

FAMILIES = ("layout", "settings", "versions", "environment", "machine")
PER_LAUNCH = (
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "MASTER_PORT", "SLURM_JOB_ID"),
    *("TRAINCOPE_OUT", "TRAINCOPE_RUN_ID", "TRAINCOPE_NOTES", "TRAINCOPE_ABOVE"),
)
"""Variables that differ between any two launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One setting that differs. Values are as recorded; None: the run does not have the setting."""

    family: str
    """One of FAMILIES."""
    name: str
    before: str | None
    after: str | None


def differences(before: Timeline, after: Timeline) -> tuple[Difference, ...]:
    """Differences by family, then by name."""
    first, second = dict(_facts(before)), dict(_facts(after))
    differing = (key for key in {**first, **second} if first.get(key) != second.get(key))
    ordered = sorted(differing, key=lambda key: (FAMILIES.index(key[0]), key[1]))
    return tuple(
        Difference(family=family, name=name, before=first.get((family, name)), after=second.get((family, name)))
        for family, name in ordered
    )


def _facts(timeline: Timeline) -> Iterator[tuple[tuple[str, str], str]]:
    info = timeline.run.info
    yield ("layout", "ranks"), str(info.world_size)
    for axis, size in info.mesh.items():
        yield ("layout", f"mesh.{axis}"), str(size)
    yield ("settings", "command"), info.command
    for name, value in _flat(info.settings):
        yield ("settings", name), value
    for name, version in info.versions.items():
        yield ("versions", name), version
    if info.git_revision is not None:
        yield ("versions", "git revision"), info.git_revision
    for name, value in info.environment.items():
        if name not in PER_LAUNCH:
            yield ("environment", name), value
    hosts = sorted({rank.info.host.name for rank in timeline.run.ranks})
    devices = sorted({str(rank.info.device.get("name", "unknown")) for rank in timeline.run.ranks})
    yield ("machine", "hosts"), ", ".join(hosts)
    yield ("machine", "devices"), ", ".join(devices)


def _flat(settings: Mapping[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", str(value)
