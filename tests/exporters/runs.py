"""Hand-made run for the tests of all exports: two ranks, three steps, times in ns.

    step 0   0 - 1000   empty
    step 1   1000 - 2000
        rank 0   forward GPT 1100 - 1400; all_gather on tp 1400 - 1700, a stall
        rank 1   forward GPT 1100 - 1600; the same all_gather 1600 - 1700, a stall
    step 2   2000 - 3000, as step 1

The transfer takes 100, so rank 0 waits 200 for rank 1.
"""

from dataclasses import replace

from tests.timeline.build import Row, collective, group, rank, stall, step, timeline
from traincope.events import OPEN, Flag, Kind, Phase
from traincope.timeline import Timeline

TP = group("tp", 0, 1)


def forward(start_ns: int, end_ns: int, *, at: int) -> Row:
    return Row(kind=Kind.PHASE, start_ns=start_ns, end_ns=end_ns, name="GPT", phase=Phase.FORWARD, step=at)


def gather(start_ns: int, end_ns: int, *, at: int) -> tuple[Row, Row]:
    """An all_gather and its stall of the same length."""
    record = collective(start_ns, end_ns, sequence=at, at=at, num_bytes=4096)
    return record, stall(record, start_ns, end_ns)


def memory(at_ns: int, num_bytes: int) -> Row:
    return Row(kind=Kind.MEMORY, start_ns=at_ns, end_ns=at_ns, name="resident", value=num_bytes)


def event(name: str, at_ns: int, *, at: int) -> Row:
    return Row(kind=Kind.EVENT, start_ns=at_ns, end_ns=at_ns, name=name, step=at, flags=Flag.GIVEN)


def two_ranks(*more: Row, ending: str | None = "clean", scale: int = 1) -> Timeline:
    """`more`: additional events of rank 0. All times are multiplied by `scale`."""
    first = [
        *(step(number, 1000 * number, 1000 * number + 1000) for number in range(3)),
        *(forward(1000 * at + 100, 1000 * at + 400, at=at) for at in (1, 2)),
        *(row for at in (1, 2) for row in gather(1000 * at + 400, 1000 * at + 700, at=at)),
        *more,
    ]
    second = [
        *(step(number, 1000 * number, 1000 * number + 1000) for number in range(3)),
        *(forward(1000 * at + 100, 1000 * at + 600, at=at) for at in (1, 2)),
        *(row for at in (1, 2) for row in gather(1000 * at + 600, 1000 * at + 700, at=at)),
    ]
    return timeline(
        rank(0, *(_longer(row, scale) for row in first), groups=[TP], coords={"tp": 0}, ending=ending),
        rank(1, *(_longer(row, scale) for row in second), groups=[TP], coords={"tp": 1}, first_name="another"),
        mesh={"tp": 2},
    )


def _longer(row: Row, scale: int) -> Row:
    end_ns = row.end_ns if row.end_ns == OPEN else row.end_ns * scale
    return replace(row, start_ns=row.start_ns * scale, end_ns=end_ns)
