"""Finished run in a database: the text's format, and a real Prometheus that agrees with the report."""

import json
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.exporters.prometheus.prometheus_over import prometheus_over
from tests.exporters.runs import event, two_ranks
from tests.timeline.build import Row, phase, rank, step, timeline
from traincope import analyze, open_run
from traincope.errors import RunDirectoryError
from traincope.events import Kind, Phase
from traincope.metrics.catalogue import BY_PROMETHEUS, CATALOGUE
from traincope.metrics.metric import Type
from traincope.report.document.document import to_document, to_json
from traincope_exporters.history import LIVE_ONLY, MAKERS, final
from traincope_exporters.openmetrics import openmetrics

DEMO = Path("sample_runs/demo")


def lines_of(name: str, text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(name)]


def test_a_counter_has_its_sum_at_the_end_of_each_step() -> None:
    """Times have a resolution of 1 ms, so these steps take seconds."""
    text = "".join(openmetrics(two_ranks(scale=1_000_000_000)))
    steps_of_rank_0 = [line for line in lines_of("traincope_steps_total{", text) if 'rank="0"' in line]
    labels = '{run="hand-made",host="host-boot",rank="0"}'
    assert steps_of_rank_0 == [
        f"traincope_steps_total{labels} 0.0 0.000",
        f"traincope_steps_total{labels} 1.0 1000.000",
        f"traincope_steps_total{labels} 2.0 2000.000",
        f"traincope_steps_total{labels} 3.0 3000.000",
    ]
    waited = [line.rpartition("} ")[2] for line in lines_of("traincope_ledger", text) if 'term="exposed_wait"' in line]
    assert waited == ["0.0 0.000", "200.0 2000.000", "400.0 3000.000"]


def test_metadata_lines_match_the_catalogue() -> None:
    text = "".join(openmetrics(open_run(DEMO)))
    assert text.endswith("# EOF\n")
    without_histograms = []
    for block in text.removesuffix("# EOF\n").split("# TYPE ")[1:]:
        if " histogram\n" not in block.splitlines(keepends=True)[0]:
            without_histograms.append("# TYPE " + block)
    families = list(text_string_to_metric_families("".join(without_histograms) + "# EOF\n"))
    assert len(families) > 25
    for family in families:
        metric = BY_PROMETHEUS[family.samples[0].name]
        assert (family.type, family.unit, family.documentation) == (metric.type.value, metric.unit.word, metric.help)
        for sample in family.samples:
            assert tuple(sample.labels) == metric.labels


def test_every_metric_is_replayed_or_live_only() -> None:
    live = {metric.name for metric in CATALOGUE if metric.name.startswith(LIVE_ONLY)}
    assert {metric.name for metric in CATALOGUE} - live - MAKERS.keys() == set()
    assert live & MAKERS.keys() == set()


def test_histogram_points_are_cumulative() -> None:
    """Two steps of each of two ranks, 1000 s long: above all bounds."""
    text = "".join(openmetrics(two_ranks(scale=1_000_000_000)))
    last = [line for line in lines_of("traincope_step_time_seconds", text) if line.endswith(" 3000.000")]
    assert [line.rpartition("} ")[2] for line in last] == [*12 * ["0 3000.000"], *2 * ["4 3000.000"], "4000.0 3000.000"]


def test_a_name_from_a_run_stays_in_its_label() -> None:
    hostile = Row(kind=Kind.SCALAR, start_ns=1500, end_ns=1500, name='a"b\\c\nd', step=1, value=0)
    (line,) = lines_of("traincope_logged", "".join(openmetrics(two_ranks(hostile))))
    assert line.endswith(',name="a\\"b\\\\c\\nd"} 0.0 0.000')


def test_a_named_event_is_not_a_fault() -> None:
    assert lines_of("traincope_faults", "".join(openmetrics(two_ranks(event("mine", 1500, at=1))))) == []


def test_a_fault_counter_starts_at_zero() -> None:
    nan = Row(kind=Kind.SCALAR, start_ns=1500, end_ns=1500, name="loss", step=1, value=0x7FF8000000000000)
    text = "".join(openmetrics(two_ranks(nan, scale=1_000_000_000)))
    lines = [line.partition("} ")[2] for line in lines_of("traincope_faults_total{", text)]
    assert lines == ["0.0 0.000", "1.0 1500.000"]


