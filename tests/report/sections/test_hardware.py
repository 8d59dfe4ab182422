"""Hosts, devices, GPU samples and driver events as a section of data."""

from dataclasses import replace

from tests.report.example import END_NS, START_NS, analysis
from tests.report.sections.test_faults import source_of
from tests.timeline.build import Row, rank, step, timeline
from traincope.analysis import Fault, FaultKind, analyze
from traincope.events import LINK_ERRORS, Kind
from traincope.report.sections.hardware import NO_EVENT, hardware
from traincope.report.sections.section import Drawing, Lines, Table


def test_hosts_software_and_what_was_not_recorded_are_listed() -> None:
    hosts, software, *without = hardware(source_of(analysis())).parts
    assert isinstance(hosts, Table)
    assert isinstance(software, Table)
    assert hosts.rows == (("node", "unknown", "ranks 0, 1"),)
    assert software.rows == (("torch", "2.13.0"),)
    unknown = "GPU power, clock, temperature and utilization were not recorded. Hardware probe: missing."
    assert without == [Lines((unknown,)), Lines((NO_EVENT,))]


def test_the_events_of_a_driver_are_drawn_on_the_clock_of_the_faults() -> None:
    xid = Fault(kind=FaultKind.XID, at_ns=START_NS + 5, ranks=(1,), what="XID 79")
    other = Fault(kind=FaultKind.SPIKE, at_ns=START_NS + 7, what="loss is 9")
    *_, drawing = hardware(source_of(replace(analysis(), faults=(xid, other)))).parts
    assert isinstance(drawing, Drawing)
    assert (drawing.figure, drawing.of) == ("driver", ([xid], START_NS, END_NS))
    assert drawing.caption == "1 event of throttling, power limits and errors by rank; Faults lists each"


def test_links_with_errors_come_first_and_unused_ones_not_at_all() -> None:
    state = {"kind": "InfiniBand", "card": "0x15b3:0x1021", "width": 4}
    up = {"up": True, "bits_per_second": 400_000_000_000, "sent_bytes": 5 << 30, "received_bytes": None}
    slot = {"holds": "mlx5_0", "gpu": False, "transfers": 16.0, "width": 8, "max_transfers": 32.0, "max_width": 16}
    links = {
        "mlx5_0/1": {**state, **up},
        "mlx5_1/1": {**state, **up, "sent_bytes": 6 << 30},
        "mlx5_2/1": {**state, "up": False, "bits_per_second": None},
        "0000:1a:00.0": {"card": "0x15b3:0x1021", **slot},
    }
    grown = {"port": "mlx5_0/1", "counts": {"packet_seq_err": 3_120}, "sent_packets": 9, "seconds": 1.0}
    row = Row(kind=Kind.EVENT, start_ns=5, end_ns=5, name=LINK_ERRORS, group=1, step=0, thread="thread-1")
    made = rank(0, step(0, 0, 100), row)
    recorded = replace(made, details={1: grown}, info=replace(made.info, links=links))
    parts = hardware(source_of(analyze(timeline(recorded)))).parts
    (table,) = (part for part in parts if isinstance(part, Table) and part.caption.startswith("Links"))
    assert table.rows == (
        (
            "host-boot",
            "mlx5_0/1",
            "InfiniBand",
            "400 Gb/s x4",
            "5.0 GiB",
            "-",
            "3,120 requests to send again after a gap",
        ),
        ("host-boot", "mlx5_1/1", "InfiniBand", "400 Gb/s x4", "6.0 GiB", "-", "none"),
        ("host-boot", "0000:1a:00.0", "PCIe of mlx5_0", "16 GT/s x8 of 32 GT/s x16", "-", "-", "none"),
    )
