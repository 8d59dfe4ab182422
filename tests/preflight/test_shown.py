"""The judgement of hosts, and its text, lines and JSON."""

import io
import json

from rich.console import Console

from tests.preflight.made import with_pairs, with_rates
from tests.preflight.test_pipeline import pipeline, trained
from traincope.plan.layout.activations import ActivationPolicy
from traincope.plan.layout.layout import Layout
from traincope.plan.model.precision import Precision
from traincope.plan.model.transformer import Transformer
from traincope.preflight.document import to_document, to_node_report
from traincope.preflight.judging.judgement import Configured, Judgement, judge
from traincope.preflight.judging.prediction import ConfiguredModel, predict_step
from traincope.preflight.measurements import Measurements, PairTime, Quantity, Rate, Round, Settings, SweepTime
from traincope.preflight.text import host_line, job_lines, render

MODEL = ConfiguredModel(
    shape=Transformer(layers=8, hidden=64, heads=4, ffn=128, vocabulary=257, sequence=64),
    layout=Layout(pp=4, microbatches=8),
    precision=Precision(),
    policy=ActivationPolicy(),
)
CONFIGURED = Configured(model=MODEL, pipeline=pipeline())
HOSTS = ["a", "a", "b", "b", "c", "c"]


def text_of(judgement: Judgement, measured: Measurements) -> str:
    output = io.StringIO()
    render(judgement, measured, Console(file=output, width=100))
    return output.getvalue()


def test_both_ends_of_a_slow_link_fail_and_other_hosts_pass() -> None:
    measured = with_pairs(HOSTS, lambda pair: 5.0 if pair == (1, 4) else 1.0)
    judgement = judge(measured, CONFIGURED, Settings())
    assert [host_line(host) for host in judgement.hosts] == [
        "FAIL a: slow_link (ranks 1, 4)",
        "PASS b",
        "FAIL c: slow_link (ranks 1, 4)",
    ]
    shown = text_of(judgement, measured)
    assert shown.splitlines()[0] == "PREFLIGHT  failed: 2 hosts of 3"
    assert "Check the cable and the switch ports" in shown


def test_a_finding_about_the_configuration_fails_the_job_and_no_host() -> None:
    measured = with_pairs(HOSTS, lambda _: 1.0)
    training = trained(pipeline(), {2: 2.0}, bubble=0.4)
    measured = Measurements(places=measured.places, pairs=measured.pairs, training=training)
    judgement = judge(measured, CONFIGURED, Settings())
    assert [host_line(host) for host in judgement.hosts] == ["PASS a", "PASS b", "PASS c"]
    assert list(job_lines(judgement)) == ["FAIL job: unbalanced_stage (stage 2)", "FAIL job: pipeline_bubble"]
    assert not judgement.passed
    shown = text_of(judgement, measured)
    assert "failed: 2 findings about the configuration" in shown
    assert "The pipeline idles 40.0 % of step time, above the alarm at 15.0 %" in shown


def test_a_healthy_job_has_nothing_to_do() -> None:
    measured = with_rates([1, 1, 1, 1], [1, 1, 1, 1])
    judgement = judge(measured, CONFIGURED, Settings())
    assert judgement.passed
    assert text_of(judgement, measured).splitlines()[:4] == [
        "PREFLIGHT  passed: 4 ranks",
        "    PASS a",
        "",
        "TO DO  nothing",
    ]


def test_two_ranks_are_shown_as_not_comparable() -> None:
    measured = with_rates([1, 1], [1, 1])
    assert "nothing can be compared" in text_of(judge(measured, CONFIGURED, Settings()), measured)


def test_the_documents_are_json_and_agree() -> None:
    measured = with_pairs(HOSTS, lambda pair: 5.0 if 3 in pair else 1.0)
    judgement = judge(measured, CONFIGURED, Settings())
    document = json.loads(json.dumps(to_document(judgement, measured)))
    assert [host["passed"] for host in document["hosts"]] == [True, False, True]
    report = to_node_report(judgement.hosts[1], measured)
    assert {"schema_version": 1, **document["hosts"][1]} == json.loads(json.dumps(report))
    assert report["findings"][0]["kind"] == "slow_messages"


def test_a_sweep_is_fitted_by_the_bytes_on_the_wire() -> None:
    """An all-reduce of 4 ranks sends 2 x 3 / 4 of its bytes: 1 ms + 1.5 bytes / (1 GB/s)."""
    sweeps = tuple(
        SweepTime(
            axis="pp", operation="all_reduce", ranks=(0, 1, 2, 3), num_bytes=size, seconds=(1e-3 + 1.5e-9 * size,)
        )
        for size in (1000, 1_000_000)
    )
    measured = Measurements(places=with_rates([1] * 4, [1] * 4).places, sweeps=sweeps)
    (sweep,) = judge(measured, CONFIGURED, Settings()).sweeps
    assert sweep.fit is not None
    assert round(sweep.fit.latency_seconds, 9) == 1e-3
    assert sweep.fit.bytes_per_second is not None
    assert round(sweep.fit.bytes_per_second / 1e9, 6) == 1.0


def test_the_step_is_predicted_from_measured_rates() -> None:
    """Products alone: FLOPs / (ranks x rate) / (1 - 3 / 11), and the logits of one stage, on links without times."""
    places = with_rates([1] * 4, [1] * 4).places
    seconds = dict.fromkeys(Round, (1.0,))
    rates = tuple(
        Rate(rank=rank, quantity=quantity, amount=amount, seconds=seconds)
        for rank in range(4)
        for quantity, amount in ((Quantity.PRODUCTS, 1e9), (Quantity.MEMORY, 1e30))
    )
    pairs = tuple(
        PairTime(ranks=(0, 1), round=Round.FIRST, num_bytes=size, seconds=(size * 1e-30,)) for size in (1, 1000)
    )
    predicted = predict_step(Measurements(places=places, rates=rates, pairs=pairs), MODEL)
    assert predicted is not None
    stages = predicted.expected_seconds - predicted.ends_seconds
    assert predicted.ends_seconds > 0
    assert abs(stages - predicted.model_flops / 4e9 / (1 - 3 / 11)) < 1e-9


def test_without_links_no_step_is_predicted() -> None:
    assert predict_step(with_rates([1] * 4, [1] * 4), MODEL) is None