def test_a_run_with_only_a_warm_up_step_has_some_series() -> None:
    run = timeline(rank(0, step(0, 0, 1_000_000_000)))
    text = "".join(openmetrics(run))
    assert [line.rpartition("} ")[2] for line in lines_of("traincope_steps_total", text)] == ["0.0 0.000", "1.0 1.000"]
    assert lines_of("traincope_mfu", text) == lines_of("traincope_ranks{", text)[3:] == []
    assert {sample.metric.name for sample in final(analyze(run))} >= {"steps", "step.last", "ranks"}


def test_a_run_without_a_step_is_refused() -> None:
    with pytest.raises(RunDirectoryError, match="holds no complete step, so openmetrics"):
        "".join(openmetrics(timeline(rank(0, phase(Phase.FORWARD, 0, 10)))))


def test_prometheus_over_a_finished_run_agrees_with_the_report(tmp_path: Path) -> None:
    analysis = analyze(open_run(DEMO))
    report = json.loads(to_json(to_document(analysis)))
    (tmp_path / "run.om").write_text("".join(openmetrics(analysis.timeline)))
    end = analysis.timeline.end_ns / 1e9
    with prometheus_over(tmp_path / "run.om", tmp_path) as prometheus:

        def value(expression: str) -> float:
            ((_, result),) = prometheus.query(expression, at_seconds=end)
            return result

        terms = report["ledger"]["terms"]
        summed = prometheus.query("sum by (term, axis) (traincope_ledger_seconds_total)", at_seconds=end)
        seconds_by_term = {(labels["term"], labels.get("axis", "")): seconds for labels, seconds in summed}
        for (term, axis), seconds in seconds_by_term.items():
            parts = (
                [f"{term}[{axis}]"] if axis else [name for name in terms if name == term or name.startswith(f"{term}.")]
            )
            assert seconds == pytest.approx(sum(terms[part] for part in parts) / 1e9, abs=1e-9)
        assert sum(seconds_by_term.values()) == pytest.approx(report["ledger"]["wall_ns"] / 1e9, abs=1e-6)
        assert value("sum(traincope_step_wall_seconds_total)") == pytest.approx(report["ledger"]["wall_ns"] / 1e9)
        assert value("sum(traincope_steps_total)") == 4 * 30
        assert value("traincope_step_time_seconds_count") == report["ledger"]["rank_steps"]
        for row in report["comm"]:
            chosen = f'{{axis="{row["axis"]}", op="{row["op"]}"}}'
            assert value(f"traincope_collective_size_bytes_total{chosen}") == row["bytes"]
            assert value(f"traincope_collective_transfer_seconds_total{chosen}") == pytest.approx(
                row["transfer_ns"] / 1e9
            )
            assert value(f"traincope_collective_wait_seconds_total{chosen}") == pytest.approx(row["wait_ns"] / 1e9)
        steps = "(sum(increase(traincope_steps_total[20s])) > 0)"
        assert value(f"sum(rate(traincope_ledger_seconds_total{{term='forward'}}[20s])) and {steps}") > 0
        assert value("traincope_goodput_ratio") == pytest.approx(report["goodput"]["productive_ratio"])
        assert value("avg(avg_over_time(traincope_mfu_ratio[1h]))") == pytest.approx(
            report["utilization"]["mfu"], rel=0.02
        ), "a mean over steps and not over their time"
        for metric in CATALOGUE:
            suffix = "_count" if metric.type is Type.HISTOGRAM else ""
            count = prometheus.query(f"count({metric.prometheus}{suffix})", at_seconds=end)
            assert bool(count) == (f"{metric.prometheus}{suffix}" not in NOT_IN_THE_DEMO), metric.name


NOT_IN_THE_DEMO = frozenset(
    {
        *(metric.prometheus for metric in CATALOGUE if metric.name.startswith(LIVE_ONLY)),
        BY_PROMETHEUS["traincope_ambiguous_wait_seconds_total"].prometheus,
        BY_PROMETHEUS["traincope_faults_total"].prometheus,
        BY_PROMETHEUS["traincope_module_time_seconds_total"].prometheus,
        BY_PROMETHEUS["traincope_run_ahead_seconds"].prometheus,
        BY_PROMETHEUS["traincope_job_interruptions"].prometheus,
        BY_PROMETHEUS["traincope_job_badput_seconds"].prometheus,
    }
)
"""Metrics without values: live ones, faults and interruptions (there are none) and modules (not recorded)."""
