"""The report file without a browser: its content, its policy, and its texts for missing data."""

import argparse
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import traincope
from benchmarks.synthetic import Size, write_large_run
from tests.cli.test_commands import run
from tests.report.example import analysis, apart, without_steps
from traincope.analysis import FindingKind
from traincope.cli.commands.report import Report
from traincope.errors import UsageError
from traincope.report.document.document import to_document, to_json
from traincope.report.html import to_html
from traincope.report.html.page import sections as sections_of
from traincope.report.html.section import Section
from traincope.report.html.values import number_markup
from traincope.report.schema import Document
from traincope.report.sections import section as data
from traincope.report.sections.forms import Form
from traincope.report.sections.section import Number, number
from traincope.report.sections.source import Source
from traincope.report.sections.verdict import EVIDENCE

SAMPLES = Path(__file__).parents[3] / "sample_runs"
MEGABYTE = 1_000_000


class Reader(HTMLParser):
    """Tags with their attributes, and the text of blocks by id."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.blocks: dict[str, str] = {}
        self._block: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        result = dict(attrs)
        self.tags.append((tag, result))
        self._block = result.get("id") if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self._block is not None:
            self.blocks[self._block] = data
            self._block = None


def sections(source: Source) -> dict[str, Section]:
    return {section.name: section for section in sections_of(source)}


def source_of(result: traincope.Analysis) -> Source:
    return Source(analysis=result, document=to_document(result))


def test_the_report_contains_the_document_unchanged() -> None:
    result = analysis()
    reader = Reader(to_html(result))
    assert json.loads(reader.blocks["document"]) == json.loads(to_json(to_document(result)))


def test_the_report_loads_nothing() -> None:
    """Tags load nothing, and the policy forbids loading; links target places on the page."""
    reader = Reader(to_html(analysis()))
    loading = [(tag, result) for tag, result in reader.tags if {"src", "srcset", "data", "action"} & set(result)]
    assert loading == []
    assert {tag for tag, _ in reader.tags} & {"link", "iframe", "object", "embed", "img", "base"} == set()
    assert all(result["href"].startswith("#") for tag, result in reader.tags if tag == "a")
    policy = next(result["content"] for _, result in reader.tags if result.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    scripts = policy.split("; ")[1]
    assert "unsafe" not in scripts
    assert "http" not in policy


def test_the_verdict_comes_first_and_sections_keep_their_order() -> None:
    names = [section.name for section in sections(source_of(analysis())).values()]
    assert names == [
        *("verdict", "ledger", "utilization", "communication", "critical-path", "pipeline", "ranks", "sampled-stacks"),
        *("clocks", "slowdown", "hangs", "faults", "memory", "hardware", "energy", "kernels", "experts"),
        *("rollouts", "logged", "goodput", "reliability", "recording", "explained"),
    ]


def test_every_link_targets_a_section() -> None:
    for result in (analysis(), without_steps()):
        reader = Reader(to_html(result))
        places = {f"#{attributes.get('id')}" for _, attributes in reader.tags}
        links = [attributes["href"] for tag, attributes in reader.tags if tag == "a"]
        assert set(links) <= places
    assert set(EVIDENCE.values()) <= {section.name for section in sections(source_of(analysis())).values()}
    assert set(EVIDENCE) <= set(FindingKind)


def test_a_finding_links_to_its_evidence() -> None:
    (finding,) = sections(source_of(analysis()))["verdict"].body
    assert 'cannot go below 20.0 %. (<a href="#pipeline">evidence</a>)' in finding


def test_the_kind_of_a_finding_links_to_its_explanation() -> None:
    shown = sections(source_of(analysis()))
    assert '<h3><a href="#explained-the-pipeline-idles">pipeline bubble</a>' in shown["verdict"].html
    (entry,) = shown["explained"].body
    assert entry.startswith('<article id="explained-the-pipeline-idles"><h3>The pipeline idles</h3>')
    assert "<strong>How to check it worked.</strong> <code>traincope diff BEFORE AFTER</code>" in entry


def test_comparisons_across_hosts_show_the_clock_bound() -> None:
    sentence = "waits and transfers across hosts within 80.0 us"
    assert sentence not in sections(source_of(analysis()))["communication"].html
    assert sentence in sections(source_of(apart(analysis())))["communication"].html


def shown(document: Document, *path: str | int, form: Form, per: data.Path | None = None) -> str:
    return number_markup(document, number(*path, form=form, per=per))


def test_a_number_carries_its_pointer_and_form() -> None:
    document = to_document(analysis())
    assert shown(document, "ledger", "waterfall", "forward", form="share") == (
        '<data value="0.275" data-at="/ledger/waterfall/forward" data-as="share">27.5 %</data>'
    )
    per_step = shown(document, "ledger", "terms", "forward", form="milliseconds", per=("ledger", "rank_steps"))
    assert per_step == (
        '<data value="27500000.0" data-at="/ledger/terms/forward" data-per="/ledger/rank_steps" '
        'data-as="milliseconds">27.50</data>'
    )


def test_a_missing_value_is_a_dash() -> None:
    document = to_document(analysis())
    dash = '<span class="missing">-</span>'
    assert shown(document, "utilization", "mfu", form="share") == dash
    per_step = shown(document, "ledger", "terms", "launch_gap", form="milliseconds", per=("ledger", "rank_steps"))
    assert per_step == dash
    assert shown(document, "goodput", "elapsed_ns", form="duration") == dash


def test_a_sum_lists_its_parts() -> None:
    """Rank 0: 75 + 120 ms of 300."""
    path = ("ledger", "ranks", 0, "terms")
    both = Number(((*path, "forward"), (*path, "backward")), "share", ("ledger", "ranks", 0, "wall_ns"))
    markup = number_markup(to_document(analysis()), both)
    assert 'data-at="/ledger/ranks/0/terms/forward /ledger/ranks/0/terms/backward"' in markup
    assert markup.endswith(">65.0 %</data>")


def test_a_name_with_slash_or_space_is_one_pointer_key() -> None:
    odd = {**to_document(analysis()), "odd ~/ key": {"x": 3}}
    markup = shown(odd, "odd ~/ key", "x", form="count")  # type: ignore[arg-type]
    assert 'data-at="/odd%20~0~1%20key/x"' in markup


def test_every_section_without_evidence_says_what_is_missing() -> None:
    missing = {name: section.missing for name, section in sections(source_of(without_steps())).items()}
    assert missing == {
        "verdict": None,
        "ledger": "Unknown: no complete step was recorded.",
        "utilization": None,
        "communication": "No collective was recorded in a counted step. `traincope doctor RUN` lists the probes that "
        "were on.",
        "critical-path": "Unknown: no step was completed by all ranks.",
        "pipeline": "No step of the whole pipeline was recorded: a stage has no recorded actions, or no step was "
        "completed.",
        "ranks": "No complete step was recorded, so ranks cannot be compared.",
        "sampled-stacks": "No window of sampled Python stacks was requested. `traincope profile RUN --stacks RANK "
        "RANK` requests one.",
        "clocks": None,
        "slowdown": "The run was not imported from a table of operations.",
        "hangs": "No rank hangs, and no collective mismatches, as far as the records show.",
        "faults": "No fault, checkpoint, evaluation or event was recorded.",
        "memory": "No memory was recorded: the memory probe was off, or no step was completed.",
        "hardware": None,
        "energy": "The energy is unknown: a part of a run has no energy.",
        "kernels": "No kernel traces. Record steps at level 3, or import traces with `traincope import`.",
        "experts": "The training logged no expert load.",
        "rollouts": "The training records no rollouts: call traincope.rollout(lengths) after each batch.",
        "logged": "No values were logged. Call `run.log(loss=...)` in each step.",
        "goodput": "Unknown: no attempt reached a step, or imported traces show a part of the job only.",
        "reliability": "Interruptions are unknown: no attempt reached a step, or imported traces show a part of the job"
        " only.",
        "recording": None,
        "explained": None,
    }


def test_no_section_is_an_empty_plot() -> None:
    """Every place for a figure has its data on the page."""
    reader = Reader(to_html(analysis()))
    places = [result["data-figure"] for _, result in reader.tags if result.get("class") == "plot"]
    assert len(places) == len(set(places)) >= 4
    for name in places:
        assert name is not None
        assert json.loads(reader.blocks[name])["data"]


@pytest.mark.sweep
def test_a_price_is_a_column() -> None:
    page = to_html(analysis(), price_per_gpu_hour=3_600_000.0)
    assert 'data-at="/ledger/cost/money/forward"' in page
    assert 'data-at="/ledger/cost/losses/0/money"' in page
    assert 'data-at="/verdict/0/estimated_gain_money"' in page
    bare = to_html(analysis())
    assert 'data-at="/ledger/cost/' not in bare
    assert 'estimated_gain_rank_hours" data-as' not in bare


def test_a_run_of_64_ranks_is_less_than_five_megabytes(tmp_path: Path) -> None:
    """64 ranks, 90 counted steps."""
    write_large_run(SAMPLES / "demo", tmp_path / "large", size=Size(shards=32, repeats=3))
    page = to_html(traincope.analyze(traincope.open_run(tmp_path / "large")))
    assert 2 * MEGABYTE < len(page.encode()) < 5 * MEGABYTE
    assert "64 ranks (pp 2 x fsdp 32)" in page


def test_the_same_run_gives_the_same_file() -> None:
    assert to_html(analysis()) == to_html(analysis())


def run_command(*words: str) -> int:
    """Run the command with these arguments; returns its exit code."""
    command = Report()
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(SAMPLES / "format-1"), "--format", "html", *words]))


def test_the_command_writes_the_file_and_nothing_else(tmp_path: Path) -> None:
    shown = run("report", str(SAMPLES / "format-1"), "--format", "html", "-o", str(tmp_path / "report.html"))
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "", "")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>\n<html lang=")


def test_output_may_be_piped_but_not_printed_to_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_command() == 0
    assert capsys.readouterr().out.endswith("</html>\n")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with pytest.raises(UsageError, match=r"^an HTML report is a file; give its name, e.g. -o report.html$"):
        run_command()


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=rf"^cannot write {re.escape(str(tmp_path))}: Is a directory; give another file$"
    ):
        run_command("-o", str(tmp_path))
