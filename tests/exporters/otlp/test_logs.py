"""Log records of a run at the collector: severity, time, text, span."""

from tests.exporters.otlp.receiver import attributes, collector
from tests.exporters.runs import event, two_ranks
from tests.timeline.build import Row
from traincope import analyze
from traincope.analysis import Fault, FaultKind
from traincope.events import Kind
from traincope.report.exports import Address
from traincope_exporters.otlp.finished import send
from traincope_exporters.otlp.logs import logs, severity
from traincope_exporters.otlp.spans import spans

NAN = 0x7FF8000000000000


def scalar(name: str, at_ns: int, bits: int, *, at: int) -> Row:
    return Row(kind=Kind.SCALAR, start_ns=at_ns, end_ns=at_ns, name=name, step=at, value=bits)


def test_a_fault_is_a_log_at_the_span_of_its_step() -> None:
    run = two_ranks(scalar("loss", 1990, NAN, at=1))
    (step_1,) = [
        span.context.span_id
        for span in spans(analyze(run))
        if span.name == "step"
        and span.resource.attributes["traincope.rank"] == 0
        and (span.attributes or {})["traincope.step"] == 1
    ]
    with collector("grpc") as result:
        answer = send(run, Address(endpoint=result.url, protocol="grpc", timeout_seconds=90))
    ((resource, log),) = result.each_log()
    assert (log.body.string_value, log.event_name) == ("loss is NaN", "traincope.not_finite")
    assert (log.severity_text, log.severity_number) == ("ERROR", 17)
    assert (log.time_unix_nano, log.observed_time_unix_nano) == (1990, 1990)
    assert (int.from_bytes(log.span_id, "big"), resource["traincope.rank"]) == (step_1, 0)
    assert attributes(log.attributes) == {
        "traincope.ranks": [0],
        "traincope.confidence": "medium",
        "traincope.step": 1,
        "traincope.evidence": "it was the first value; no value came later",
    }
    assert "1 logs" in answer
    assert answer.endswith(f"the trace is {log.trace_id.hex()}")


def test_a_named_event_is_information() -> None:
    (log,) = logs(analyze(two_ranks(event("my event", 1500, at=1))))
    assert (log.log_record.severity_text, log.log_record.body) == ("INFO", "my event")


def test_the_severity_follows_the_kind_of_fault() -> None:
    result = {kind: severity(Fault(kind=kind, at_ns=0, what="")).name for kind in FaultKind}
    assert {kind.value for kind, level in result.items() if level == "FATAL"} == {
        *("exception", "out_of_memory", "signal", "killed", "exit")
    }
    assert {kind.value for kind, level in result.items() if level == "ERROR"} == {
        *(
            "not_finite",
            "restart",
            "checkpoint_failed",
            "ecc_error",
            "xid",
            "gpu_lost",
            "hang",
            "mismatch",
            "lost_host",
            "kernel_error",
            "interruption",
        ),
        *("data_fed_again", "data_skipped", "corrupted_state", "replicas_differ"),
    }
    assert {kind.value for kind, level in result.items() if level == "INFO"} == {
        *(
            "checkpoint",
            "evaluation",
            "power_capped",
            "ecc_corrected",
            "recorder_level",
            "requested_window",
            "event",
            "note",
        )
    }
