"""Lines in which a rank spends more time than its peers, from samples that are counted by hand.

Steps of 100 ms, 10 samples each. Rank 1 sleeps for 30 ms of each forward; rank 0 waits for it.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.timeline.build import collective, group, phase, rank, run, stall, step
from traincope.analysis import analyze
from traincope.analysis.attribution.terms import UNATTRIBUTED
from traincope.analysis.faults.slow_code import Line, SampledWindow, SlowCode, line_within, python_in_compute, slow_code
from traincope.analysis.verdict.losses.host_losses import python_work
from traincope.events import Flag, Phase
from traincope.store import RankRecords
from traincope.store.job.requests import Cause, WindowRequest
from traincope.store.layout import stack_samples_file
from traincope.timeline import LedgerClock, build_timeline

MS = 1_000_000
SLEEP, MULTIPLY, REDUCE, FIRST, SECOND, BACKWARD, HOOKS, SIMULATE, IMPORT = 0, 1, 2, 3, 4, 5, (6, 7, 8), 9, 10
SITES = [
    ["/job/train.py", 31, "Slow.forward", "layers.3", "time.sleep"],
    ["/job/train.py", 33, "Slow.forward", "layers.3", ""],
    ["/lib/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce", "", ""],
    ["/job/train.py", 50, "main", "", ""],
    ["/job/train.py", 61, "histograms", "", "sorted"],
    ["/job/train.py", 62, "histograms", "", ""],
    ["/job/train.py", 51, "main", "", ""],
    ["/lib/site-packages/torch/utils/_contextlib.py", 124, "context_decorator.<locals>.decorate_context", "", ""],
    ["/job/train.py", 52, "main", "", ""],
    *[["/job/train.py", 70, "record", f"layers.{layer}", "Tensor.quantile"] for layer in range(3)],
    ["/lib/site-packages/torch/_tensor.py", 600, "Tensor.backward", "", ""],
    ["/job/train.py", 53, "main", "", "Simulator.step"],
    ["<frozen importlib._bootstrap>", 1165, "_find_and_load", "", ""],
]
STACKS = [
    [0, 3],
    [1, 3],
    [2, 3],
    [4, 7, 6],
    [5, 7, 6],
    [12, 8],
    *[[9 + layer, 3] for layer in range(3)],
    [13],
    [14, 1, 3],
]
SLEEPING = Line(site="train.py:31", function="Slow.forward", called="time.sleep", module="layers.3", term="forward")
DP = group("dp", 0, 1)


def request(first_step: int, num_steps: int) -> WindowRequest:
    return WindowRequest(
        attempt=0,
        first_step=first_step,
        num_steps=num_steps,
        kernels=False,
        cause=Cause.LATE_RANK,
        at_step=None,
        at_wall_ns=0,
        stacks=(0, 1),
    )


def sampled(
    directory: Path,
    number: int,
    stack_at: Callable[[int], int],
    *,
    steps: int,
    stalled_ms: int = 0,
    first_step: int = 0,
    forward_ms: int = 60,
    **content: bool,
) -> RankRecords:
    """A rank with a sample every 10 ms. `stack_at`: ms into a step -> the stack until 5 ms later."""
    rows = []
    for at in range(steps + 1):
        begin = 100 * at * MS
        gather = collective(begin + 30 * MS, begin + 60 * MS, sequence=at, at=at)
        rows += [
            replace(step(at, begin, begin + 100 * MS), flags=Flag.DETAILED),
            phase(Phase.FORWARD, begin, begin + forward_ms * MS, at=at),
            gather,
            stall(gather, begin + 30 * MS, begin + (30 + stalled_ms) * MS),
        ]
    times_ms = range(0, 100 * (steps + 1) + 10, 10)
    samples = {
        "interval_ns": 10 * MS,
        "sites": SITES,
        "stacks": STACKS,
        "times_ns": [ms * MS for ms in times_ms],
        "waited_ns": [0 for _ in times_ms],
        "stack": [stack_at((ms - 5) % 100) for ms in times_ms],
        **content,
    }
    directory.mkdir(parents=True)
    (directory / stack_samples_file(first_step)).write_text(json.dumps(samples))
    return replace(rank(number, *rows, groups=[DP]), directory=directory)


def windows(*ranks: RankRecords) -> tuple[SampledWindow, ...]:
    return slow_code(build_timeline(run(*ranks)))


def pair(tmp_path: Path, *, steps: int, first_step: int = 0) -> Sequence[RankRecords]:
    waiting = sampled(tmp_path / "0", 0, lambda _: MULTIPLY, steps=steps, stalled_ms=30, first_step=first_step)
    sleeping = sampled(tmp_path / "1", 1, lambda ms: SLEEP if ms < 30 else MULTIPLY, steps=steps, first_step=first_step)
    return waiting, sleeping


def test_the_line_is_named_with_its_time_per_step(tmp_path: Path) -> None:
    """The first step leads in. The last has no sample after it that shows its end."""
    (window,) = windows(*pair(tmp_path, steps=10))
    assert (window.first_step, window.last_step, window.steps, window.ranks) == (1, 10, 10, (0, 1))
    assert window.slow == (SlowCode(rank=1, line=SLEEPING, ns=30 * MS, peers_ns=0, excess_ratio=1.0),)


def test_a_window_without_a_request_counts_only_if_a_rank_differs(tmp_path: Path) -> None:
    multiplies, too = (
        sampled(tmp_path / str(at), at, lambda _: MULTIPLY, steps=10, stalled_ms=30, requested=False) for at in (0, 1)
    )
    sleeps = sampled(tmp_path / "2", 1, lambda ms: SLEEP if ms < 30 else MULTIPLY, steps=10, requested=False)
    (window,) = windows(multiplies, sleeps)
    assert [code.rank for code in window.slow] == [1]
    assert windows(multiplies, too) == ()


def test_work_of_many_short_lines_is_named_by_its_call(tmp_path: Path) -> None:
    """No line has 5 ms: half of the pause between samples. Their call has 8 ms: 4 of 5 steps have one sample there.

    The function is decorated, for example by torch.no_grad().
    """
    turns = [FIRST, SECOND, FIRST, SECOND, MULTIPLY]
    seen = iter(turns * 20)

    def at(ms: int) -> int:
        return next(seen) if ms == 75 else MULTIPLY

    others = sampled(tmp_path / "0", 0, lambda ms: REDUCE if ms == 75 else MULTIPLY, steps=50)
    (window,) = windows(others, sampled(tmp_path / "1", 1, at, steps=50))
    call = Line(site="train.py:51", function="main", called="histograms", module="", term=UNATTRIBUTED)
    assert window.slow == (SlowCode(rank=1, line=call, ns=8 * MS, peers_ns=0, excess_ratio=0.8),)


@pytest.mark.parametrize(("steps", "is_found"), [(39, True), (36, False)])
def test_work_of_one_rank_in_every_third_step_is_named(tmp_path: Path, steps: int, is_found: bool) -> None:
    """60 ms in 13 steps: 20 ms on average; four standard errors, and more for few steps, are 20.9 ms. By chance,
    all 13 would be those of one rank of two in 1 of 2^12 = 4,096 runs; all 12 in 1 of 2,048.
    """
    seen = iter(range(10 * (steps + 2)))
    other = sampled(tmp_path / "0", 0, lambda _: MULTIPLY, steps=steps)
    plans = sampled(
        tmp_path / "1",
        1,
        lambda ms: SLEEP if (next(seen) - 1) // 10 % 3 == 1 and 20 < ms < 80 else MULTIPLY,
        steps=steps,
    )
    (window,) = windows(other, plans)
    named = {(code.rank, code.line.site, code.peers_ns) for code in window.slow}
    assert named == ({(1, "train.py:31", 0)} if is_found else set())


@pytest.mark.parametrize(("requests", "early"), [((), True), ((request(7, 13),), False)])
def test_samples_of_the_first_steps_are_early_unless_requested(
    tmp_path: Path, requests: tuple[WindowRequest, ...], early: bool
) -> None:
    ranks = pair(tmp_path, steps=20, first_step=7)
    (window,) = slow_code(build_timeline(replace(run(*ranks), requests=requests)))
    assert (window.first_step, window.early) == (8, early)
    assert window.slow == (SlowCode(rank=1, line=SLEEPING, ns=30 * MS, peers_ns=0, excess_ratio=1.0),)


def test_the_line_within_a_term_is_that_of_most_samples(tmp_path: Path) -> None:
    """Where a rank stood in the forward of two steps; in other steps it had no samples, or stood elsewhere."""
    _, sleeping = pair(tmp_path, steps=10)
    assert line_within(sleeping, "forward", (3, 4)) == SLEEPING
    assert line_within(sleeping, "gc", (3, 4)) is None
    assert line_within(sleeping, "forward", (40,)) is None


def test_a_call_with_a_term_of_its_own_is_no_line_of_unattributed_time(tmp_path: Path) -> None:
    """Of the 40 ms after the forward, two of three samples show a backward at their begin, as before its phase."""
    rank = sampled(tmp_path / "0", 0, lambda ms: MULTIPLY if ms < 65 else BACKWARD if ms < 85 else FIRST, steps=10)
    line = line_within(rank, UNATTRIBUTED, (3, 4, 5))
    assert line is not None
    assert (line.site, line.called) == ("train.py:61", "sorted")
    assert line_within(rank, UNATTRIBUTED, (3, 4)) is None  # four samples are too few


def test_the_step_of_a_simulator_has_no_term_of_its_own(tmp_path: Path) -> None:
    """Only torch's is recorded."""
    rank = sampled(tmp_path / "0", 0, lambda ms: MULTIPLY if ms < 65 else SIMULATE if ms < 85 else FIRST, steps=10)
    line = line_within(rank, UNATTRIBUTED, (3, 4, 5))
    assert line is not None
    assert (line.site, line.called) == ("train.py:53", "Simulator.step")


