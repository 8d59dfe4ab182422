"""Checks of this machine: real ones where they can run, otherwise on text made by hand."""

import re
import subprocess
import sys
from importlib.metadata import EntryPoint, metadata
from pathlib import Path

import pytest

from traincope.doctor import extras
from traincope.doctor.disk import examine_disk
from traincope.doctor.extras import EXPORTERS, EXTRAS, examine_extras, not_importable
from traincope.doctor.finding import Finding, State, ok
from traincope.doctor.machine import examine_settings
from traincope.doctor.probes import examine_probes, probe_off
from traincope.doctor.software import examine_software, release, torch_bounds
from traincope.doctor.variables import KNOWN, OWN, PREFIX
from traincope.metrics import installed
from traincope.record.hooks import make_hooks

ROOT = Path(__file__).parents[2]


def states(findings: tuple[Finding, ...]) -> dict[str, State]:
    return {finding.name: finding.state for finding in findings}


def test_examining_a_writable_directory_leaves_it_unchanged(tmp_path: Path) -> None:
    findings = examine_disk(tmp_path / "not" / "there")
    assert states(findings)["directory"] is State.OK
    assert states(findings)["reservation"] is State.OK
    assert findings[0].fact == f"{tmp_path / 'not' / 'there'}; it will be created"
    assert list(tmp_path.iterdir()) == []


def test_a_checkout_without_installation_has_no_live_exporters() -> None:
    """-S leaves out the installed packages, and with them the metadata of this installation."""
    program = f"import runpy; print(runpy.run_path({installed.__file__!r})['installed_exporters']())"
    names = [
        subprocess.run([sys.executable, *options, "-c", program], check=True, capture_output=True, text=True).stdout
        for options in (["-I"], ["-I", "-S"])
    ]
    assert names == ["('otlp', 'prometheus', 'tensorboard')\n", "()\n"]


