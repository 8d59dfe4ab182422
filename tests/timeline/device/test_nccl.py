"""NCCL's records with marks, and Kineto's traces, of the same programs give the same waits and transfers: the truth."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings

from tests.ingest.test_device_ledger import imported, ledger_steps
from tests.seeds import examples
from tests.timeline.device.nccl import TIMER_PPM, compile_with_clock, plugin_with_clock
from tests.timeline.device.recorded import padded, record
from tests.timeline.device.test_marked_programs import ANCHOR_NS, reductions
from tests.virtual_gpu.actions import (
    Action,
    Program,
    Range,
    RecordEvent,
    WaitEvent,
    after,
    backward,
    collective,
    evaluate,
    forward,
    kernel,
    optimizer,
    step,
)
from tests.virtual_gpu.kineto import NEW
from tests.virtual_gpu.programs import PROGRAMS, WORLD
from tests.virtual_gpu.truth import truth
from traincope.analysis.analyze import Analysis, analyze
from traincope.analysis.attribution.stalls import AmbiguousWait
from traincope.native.build import find_compiler
from traincope.record.gpu import device as devices
from traincope.timeline import open_run
from traincope.timeline import timeline as timelines

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler is installed")

RATE = 2 * TIMER_PPM / 1e6
"""Largest difference of the rates of two GPUs' timers: no transfer is more exact."""
EXPOSED = ("exposed_wait[", "exposed_transfer[")
Terms = Mapping[str, int]


@pytest.fixture(scope="module", autouse=True)
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with plugin_with_clock(compile_with_clock(tmp_path_factory.mktemp("plugin") / "plugin.so")):
        yield