def test_a_line_in_many_modules_is_one_piece_of_work(tmp_path: Path) -> None:
    """A hook of three layers takes 10 ms in each, and so 30 ms a step. With two thirds in one layer, that is named."""
    alike, mostly = [HOOKS, (HOOKS[0], HOOKS[0], HOOKS[1])]
    for number, (stacks, module, ns) in enumerate([(alike, "", 30 * MS), (mostly, "layers.0", 20 * MS)]):
        plain = sampled(tmp_path / f"{number}-0", 0, lambda _: MULTIPLY, steps=10, stalled_ms=30)
        hooked = sampled(
            tmp_path / f"{number}-1",
            1,
            lambda ms, stacks=stacks: stacks[ms // 10] if ms < 30 else MULTIPLY,
            steps=10,
        )
        line = Line(site="train.py:70", function="record", called="Tensor.quantile", module=module, term="forward")
        (window,) = windows(plain, hooked)
        assert (window.slow[0].line, window.slow[0].ns) == (line, ns)


def test_too_few_samples_name_nothing(tmp_path: Path) -> None:
    """One step less than a block has."""
    (window,) = windows(*pair(tmp_path, steps=5))
    assert (window.steps, window.slow) == (5, ())


def test_a_rank_alone_is_compared_with_nobody(tmp_path: Path) -> None:
    waiting, sleeping = pair(tmp_path, steps=10)
    assert windows(sleeping) == ()
    assert windows(replace(waiting, directory=None), sleeping) == ()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"sites": [1]}', '{"times_ns": null}'])
