"""Check whether a training can be recorded on this machine, with this Python and these environment variables."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

from traincope.doctor.disk import examine_disk
from traincope.doctor.extras import examine_extras
from traincope.doctor.finding import Examination, Finding, Section, note, ok
from traincope.doctor.gpu import examine_gpu
from traincope.doctor.probes import examine_probes
from traincope.doctor.software import examine_software
from traincope.doctor.variables import KNOWN, OWN, PREFIX
from traincope.record.session.identity import RUN_ID, RUN_ID_VARIABLE
from traincope.record.session.options import DEFAULT_LEVEL, LEVEL_VARIABLE, OFF_SWITCH, OUT_VARIABLE, site_options
from traincope.site_file import site_file
from traincope.store.layout import DEFAULT_ROOT


def examine_machine(environment: Mapping[str, str]) -> Examination:
    """Examine the machine. Imports torch if it is installed, and records for a moment to a temporary directory."""
    out = Path(environment.get(OUT_VARIABLE) or DEFAULT_ROOT).absolute()
    return Examination(
        subject="this machine and this Python",
        sections=(
            Section(title="SOFTWARE", findings=examine_software()),
            Section(title="EXTRAS", findings=examine_extras()),
            Section(title="GPU", findings=examine_gpu()),
            Section(title="PROBES", findings=examine_probes()),
            Section(title="DISK", findings=examine_disk(out)),
            Section(title="SETTINGS", findings=(*examine_site(environment), *examine_settings(environment))),
        ),
    )


def examine_settings(environment: Mapping[str, str]) -> tuple[Finding, ...]:
    names = sorted(name for name in environment if name.startswith(PREFIX) and name not in OWN)
    if not names:
        return (ok("variables", f"no variable {PREFIX}_... is set (docs/reference/settings.md lists them)"),)
    return tuple(_variable(name, environment[name]) for name in names)


def examine_site(environment: Mapping[str, str]) -> Iterator[Finding]:
    """The site's file that applies, and what of it cannot be used."""
    path = site_file(environment)
    values, problems = site_options(path)
    for problem in problems:
        yield note("site file", problem, do=f"correct {path}")
    if path is None or not path.exists():
        yield ok("site file", "none" if path is None else f"{path} does not exist")
    elif values:
        yield ok("site file", f"{path}: " + ", ".join(f"{name} = {value}" for name, value in sorted(values.items())))


def _variable(name: str, value: str) -> Finding:
    if name == OFF_SWITCH and value.lower() in ("off", "0"):
        return note(name, f"{value}: nothing is recorded", do=f"unset {name} to record")
    if name == OFF_SWITCH:
        return ok(name, f"{value}: recording is on; only `off` and `0` switch it off")
    if name == LEVEL_VARIABLE and not value.isdecimal():
        return note(name, f"{value!r} is not a level; level {DEFAULT_LEVEL} is used", do=f"set {name} to a digit")
    if name == RUN_ID_VARIABLE and not RUN_ID.fullmatch(value):
        return note(
            name, f"{value!r} is not a run id; the launcher's id is used", do=f"set {name} to letters, digits and -"
        )
    if name in KNOWN:
        return ok(name, value)
    closest = get_close_matches(name, sorted(KNOWN), n=1)
    hint = f"; the closest is {closest[0]}" if closest else ""
    return note(name, f"is not a variable of traincope{hint}", do=f"unset or rename {name}")
