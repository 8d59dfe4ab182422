"""Trace of a run at the collector: times in ns, parents, ids, resources."""

from dataclasses import replace
from typing import Any

import pytest

from tests.exporters.otlp.receiver import Received, attributes, collector
from tests.exporters.runs import forward, two_ranks
from tests.timeline.build import Row, phase, rank, step, timeline
from traincope import analyze, open_run
from traincope.events import OPEN, Flag, Kind, Phase
from traincope.report.exports import Address
from traincope.store import Attempt
from traincope.timeline import Timeline
from traincope_exporters.otlp import sampling
from traincope_exporters.otlp.finished import send
from traincope_exporters.otlp.sampling import sampled_steps
from traincope_exporters.otlp.spans import spans

NS = 1e9


def received(run: Timeline, protocol: str = "grpc") -> Received:
    with collector(protocol) as result:
        send(run, Address(endpoint=result.url, protocol=protocol, timeout_seconds=90))
    return result


def shown(run: Timeline) -> list[tuple[str, str, int, int]]:
    """(Name, parent's name, start, end) of the spans of rank 0 and of the job, without a collector."""
    all_ = list(spans(analyze(run)))
    names = {span.context.span_id: span.name for span in all_}
    return [
        (span.name, names[span.parent.span_id] if span.parent else "", span.start_time or 0, span.end_time or 0)
        for span in all_
        if span.resource.attributes.get("traincope.rank") in (0, None)
    ]


def test_a_trace_nests_run_attempt_rank_step_and_events() -> None:
    assert shown(two_ranks()) == [
        ("run", "", 0, 3000),
        ("attempt", "run", 0, 3000),
        ("rank", "attempt", 0, 3000),
        ("step", "rank", 0, 1000),
        ("step", "rank", 1000, 2000),
        ("step", "rank", 2000, 3000),
        ("forward GPT", "step", 1100, 1400),
        ("all_gather", "step", 1400, 1700),
        ("wait for all_gather", "step", 1400, 1700),
        ("forward GPT", "step", 2100, 2400),
        ("all_gather", "step", 2400, 2700),
        ("wait for all_gather", "step", 2400, 2700),
    ]


def test_an_inner_interval_is_a_child_and_a_collective_has_no_children() -> None:
    inner = phase(Phase.GC, 1150, 1160, at=1)
    during = Row(kind=Kind.SPAN, start_ns=1500, end_ns=1600, name="mine", step=1)
    parents = {name: parent for name, parent, _, _ in shown(two_ranks(inner, during))}
    assert parents["gc"] == "forward GPT"
    assert parents["mine"] == "wait for all_gather"


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_every_span_has_the_times_of_its_event(protocol: str) -> None:
    timeline = open_run("sample_runs/format-1")
    recorded = {
        (rank.rank, int(record["start_ns"]), int(record["end_ns"]))
        for rank in timeline.ranks
        for record in rank.main
        if record["kind"] in (Kind.PHASE, Kind.ACTION, Kind.STALL, Kind.COLLECTIVE) and record["step"] in range(3)
    }
    sent = {
        (resource["traincope.rank"], span.start_time_unix_nano, span.end_time_unix_nano)
        for resource, span in received(timeline, protocol).each_span()
        if "traincope.kind" in attributes(span.attributes)
    }
    assert sent == recorded


def test_every_parent_is_sent_and_there_is_one_trace() -> None:
    all_ = [span for _, span in received(open_run("sample_runs/format-1")).each_span()]
    ids = {span.span_id for span in all_}
    assert len(ids) == len(all_)
    assert {span.trace_id for span in all_} == {all_[0].trace_id}
    assert [span.name for span in all_ if span.parent_span_id not in ids] == ["run"]


def test_span_ids_are_deterministic_and_differ_between_runs() -> None:
    first, second = received(open_run("sample_runs/format-1")), received(open_run("sample_runs/format-1"))
    assert first.spans == second.spans
    (other,) = {span.trace_id for _, span in received(two_ranks()).each_span()}
    assert other not in {span.trace_id for _, span in first.each_span()}


def test_a_rank_resource_follows_the_semantic_conventions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    resource = next(
        resource for resource, span in received(two_ranks()).each_span() if resource.get("traincope.rank") == 1
    )
    assert resource["service.name"] == "traincope"
    assert resource["service.instance.id"] == "hand-made/0/1"
    assert (resource["host.name"], resource["process.pid"], resource["process.command"]) == (
        "host-boot",
        1001,
        "train.py",
    )
    assert (resource["traincope.rank"], resource["traincope.coord.tp"], resource["traincope.run"]) == (
        1,
        1,
        "hand-made",
    )
    assert resource["deployment.environment.name"] == "test"
    assert [resource[f"dl.{name}"] for name in ("rank", "world_size", "tensor_parallel.rank")] == [1, 2, 1]