def test_a_damaged_file_is_left_out(tmp_path: Path, content: str) -> None:
    ranks = pair(tmp_path, steps=10)
    (tmp_path / "0" / stack_samples_file(0)).write_text(content)
    assert windows(*ranks) == ()


def test_a_sample_without_a_stack_makes_a_file_damaged(tmp_path: Path) -> None:
    ranks = pair(tmp_path, steps=10)
    file = tmp_path / "0" / stack_samples_file(0)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"stacks": [[0]]}))
    assert windows(*ranks) == ()


def test_a_rank_that_waits_in_communication_is_not_slow_there(tmp_path: Path) -> None:
    """No stall is recorded, and its stack shows the wait."""
    ranks = [
        sampled(tmp_path / str(at), at, lambda ms, at=at: REDUCE if ms < 30 * at else MULTIPLY, steps=10)
        for at in (1, 2)
    ]
    (window,) = windows(*ranks)
    assert {slow.rank for slow in window.slow} == {1}


def test_equal_ranks_are_not_accused(tmp_path: Path) -> None:
    """50 windows of two ranks, each in either of two lines at random."""
    draw = random.Random(7)
    accused = 0
    for number in range(50):
        ranks = [
            sampled(tmp_path / f"{number}-{at}", at, lambda _: draw.choice((SLEEP, MULTIPLY)), steps=10)
            for at in (0, 1)
        ]
        (window,) = windows(*ranks)
        accused += len(window.slow)
    assert accused == 0


@pytest.mark.parametrize(
    ("stack", "called"), [(SLEEP, "time.sleep"), (IMPORT, "_find_and_load"), (MULTIPLY, None), (FIRST, None)]
)
def test_python_and_sleep_within_compute_are_told_from_torch(tmp_path: Path, stack: int, called: str | None) -> None:
    """30 of 100 ms of each step. A line that calls a function of C, e.g. of torch, may compute."""
    records = sampled(tmp_path / "0", 0, lambda ms: stack if ms < 30 else MULTIPLY, steps=10)
    found = python_in_compute(records)
    assert (None if found is None else found[0].called) == called
    if found is not None:
        assert (found[0].site, found[0].module) == (f"train.py:{31 if stack == SLEEP else 33}", "")
        assert found[1] == pytest.approx(0.3)


def test_python_outside_of_compute_is_not_counted(tmp_path: Path) -> None:
    """The forward lasts for 60 ms."""
    assert python_in_compute(sampled(tmp_path / "0", 0, lambda ms: IMPORT if ms >= 60 else MULTIPLY, steps=10)) is None


@pytest.mark.parametrize("of_rank_1", [IMPORT, MULTIPLY])
def test_a_run_whose_compute_is_pythons_own_work_on_all_ranks_is_not_healthy(tmp_path: Path, of_rank_1: int) -> None:
    stacks = (IMPORT, of_rank_1)
    ranks = [
        sampled(
            tmp_path / str(at), at, lambda ms, stack=stack: stack if ms < 30 else MULTIPLY, steps=10, forward_ms=100
        )
        for at, stack in enumerate(stacks)
    ]
    analysis = analyze(build_timeline(run(*ranks)))
    first = analysis.verdict[0]
    assert python_work(analysis.timeline, replace(analysis.ledger, clock=LedgerClock.DEVICE)) is None
    if of_rank_1 == MULTIPLY:
        assert first.kind == "healthy"
    else:
        assert (first.kind, first.ranks, first.gain_at_most) == ("unattributed", (), True)
        assert first.estimated_gain_ratio == pytest.approx(0.3)
        assert (
            "30.0 % of step time is Python's own work, or sleep, within forward, backward or optimizer"
            in first.evidence
        )
        assert first.evidence.endswith("show it in _find_and_load at train.py:33 (Slow.forward)")