@pytest.fixture(autouse=True)
def exact_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches of the virtual GPU do not vary."""
    for module in (timelines, devices):
        monkeypatch.setattr(module, "EMPTY_NS", ANCHOR_NS)


def recorded(program: Program, folder: Path, *, version: int = 6) -> Analysis:
    return analyze(open_run(record(program, folder, nccl=version)))


def exposed(steps: Mapping[int, Terms]) -> dict[int, Terms]:
    """Step -> its exposed waits and transfers in ns."""
    return {
        number: {term: ns for term, ns in terms.items() if term.startswith(EXPOSED) and ns}
        for number, terms in steps.items()
        if number
    }


def assert_close(found: Terms, expected: Terms) -> None:
    off = {term: (found.get(term, 0), expected.get(term, 0)) for term in found.keys() | expected.keys()}
    error_ns = 2 * ANCHOR_NS + RATE * sum(expected.values())
    assert all(abs(ns - true_ns) <= error_ns for ns, true_ns in off.values()), off


def assert_truth(analysis: Analysis, program: Program) -> None:
    """Compare waits and transfers of every step, of which none may be unclear."""
    assert analysis.ledger is not None
    assert analysis.ledger.ambiguous_waits() == {}
    true = {rank: exposed({at: each.terms for at, each in steps.items()}) for rank, steps in truth(program).items()}
    for rank, steps in ledger_steps(analysis.ledger).items():
        for number, terms in exposed(steps).items():
            assert_close(terms, true[rank][number])


def gathered(event: str, us: int) -> tuple[Action, ...]:
    """An all-gather on its own stream, and an event behind it."""
    return collective(WORLD, us, operation="allgather"), RecordEvent(event=event, stream=40)


def sharded(compute_us: int) -> tuple[Action, ...]:
    """A step of FSDP: two layers are gathered one behind the other, gradients are scattered on the same stream."""
    return (
        step(
            1,
            *after("begun", stream=7, on=40),
            forward(
                *gathered("first", 20),
                *gathered("second", 60),
                WaitEvent(event="first", stream=7),
                kernel(compute_us),
                WaitEvent(event="second", stream=7),
                kernel(10),
            ),
            backward(
                evaluate("MmBackward0", kernel(15), *after("gradients", stream=7, on=40)),
                evaluate("MmBackward0", collective(WORLD, 25, operation="reduce_scatter"), *gathered("third", 30)),
            ),
            WaitEvent(event="third", stream=7),
            optimizer(kernel(5)),
        ),
    )


def buckets(backward_us: int) -> tuple[Action, ...]:
    """A step of DDP with three buckets, and one wait, for the last one."""
    each = [
        Range(name="bucket", body=(kernel(us), *after(f"g{us}", stream=7, on=40), collective(WORLD, wire)))
        for us, wire in ((backward_us, 50), (5, 30), (6, 40))
    ]
    return (
        step(
            1,
            forward(kernel(20)),
            backward(evaluate("AddmmBackward0", *each)),
            *after("reduced", stream=40, on=7),
            optimizer(kernel(10)),
        ),
    )


def batch(*us: int, last_us: int) -> tuple[Action, ...]:
    """Collectives that are issued one after the other, and launched together."""
    issued = [collective(WORLD, each) for each in us]
    works = [each.body[0].collective for each in issued]
    calls = [replace(each, body=(replace(each.body[0], body=()),)) for each in issued]
    launch = replace(issued[-1].body[0].body[0].body[0], works=tuple(works))
    calls[-1] = replace(issued[-1], body=(replace(issued[-1].body[0], body=(launch,)),))
    return (step(1, forward(kernel(last_us)), *calls, *after("all", stream=40, on=7), optimizer(kernel(5))),)


CASES = {
    name: PROGRAMS[name]
    for name in (
        "exposed collective",
        "hidden collective",
        "late peer",
        "two axes",
        "slow link",
        "gradient accumulation",
    )
} | {
    "FSDP": Program(ranks=(sharded(10), sharded(30))),
    "FSDP of a slow rank": Program(ranks=(sharded(10), sharded(120))),
    "DDP with three buckets": Program(ranks=(buckets(30), buckets(90))),
    "a batch of two": Program(ranks=(batch(20, 30, last_us=10), batch(20, 30, last_us=40))),
}


LEAD_US = 400
"""Work of the GPUs before the first step, by which their hosts get ahead: so a stall begins when its kernel does."""


@pytest.mark.parametrize("name", CASES)
def test_waits_and_transfers_are_the_truth_and_those_of_the_trace(name: str, tmp_path: Path) -> None:
    program = padded(CASES[name], lead_us=LEAD_US)
    analysis = recorded(program, tmp_path)
    assert_truth(analysis, program)
    by_trace = imported(program, tmp_path / "imported", NEW)
    for rank, steps in ledger_steps(analysis.ledger).items():
        for number, terms in exposed(steps).items():
            assert_close(terms, exposed(by_trace[rank])[number])


def test_a_wait_for_a_slow_rank_is_split_where_marks_cannot(tmp_path: Path) -> None:
    """Rank 0 has the second layer after 80 us, and scatters after 10 + 15 more, rank 1 after 20 + 120 + 10 + 15.

    Its transfers are 20 us, 50 us behind 10 us of compute, and 25 + 30 us of one stall. Rank 1 hides the second gather.
    """
    program = padded(CASES["FSDP of a slow rank"], lead_us=LEAD_US)
    by_marks = analyze(open_run(record(program, tmp_path / "marks")))
    assert list(by_marks.ledger.ambiguous_waits()) == [("world", AmbiguousWait.DEVICE_MARKS)]
    steps = ledger_steps(recorded(program, tmp_path / "nccl").ledger)
    assert_close(exposed(steps[0])[1], {"exposed_wait[world]": 60_000, "exposed_transfer[world]": 125_000})
    assert_close(exposed(steps[1])[1], {"exposed_transfer[world]": 75_000})


@pytest.mark.parametrize("version", [4, 5])
def test_every_version_with_times_of_the_device_gives_the_truth(version: int, tmp_path: Path) -> None:
    program = padded(CASES["FSDP"], lead_us=LEAD_US)
    assert_truth(recorded(program, tmp_path, version=version), program)


def test_without_times_of_the_device_marks_alone_split(tmp_path: Path) -> None:
    program = padded(CASES["FSDP"], lead_us=LEAD_US)
    ledgers = [
        ledger_steps(analyze(open_run(record(program, tmp_path / f"{nccl}", nccl=nccl))).ledger) for nccl in (3, None)
    ]
    assert ledgers[0] == ledgers[1]


@settings(max_examples=examples(20))
@given(reductions())
def test_random_reductions_are_split_as_they_ran(program: Program) -> None:
    """Also those of hidden collectives, and those queued behind others, which marks alone cannot split."""
    program = padded(program, lead_us=20_000)
    with TemporaryDirectory() as folder:
        assert_truth(recorded(program, Path(folder)), program)
