"""Estimates over all steps in the report: their intervals, the steps they stand on, and why one has no interval."""

import io
import json
import re

import pytest
from rich.console import Console

from tests.analysis.ledger.test_estimates import STEPS, recorded
from tests.analysis.test_run_estimates import pipelined
from tests.truth.windows.thinning import thin
from traincope.analysis import Analysis, analyze
from traincope.analysis.run_estimates import FEW_WAITS
from traincope.events import BLOCK_STEPS
from traincope.report import to_document, to_json
from traincope.report.html import to_html
from traincope.report.text.first_screen import render_first_screen
from traincope.report.text.text import render


@pytest.fixture(scope="module")
def thinned() -> Analysis:
    return analyze(thin(recorded(), run_id="a", halvings=2))


def report(analysis: Analysis, *, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, record=True)
    render(analysis, console)
    return console.export_text()


def percent(ratio: float | None) -> str:
    assert ratio is not None
    return f"{100 * ratio:.1f}"


def test_the_report_states_each_interval_and_the_steps_it_stands_on(thinned: Analysis) -> None:
    run = thinned.ledger.run
    assert run is not None
    text = re.sub(r"\s+", " ", report(thinned))
    wait, exposed = run.estimates["exposed_wait[dp]"], run.sums["exposed_communication[dp]"]
    source = f"from {run.sampled_steps} of {run.steps} steps"
    assert (
        f"exposed communication on dp: {percent(exposed.estimate)} % of step time "
        f"({percent(exposed.low)} to {percent(exposed.high)} %, {source})"
    ) in text
    interval = f"{percent(wait.low)} to {percent(wait.high)} %"
    assert re.search(rf"exposed_wait\[dp\] {percent(wait.estimate)} % [\d.]+ ms {interval}", text)
    assert re.search(r" forward +[\d.]+ % +[\d.]+ ms exact ", text)
    assert f"exact: every step records it; other terms are estimates {source}, with 95 % intervals" in text
    assert f"{percent(wait.estimate)} % of step time ({interval}, {source}) for the last rank to join" in text


def test_the_mean_step_is_that_of_all_steps(thinned: Analysis) -> None:
    run = thinned.ledger.run
    assert run is not None
    mean = f"{run.wall_ns / run.rank_steps / 1e6:.1f} ms"
    assert f"WHERE THE TIME WENT  mean step {mean} over 2 ranks and {STEPS - 1} steps" in report(thinned)
    console = Console(file=io.StringIO(), width=100, record=True)
    render_first_screen(thinned, console)
    assert f"mean step {mean} " in console.export_text()


def test_the_critical_path_states_the_interval_of_all_steps(thinned: Analysis) -> None:
    path, ledger = thinned.critical_path, thinned.ledger.run
    assert path is not None
    assert path.run is not None
    assert ledger is not None
    assert (path.run.steps, len(path.steps)) == (STEPS - 1, ledger.sampled_steps)
    forward = path.run.estimates["forward"]
    interval = f"{percent(forward.low)} to {percent(forward.high)} %"
    text = report(thinned)
    assert f"over {len(path.steps)} sampled steps" in text
    assert re.search(rf"    forward +[\d.]+ % +[\d.]+ +{interval} +\d: [\d.]+ %", text)
    assert f"all steps: 95 % interval of the term's share of the paths of all {STEPS - 1} steps" in text
    of_json = to_document(thinned)["critical_path"]
    assert of_json is not None
    assert of_json["run"] is not None
    assert of_json["run"]["estimates"]["forward"]["low"] == forward.low
    assert f"<td>{interval}" in to_html(thinned)


def test_sections_of_sampled_steps_state_their_number(thinned: Analysis) -> None:
    run = thinned.ledger.run
    assert run is not None
    text = re.sub(r"\s+", " ", report(thinned))
    source = f"from {run.sampled_steps} of {run.steps} steps"
    assert f"COMMUNICATION means per rank and step, {source}; times in ms" in text
    assert f"RANKS means per step, {source}" in text


