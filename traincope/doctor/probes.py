"""Check each probe by installing it: a short recording in a temporary directory, read back and removed."""

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
from traincope.record.session.options import LEVEL_VARIABLE, OFF_SWITCH
from traincope.store import RankRecords, read_run
from traincope.timeline.observation import NATIVE_PROBE, ON

TRIAL_SPANS = 10


def examine_probes() -> tuple[Finding, ...]:
    if importlib.util.find_spec("torch") is None:
        return (note("all", "not tested: they observe torch, which is not installed"),)
    import torch  # noqa: F401 - probes are installed into a torch that is there

    try:
        with tempfile.TemporaryDirectory(prefix="traincope-doctor-") as directory, _recording_forced():
            rank = _record(Path(directory) / "run")
    except (RunDirectoryError, OSError) as error:
        return (
            bad("recording", f"nothing could be recorded: {error}", do="read the warnings above and the section DISK"),
        )
    levels = {hook.name: hook.level for hook in make_hooks()}
    return (
        *(
            _probe(name, state, level=levels.get(name))
            for name, state in rank.info.probes.items()
            if name != NATIVE_PROBE
        ),
        ok("recording", f"{sum(len(segment.records) for segment in rank.segments)} records written and read back"),
    )


def _record(out: Path) -> RankRecords:
    """Record at the highest level. Raises RunDirectoryError if nothing was recorded."""
    highest = max(hook.level for hook in make_hooks())
    with traincope.run(out, level=highest, agent=False) as run:
        for _ in range(TRIAL_SPANS):
            run.step()
            with traincope.span("doctor"):
                pass
    (rank,) = read_run(out).ranks
    return rank


@contextmanager
def _recording_forced() -> Iterator[None]:
    """Ignore variables that switch recording off or lower its level."""
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
    """Finding about a probe whose state is not `on`; `where` names ranks."""
    fact = f"{state}{where}"
    if state.startswith(f"{ON}, "):
        return note(name, fact)
    if state.startswith(("failed", "switched off")):
        return bad(name, fact, do="report the traceback in the training's log as an issue; all other probes recorded")
    needed = re.search(r"needs level (\d+)", state)
    if needed:
        return note(name, fact, do=f"set {LEVEL_VARIABLE}={needed[1]} to record it")
    if state.startswith("off"):
        return note(name, fact)
    return note(name, fact, do="use the report without it: this torch or this machine lacks what it observes")
