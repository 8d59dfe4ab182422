"""Random runs that no training produces: all sums still hold, and the report is written."""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

import pytest
from rich.console import Console

from tests.seeds import seeds
from tests.timeline.build import Row, action, clock, collective, group, message, phase, rank, run, stall, step
from traincope.analysis import Analysis, analyze
from traincope.analysis.attribution.terms import BUBBLE, PHASE_TERMS, exposed_transfer
from traincope.analysis.communication.workflow import workflow
from traincope.events import OPEN, Flag, Kind
from traincope.report.document.document import to_document, to_json
from traincope.report.text.text import render_document
from traincope.store import RunRecords
from traincope.timeline import build_timeline

LENGTH = 100
"""Approximate length of a step, in ns."""
AXES = ("fsdp", "pp", "world")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A collective or message of a step; each rank calls it at a different time."""

    axis: int
    sequence: int
    ends: tuple[int, int] | None
    """Sender and receiver of a message."""
    num_bytes: int


def random_run(random: Random) -> RunRecords:
    """Draw one to four ranks on one or two hosts. Some have no records, dropped steps, or are killed in a step."""
    size, steps = random.randint(1, 4), random.randint(0, 5)
    calls = [[_call(random, 4 * at + count, size=size) for count in range(random.randint(0, 4))] for at in range(steps)]
    present = sorted(random.sample(range(size), random.choice([size, random.randint(1, size)])))
    groups = [group(axis, *range(size)) for axis in AXES]
    hosts = random.choice(["aa", "aa", "ab"])
    pipeline = random.random() < 0.5
    return run(
        *(
            rank(
                number,
                *_rows(random, number, calls, pipeline=pipeline),
                groups=groups,
                coords=random.choice([{}, {"pp": number}]),
                boot_id=hosts[number % 2],
                ending=random.choice(["clean", "clean", "ValueError", None]),
            )
            for number in present
        ),
        world_size=size,
    )


def _call(random: Random, sequence: int, *, size: int) -> Call:
    source, destination = random.randrange(size), random.randrange(size)
    ends = (source, destination) if source != destination and random.random() < 0.5 else None
    axis = random.randrange(len(AXES))
    return Call(axis=axis, sequence=sequence, ends=ends, num_bytes=random.choice([0, 8, random.randint(0, 99)]))


def _rows(random: Random, of: int, calls: list[list[Call]], *, pipeline: bool) -> list[Row]:
    """Return the records of one rank. If it is killed, open intervals have no end."""
    dropped = random.sample(range(len(calls)), random.choice([0, 0, min(len(calls), 2)]))
    rows = [clock(0, random.randint(0, 50))]
    for number, together in enumerate(calls):
        if number not in dropped:
            rows += _step(random, number, of, together, pipeline=pipeline)
    last_ns = max(row.start_ns for row in rows)
    if random.random() < 0.3:
        rows = [replace(row, end_ns=OPEN) if row.end_ns > last_ns and row.kind != Kind.CLOCK else row for row in rows]
    return sorted(rows, key=lambda row: row.start_ns)


def _step(random: Random, number: int, of: int, calls: list[Call], *, pipeline: bool) -> Iterator[Row]:
    begin = number * LENGTH + random.randint(0, 3)
    end = begin + LENGTH - random.randint(3, 10)
    yield step(number, begin, end)

    def span() -> tuple[int, int]:
        start = random.randint(begin, end + 10)
        return start, start + random.randint(0, 40)

    for _ in range(random.randint(0, 5)):
        yield phase(random.choice(list(PHASE_TERMS)), *span(), at=number)
    for kind in random.choice(["FB", "FB", "FBFB", "FIW", "F", ""]) if pipeline else "":
        yield action(kind, *span(), stage=of, microbatch=random.choice([0, 0, 1]), at=number)
    for call_ in calls:
        if random.random() < 0.9 and (call_.ends is None or of in call_.ends):
            yield from _called(random, call_, number, of, *span())


def _called(random: Random, call_: Call, number: int, of: int, start: int, end: int) -> Iterator[Row]:
    common = {"group": call_.axis, "sequence": call_.sequence, "at": number, "num_bytes": call_.num_bytes}
    common["flags"] = random.choice([0, 0, 0, Flag.DONE_BEFORE_WAIT, Flag.RAISED])
    if call_.ends is None:
        call = collective(start, end, name=["all_gather", "all_to_all"][call_.sequence % 2], **common)
    else:
        side = call_.ends.index(of)
        call = message(["send", "recv"][side], start, end, peer=call_.ends[1 - side], **common)
    yield replace(call, end_ns=OPEN) if random.random() < 0.1 else call
    if random.random() < 0.8:
        yield stall(call, random.randint(start, end), end)


def assert_sums(analysis: Analysis) -> None:
    for ledger in analysis.ledger.ranks:
        known = {term: ns for term, ns in ledger.terms.items() if ns is not None}
        assert (sum(known.values()) == ledger.wall_ns).all()
        assert all((ns >= 0).all() for term, ns in known.items() if term not in BUBBLE)
        for axis in AXES:
            unsplit = [ns for (of, _), ns in ledger.ambiguous_waits.items() if of == axis]
            assert all((ns >= 0).all() for ns in unsplit)
            assert not unsplit or (sum(unsplit) <= known[exposed_transfer(axis)]).all()
    shares = [analysis.ledger.share(term) for term in analysis.ledger.order]
    assert not analysis.ledger.wall_ns or sum(share or 0 for share in shares) == pytest.approx(1)
    assert all(0 <= (row.wait_ns or 0) <= row.exposed_ns and row.transfer_ns >= 0 for row in analysis.comm)


def assert_role_time(analysis: Analysis) -> None:
    """What a rank did has no gap and no overlap, which `no records` would hide in the role's sum."""
    assert analysis.job_activity is not None
    for activity in analysis.job_activity.ranks:
        assert sum(when.length_ns for when in activity.activities.values()) == activity.recorded.length_ns
    for role in workflow([analysis]).roles:
        assert sum(part.ns for part in role.parts) == role.total_ns
        assert all(part.ns > 0 for part in role.parts)


def assert_findings(analysis: Analysis) -> None:
    size = analysis.timeline.run.info.world_size
    assert analysis.verdict
    for finding in analysis.verdict:
        assert all(0 <= number < size for number in finding.ranks)
        assert finding.estimated_gain_ratio is None or 0 <= finding.estimated_gain_ratio <= 1
    job = analysis.goodput
    if job is not None:
        other_terms = (job.startup_ns, job.restart_ns, job.checkpoint_stall_ns, job.evaluation_ns, job.other_ns)
        assert job.elapsed_ns == job.steps_ns + sum(other_terms)
        assert min(job.steps_ns, *other_terms) >= 0


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", seeds(40))
def test_sums_hold_and_the_report_is_written_for_random_records(seed: int) -> None:
    records = random_run(Random(seed))
    records = replace(records, info=replace(records.info, settings={"role": "trainer"}))
    analysis = analyze(build_timeline(records))
    assert_sums(analysis)
    assert_role_time(analysis)
    assert_findings(analysis)
    document = to_document(analysis)
    assert json.loads(to_json(document)) == document
    render_document(document, analysis, Console(file=io.StringIO(), width=80))
