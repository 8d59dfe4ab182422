"""Hosts, devices, GPU samples and driver events as a section of data."""

from dataclasses import replace

from tests.report.example import END_NS, START_NS, analysis
from tests.report.sections.test_faults import source_of
from traincope.analysis import Fault, FaultKind
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
