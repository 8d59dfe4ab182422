"""The TRAINCOPE* variables in force."""

from collections.abc import Mapping
from difflib import get_close_matches

from traincope.doctor.finding import Finding, note, ok
from traincope.record.identity import RUN_ID, RUN_ID_VARIABLE
from traincope.record.options import DEFAULT_LEVEL, LEVEL_VARIABLE, OFF_SWITCH, OUT_VARIABLE
from traincope.startup.notes import NOTES_VARIABLE

PREFIX = "TRAINCOPE"
KNOWN = (OFF_SWITCH, OUT_VARIABLE, RUN_ID_VARIABLE, LEVEL_VARIABLE)


def examine_settings(environment: Mapping[str, str]) -> tuple[Finding, ...]:
    found = sorted(name for name in environment if name.startswith(PREFIX) and name != NOTES_VARIABLE)
    if not found:
        return (ok("variables", f"none of {', '.join(KNOWN)} is set"),)
    return tuple(_variable(name, environment[name]) for name in found)


def _variable(name: str, value: str) -> Finding:
    if name == OFF_SWITCH and value.lower() in ("off", "0"):
        return note(name, f"{value}: nothing is recorded", do=f"unset {name} to record")
    if name == OFF_SWITCH:
        return ok(name, f"{value}: recording is on; only `off` and `0` switch it off")
    if name == LEVEL_VARIABLE and not value.isdecimal():
        return note(name, f"{value!r} is no level; {DEFAULT_LEVEL} is used", do=f"set {name} to a digit")
    if name == RUN_ID_VARIABLE and not RUN_ID.fullmatch(value):
        return note(name, f"{value!r} is no run id; the launcher's is used", do=f"set {name} to letters, digits and -")
    if name in KNOWN:
        return ok(name, value)
    closest = get_close_matches(name, KNOWN, n=1)
    hint = f"; the closest is {closest[0]}" if closest else ""
    return note(name, f"means nothing to traincope{hint}", do=f"unset or rename {name}")
