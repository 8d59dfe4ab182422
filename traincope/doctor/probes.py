"""Each probe, by installing it: a recording of a moment in a temporary directory, read back and removed."""

import importlib.util
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import traincope
from traincope.doctor.finding import Finding, bad, note, ok
from traincope.errors import RunDirectoryError
from traincope.record.hooks import make_hooks
from traincope.record.options import LEVEL_VARIABLE, OFF_SWITCH
from traincope.store import RankRecords, read_run

ON = "on"
TRIAL_SPANS = 10


def examine_probes() -> tuple[Finding, ...]:
    if importlib.util.find_spec("torch") is None:
        return (note("all", "not tried: they watch torch, which is not installed"),)
    import torch  # noqa: F401 - probes are installed into a torch that is there

    try:
        with tempfile.TemporaryDirectory(prefix="traincope-doctor-") as directory, _no_wishes():
            rank = _record(Path(directory) / "run")
    except (RunDirectoryError, OSError) as error:
        return (bad("recording", f"nothing could be recorded: {error}", do="the warnings above say why; see DISK"),)
    levels = {hook.name: hook.level for hook in make_hooks()}
    return (
        *(_probe(name, state, level=levels.get(name)) for name, state in rank.info.probes.items()),
        ok("recording", f"{sum(len(segment.records) for segment in rank.segments)} records written and read back"),
    )


def _record(out: Path) -> RankRecords:
    """At the highest level. Raises RunDirectoryError where nothing was recorded."""
    highest = max(hook.level for hook in make_hooks())
    with traincope.run(out, level=highest, agent=False) as run:
        for _ in range(TRIAL_SPANS):
            run.step()
            with traincope.span("doctor"):
                pass
    (rank,) = read_run(out).ranks
    return rank


@contextmanager
def _no_wishes() -> Iterator[None]:
    """As though nobody had switched recording off, or lowered its level."""
    held = {name: os.environ.pop(name) for name in (OFF_SWITCH, LEVEL_VARIABLE) if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(held)


def _probe(name: str, state: str, *, level: int | None) -> Finding:
    if state != ON:
        return probe_off(name, state)
    return ok(name, ON if not level else f"{ON} from level {level}")


def probe_off(name: str, state: str, *, where: str = "") -> Finding:
    """What a probe's state means that is not `on`; `where` names ranks."""
    said = f"{state}{where}"
    if state.startswith(f"{ON}, "):
        return note(name, said)
    if state.startswith(("failed", "switched off")):
        return bad(name, said, do="its traceback is in the training's log; please report it, the rest was recorded")
    if "its own time was above" in state:
        return note(name, said, do="its steps are too short for it; traincope.run(throttle=...) allows more")
    needed = re.search(r"needs level (\d+)", state)
    if needed:
        return note(name, said, do=f"record with {LEVEL_VARIABLE}={needed[1]}, if you want what it sees")
    if state.startswith("off"):
        return note(name, said)
    return note(name, said, do="what it watches is not in this torch, or not on this machine; the report does without")
