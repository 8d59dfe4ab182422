"""Manifests of imported runs and ranks, and the facts that the user gives for them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traincope.events import CLEAN, FORMAT_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Facts that traces and tables may lack."""

    axes: Mapping[str, str] = field(default_factory=dict)
    """Name or description of a process group -> its mesh axis."""
    step_marker: str | None = None
    """Name of the host's ranges that are the steps; None: the profiler's marks."""
    gpu: str | None = None
    """Name of the GPUs; None: by the trace."""
    described: Mapping[str, float | str] = field(default_factory=dict)
    """The model's rates and a step's amounts, as `run.describe()` of a training declares them."""

    @property
    def settings(self) -> dict[str, Any]:
        """The facts as settings of the run."""
        values = {"axes": dict(self.axes) or None, "step_marker": self.step_marker}
        return {**self.described, **{name: value for name, value in values.items() if value is not None}}


NOTHING_GIVEN = Given()


def run_card(name: str, *, world_size: int, mesh: dict[str, int], began_ns: int, given: Given) -> dict[str, Any]:
    """Manifest of an imported run."""
    return {
        "version": FORMAT_VERSION,
        "id": name,
        "imported": True,
        "world_size": world_size,
        "mesh": mesh,
        "started_wall_ns": began_ns,
        "versions": {},
        "command": "traincope import",
        "settings": given.settings,
    }


def rank_card(
    rank: int, *, coords: dict[str, int], host: str, started_ns: int, ended_ns: int, device: dict[str, Any]
) -> dict[str, Any]:
    """Manifest of an imported rank. Ranks of one `host` share a clock."""
    return {
        "version": FORMAT_VERSION,
        "rank": rank,
        "coords": coords,
        "host": host,
        "boot_id": "",
        "pid": 0,
        "started_wall_ns": started_ns,
        "ended_wall_ns": ended_ns,
        "ending": CLEAN,
        "probes": {},
        "device": device,
    }


def write_card(path: Path, card: dict[str, Any]) -> None:
    path.write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