def test_an_unknown_sampling_error_has_its_reason() -> None:
    few = report(analyze(thin(recorded(steps=8 * BLOCK_STEPS), run_id="a", halvings=2)), width=300)
    assert "steps; sampling error unknown: fewer than 8 windows" in few
    assert "sampling error unknown for backward, exposed_transfer[dp], exposed_wait[dp]: fewer than 8 windows" in few


def test_the_json_has_the_terms_of_all_steps_and_their_estimates(thinned: Analysis) -> None:
    ledger = json.loads(to_json(to_document(thinned)))["ledger"]
    run = ledger["run"]
    assert sum(ns for ns in run["terms"].values() if ns is not None) == run["wall_ns"] > ledger["wall_ns"]
    assert run["estimates"]["forward"].keys() == {"estimate", "low", "high", "steps", "reason"}
    for term, estimate in run["estimates"].items():
        assert estimate["estimate"] == pytest.approx(ledger["waterfall"][term], abs=1e-6)
        assert estimate["low"] is None or estimate["low"] <= estimate["estimate"] <= estimate["high"]
    assert ledger["cost"]["wall_rank_hours"] == pytest.approx(run["wall_ns"] / 3.6e12)


def test_the_html_report_has_a_column_of_intervals(thinned: Analysis) -> None:
    page = to_html(thinned)
    assert "95 % interval" in page
    assert 'data-at="/ledger/run/wall_ns"' in page
    assert "95 % interval" not in to_html(analyze(recorded(steps=20)))


def test_communication_states_its_intervals_over_all_steps(thinned: Analysis) -> None:
    estimates, run = thinned.run_estimates, thinned.ledger.run
    assert estimates is not None
    assert run is not None
    wait = estimates.operations["dp", "all_reduce"].wait
    stated = f"wait {percent(wait.estimate)} % ({percent(wait.low)} to {percent(wait.high)} %)"
    text = re.sub(r"\s+", " ", report(thinned))
    assert "dp all_reduce: 1.0 (1.0 to 1.0) calls, 1000 B (1000 B to 1000 B), transfer " in text
    for shown in (text, to_html(thinned)):
        assert stated in shown
        assert f"with 95 % intervals, from {run.sampled_steps} of {run.steps} steps:" in shown
    of_json = to_document(thinned)["comm"]
    assert of_json is not None
    assert of_json[0]["run"] is not None
    assert of_json[0]["run"]["wait"]["low"] == wait.low


def test_the_bubble_states_its_intervals_over_all_steps() -> None:
    analysis = analyze(thin(pipelined(), run_id="a", halvings=2))
    estimates = analysis.run_estimates
    assert estimates is not None
    text = re.sub(r"\s+", " ", report(analysis))
    for name, of in (("all stages", estimates.bubble), ("stage 0", estimates.stages[0])):
        whole = of["bubble"]
        stated = f"bubble {percent(whole.estimate)} % ({percent(whole.low)} to {percent(whole.high)} %)"
        assert re.search(rf"{name}: schedule [^:]*{re.escape(stated)}", text)
        assert stated in to_html(analysis)


def test_each_ranks_row_states_its_intervals_over_all_steps(thinned: Analysis) -> None:
    assert thinned.run_estimates is not None
    compute = thinned.run_estimates.ranks[1].compute
    stated = f"compute {percent(compute.estimate)} % ({percent(compute.low)} to {percent(compute.high)} %)"
    text = re.sub(r"\s+", " ", report(thinned))
    for shown in (text, to_html(thinned)):
        assert f"rank 1: {stated}, exposed " in shown
        assert f"of the sampled steps alone, sampling error unknown: {FEW_WAITS}" in shown
    stragglers = to_document(thinned)["stragglers"]
    assert stragglers is not None
    assert stragglers["ranks"][1]["run"] is not None
    assert stragglers["ranks"][1]["run"]["straggler_wait"]["low"] is None