@pytest.mark.parametrize(("names", "others"), [((), ""), (("kafka",), "; another package has kafka")])
def test_missing_live_exporters_are_a_note(
    names: tuple[str, ...], others: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [EntryPoint(name, "their_package:start", installed.LIVE_GROUP) for name in names]
    monkeypatch.setattr(installed, "entry_points", lambda **_: points)
    (finding,) = (each for each in examine_extras() if each.name == "live exporters")
    assert (finding.state, finding.advice) == (State.NOTE, installed.INSTALL)
    assert finding.fact == f"{installed.NO_EXPORTERS}{others}"
    python = sys.executable
    assert finding.advice == (
        f"install it: {python} -m pip install traincope; or from its checkout: {python} -m pip install -e ."
    )


def test_every_extra_of_the_package_is_tried() -> None:
    """The others are for developers, all of them, or py-spy, which a finding of its own starts."""
    declared = set(metadata("traincope").get_all("Provides-Extra") or ())
    assert set(EXTRAS) == declared - {"all", "dev", "docs", "stacks"}
    assert set(installed.installed_exporters()) == set(EXPORTERS)


def test_an_extra_is_tried_by_importing_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bare installation has the entry points of all exporters, and the packages of none."""
    (tmp_path / "broken_package.py").write_text("raise ImportError('libbroken.so: cannot open\\nshared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    absent = (("no_such_package", "neither.this", "json"), "HTML")
    monkeypatch.setattr(extras, "EXTRAS", {"view": absent, "sql": (("json",), "SQL"), "peers": absent})
    monkeypatch.setattr(extras, "EXPORTERS", {"prometheus": ("no_such_package",)})
    exporters, view, sql, peers = examine_extras()
    assert (exporters.state, sql) == (State.NOTE, ok("sql", "SQL"))
    assert exporters.fact == "otlp, not prometheus (without no_such_package), tensorboard"
    assert view.fact == "absent: HTML (without no_such_package, neither)"
    assert view.advice == peers.advice == "pip install 'traincope[view,peers]', or only those that you need"
    assert not_importable(("broken_package",)) == (
        "broken_package cannot be imported: libbroken.so: cannot open shared object file"
    )


def test_it_says_whether_stacks_can_be_read_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = (each for each in examine_software() if each.name == "stacks from outside")
    assert (finding.state, finding.fact.endswith("/py-spy can read them")) == (State.OK, True)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    (finding,) = (each for each in examine_software() if each.name == "stacks from outside")
    assert (finding.state, finding.advice) == (State.NOTE, "pip install 'traincope[stacks]'")
    assert finding.fact == "a rank that does not answer has no stack in a hang: py-spy is not installed"


@pytest.mark.parametrize(
    ("out", "reason"),
    [
        ("/dev/null/run", "/dev/null/run cannot be created: /dev/null is a file"),
        ("/proc/run", "/proc cannot be written to: No such file or directory"),
    ],
)
def test_a_directory_that_is_not_writable_is_the_only_finding(out: str, reason: str) -> None:
    (finding,) = examine_disk(Path(out))
    assert (finding.state, finding.fact) == (State.BAD, reason)
    assert finding.advice == "choose another directory: traincope.run(out=...) or TRAINCOPE_OUT=DIR"


def test_every_probe_is_tried_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINCOPE", "off")
    monkeypatch.setenv("TRAINCOPE_LEVEL", "0")
    *probes, recording = examine_probes()
    assert {finding.name for finding in probes} == {hook.name for hook in make_hooks()}
    watching = [finding for finding in probes if not finding.fact.startswith("off: nothing to watch")]
    assert {finding.state for finding in watching} == {State.OK}
    assert (recording.name, recording.state) == ("recording", State.OK)


@pytest.mark.parametrize(
    ("state", "expected", "advice"),
    [
        ("off: needs level 2, this run records level 1", State.NOTE, "set TRAINCOPE_LEVEL=2 to record it"),
        ("off: level 0, asked for by the file level", State.NOTE, None),
        ("absent: AttributeError: no _maybe_compute_loss", State.NOTE, "this torch or this machine lacks"),
        ("off: nothing to watch: there is no NVIDIA driver here", State.NOTE, None),
        ("on, without ECC errors (Not Supported)", State.NOTE, None),
        ("failed 3 times: KeyError: 'x'", State.BAD, "report the traceback"),
        ("switched off: KeyError: 'x'", State.BAD, "report the traceback"),
    ],
)
def test_the_state_of_a_probe_that_is_not_on_decides_finding_and_advice(
    state: str, expected: State, advice: str | None
) -> None:
    finding = probe_off("pipeline", state, where=" (on rank 3)")
    assert (finding.state, finding.fact) == (expected, f"{state} (on rank 3)")
    assert (finding.advice is None) if advice is None else (advice in str(finding.advice))


@pytest.mark.parametrize(
    ("environment", "state", "fact"),
    [
        (
            {"HOME": "/root"},
            State.OK,
            "no variable TRAINCOPE_... is set (docs/reference/settings.md lists them)",
        ),
        ({"TRAINCOPE": "OFF"}, State.NOTE, "OFF: nothing is recorded"),
        ({"TRAINCOPE": "yes"}, State.OK, "yes: recording is on; only `off` and `0` switch it off"),
        ({"TRAINCOPE_LEVEL": "2"}, State.OK, "2"),
        ({"TRAINCOPE_AGENT": "off"}, State.OK, "off"),
        ({"TRAINCOPE_RUN_ID": "nightly-7"}, State.OK, "nightly-7"),
        ({"TRAINCOPE_RUN_ID": "a/b"}, State.NOTE, "'a/b' is not a run id; the launcher's id is used"),
        ({"TRAINCOPE_LEVEL": "high"}, State.NOTE, "'high' is not a level; level 1 is used"),
        ({"TRAINCOPE_OUTPUT": "x"}, State.NOTE, "is not a variable of traincope; the closest is TRAINCOPE_OUT"),
    ],
)
def test_variables_without_effect_are_named(environment: dict[str, str], state: State, fact: str) -> None:
    (finding,) = examine_settings(environment)
    assert (finding.state, finding.fact) == (state, fact)


def test_all_variables_of_the_code_are_known() -> None:
    folders = (ROOT / "traincope", ROOT / "exporters", ROOT / "dashboards")
    code = (path.read_text() for folder in folders for path in folder.rglob("*.py"))
    named = {name for text in code for name in re.findall(r'"(TRAINCOPE(?:_[A-Z_]+[A-Z])?)"', text)}
    assert named - {PREFIX} == (KNOWN | OWN) - {PREFIX}


def test_the_tested_versions_of_torch_are_read_from_the_package_metadata() -> None:
    assert torch_bounds() == ((2, 11), (2, 14))
    assert [release(text) for text in ("2.13.0+cpu", "2.9.1a0+git1234", "3")] == [(2, 13), (2, 9), (3, 0)]