def test_the_environment_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "llama")
    assert {resource["service.name"] for resource, _ in received(two_ranks()).each_span()} == {"llama"}


def attributes_of(run: Timeline, name: str) -> list[dict[str, Any]]:
    return [dict(span.attributes or {}) for span in spans(analyze(run)) if span.name == name]


def test_a_step_has_its_ledger_terms_in_seconds() -> None:
    of_rank_0 = attributes_of(two_ranks(), "step")[:3]
    assert of_rank_0[1] == {
        "traincope.step": 1,
        "dl.iteration": 1,
        "traincope.ledger.forward": 300 / NS,
        "traincope.ledger.exposed_transfer.tp": 100 / NS,
        "traincope.ledger.exposed_wait.tp": 200 / NS,
        "traincope.ledger.unattributed": 400 / NS,
    }


def test_a_killed_rank_and_its_open_intervals_are_errors() -> None:
    hanging = Row(kind=Kind.STALL, start_ns=2800, end_ns=OPEN, name="all_reduce", step=2)
    raised = Row(kind=Kind.SPAN, start_ns=1800, end_ns=1900, name="raises", step=1, flags=Flag.RAISED)
    failed = [
        (span.name, span.status.description)
        for span in spans(analyze(two_ranks(hanging, raised, ending=None)))
        if not span.status.is_ok
    ]
    assert failed == [
        ("run", "not all ranks ended cleanly"),
        ("attempt", "not all ranks ended cleanly"),
        ("rank", "no end was recorded"),
        ("raises", "it raised an exception"),
        ("wait for all_reduce", "it was open when the events end"),
    ]


def many_steps(*more: Row, count: int = 100, slow: int = 77) -> Timeline:
    """Steps of 1000 ns, one of 1010 ns, each with one event."""
    rows, at_ns = [], 0
    for number in range(count):
        length_ns = 1010 if number == slow else 1000
        rows += [step(number, at_ns, at_ns + length_ns), forward(at_ns, at_ns + 100, at=number)]
        at_ns += length_ns
    return timeline(rank(0, *rows, *more))


def test_of_many_steps_every_kth_the_slowest_and_the_last_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 steps of 2 events each: 20 spans are 10 steps, every 10th."""
    monkeypatch.setattr(sampling, "MAX_SPANS", 20)
    assert sampled_steps(analyze(many_steps())) == {*range(0, 100, 10), 77, 99}


def test_steps_with_faults_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MAX_SPANS", 20)
    nan = Row(kind=Kind.SCALAR, start_ns=33_500, end_ns=33_500, name="loss", step=33, value=0x7FF8000000000000)
    assert 33 in sampled_steps(analyze(many_steps(nan)))


def test_few_steps_are_all_sent() -> None:
    assert sampled_steps(analyze(two_ranks())) == {0, 1, 2}


def test_any_name_is_sent_as_valid_text() -> None:
    long = Row(kind=Kind.SPAN, start_ns=1800, end_ns=1900, name="x" * 1_000_000, step=1)
    half = Row(kind=Kind.SPAN, start_ns=1900, end_ns=1950, name="\ud800", step=1)
    names = {span.name for _, span in received(two_ranks(long, half)).each_span()}
    assert {"x" * 1024, "?"} <= names


def test_an_earlier_attempt_is_a_span() -> None:
    """Attempt 0 ended by an exception. Attempt 1 is read in full."""
    first = Attempt(
        number=0,
        began_ns=-5000,
        first_step_ns=-4000,
        last_ns=-1000,
        num_steps=3,
        steps_ns=2000,
        kept_steps=None,
        kept_ns=0,
        loaded=False,
        checkpoint_stall_ns=0,
        evaluation_ns=0,
        endings={0: "ValueError"},
    )
    last = two_ranks()
    ranks = tuple(replace(rank, attempt=1) for rank in last.run.ranks)
    both = replace(last, run=replace(last.run, ranks=ranks, earlier=(first,), attempts=2))
    run, *attempts = list(spans(analyze(both)))[:3]
    assert (run.name, run.start_time, run.end_time) == ("run", -5000, 3000)
    assert [(span.start_time, span.end_time, span.status.is_ok) for span in attempts] == [
        (-5000, -1000, False),
        (0, 3000, True),
    ]
    assert [(span.attributes or {})["traincope.attempt"] for span in attempts] == [0, 1]
