"""Defaults of a site: below what a training says, and never an error in it."""

import logging
from pathlib import Path

import pytest

import traincope
from traincope.doctor.machine import examine_site
from traincope.record.session.options import (
    DEFAULT_LEVEL,
    LEVEL_VARIABLE,
    Options,
    resolved_budget,
    resolved_level,
    site_options,
    with_site,
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "traincope.toml"
    monkeypatch.setenv("TRAINCOPE_SITE_FILE", str(path))
    for name in (LEVEL_VARIABLE, "TRAINCOPE_BUDGET"):
        monkeypatch.delenv(name, raising=False)
    return path


def test_the_site_is_below_the_call_and_the_call_below_the_variable(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert with_site({}) == Options()
    site.write_text('level = 2\nbudget = "none"\n')
    assert resolved_level(with_site({})) == 2
    assert resolved_budget(with_site({})) is None
    assert resolved_level(with_site({"level": 0})) == 0
    monkeypatch.setenv(LEVEL_VARIABLE, "3")
    assert resolved_level(with_site({"level": 0})) == 3


def test_a_run_takes_the_sites_defaults(site: Path, tmp_path: Path) -> None:
    site.write_text("level = 0\nagent = false\n")
    with traincope.run(tmp_path / "run") as run:
        run.step()
    records = traincope.open_run(tmp_path / "run").run.ranks
    assert [rank.info.level for rank in records] == [0]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'out = "/runs"\nlevl = 2\nlevel = 2', "'levl' is not an option that a site can set: ignored"),
        (b"level = ", "is not TOML: Invalid value (at end of document); no default of it applies"),
        (b"\xff", "is not TOML: 'utf-8' codec can't decode"),
    ],
)
def test_what_cannot_be_used_is_one_sentence_and_the_run_continues(
    site: Path, content: bytes, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    site.write_bytes(content)
    options = with_site({})
    assert resolved_level(options) == (2 if b"levl" in content else DEFAULT_LEVEL)
    assert options.out is None
    assert sentence in caplog.text
    assert all(record.levelno == logging.WARNING and "\n" not in record.message for record in caplog.records)


def test_a_value_of_the_wrong_type_is_reported_and_ignored(site: Path) -> None:
    site.write_text('messages = "off"\nwitness = 1\nlevel = true\ndisk_budget = "9"\nbudget = 0.01\nagent = false\n')
    values, problems = site_options(site)
    assert values == {"budget": 0.01, "agent": False}
    assert problems == (
        f"{site}: disk_budget must be a number, not '9': ignored",
        f"{site}: level must be a number, not True: ignored",
        f"{site}: messages must be true or false, not 'off': ignored",
        f"{site}: witness must be true or false, not 1: ignored",
    )


def test_an_unreadable_file_is_one_sentence(tmp_path: Path) -> None:
    values, (sentence,) = site_options(tmp_path)
    assert values == {}
    assert sentence == f"the site's file {tmp_path} cannot be read: Is a directory; no default of it applies"


def test_doctor_says_which_file_applies(site: Path) -> None:
    def facts(environment: dict[str, str]) -> list[str]:
        return [finding.fact for finding in examine_site(environment)]

    named = {"TRAINCOPE_SITE_FILE": str(site)}
    assert facts({"TRAINCOPE_SITE_FILE": ""}) == ["none"]
    assert facts(named) == [f"{site} does not exist"]
    site.write_text("level = 2\nbudget = 0.01\nlevl = 1")
    assert facts(named) == [
        f"{site}: 'levl' is not an option that a site can set: ignored",
        f"{site}: budget = 0.01, level = 2",
    ]
