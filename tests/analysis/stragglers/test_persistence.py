"""The test for late ranks: its chances by enumeration, and what it finds in thousands of simulated jobs."""

from itertools import product

import numpy as np
import pytest

from tests.analysis.stragglers.jobs import STEP_NS, Delay, Noise, bursts, correlated, dependent, heavy, job, normal
from traincope.analysis.stragglers.persistence import (
    MAX_CHANCE,
    Late,
    Peers,
    chance_of_lead,
    late_by_fixed_work,
    late_ranks,
    latest_so_far,
    lead_needed,
)
from traincope.analysis.stragglers.stragglers import MAX_CHANCE_SO_FAR, MOSTLY

MS = 1_000_000
NOISES = (normal, heavy, dependent, bursts)


def largest_lead(throws: tuple[int, ...]) -> int:
    """The largest sum of any stretch, by trying all of them."""
    return max(sum(throws[first:end]) for end in range(len(throws) + 1) for first in range(end + 1))


@pytest.mark.parametrize("head", [1 / 2, 1 / 3, 1 / 8])
@pytest.mark.parametrize("count", [1, 2, 5, 10])
def test_the_chance_of_a_lead_is_that_of_all_throws(count: int, head: float) -> None:
    all_throws = list(product((-1, 1), repeat=count))
    chances = [head ** throws.count(1) * (1 - head) ** throws.count(-1) for throws in all_throws]
    leads = [largest_lead(throws) for throws in all_throws]
    for lead in range(1, count + 1):
        expected = sum(chance for chance, largest in zip(chances, leads, strict=True) if largest >= lead)
        assert chance_of_lead(count, lead, head) == pytest.approx(expected)


def test_the_lead_that_is_needed_is_the_smallest_with_that_chance() -> None:
    """Of 16 throws, all must be heads for a chance of 2 to the power of -16, about 1.5e-5."""
    assert lead_needed(16, 2.0**-16) == 16
    assert lead_needed(15, 2.0**-16) is None
    needed = lead_needed(60, 1e-5)
    assert needed is not None
    assert chance_of_lead(60, needed) <= 1e-5 < chance_of_lead(60, needed - 1)


def named(random: np.random.Generator, *, ranks: int, steps: int, noise: Noise, delays: tuple[Delay, ...]) -> list[int]:
    return [late.row for late in late_ranks(job(random, ranks=ranks, steps=steps, noise=noise, delays=delays))]


@pytest.mark.parametrize("noise", NOISES)
def test_healthy_jobs_have_no_late_rank(noise: Noise) -> None:
    """150 jobs for each kind of noise."""
    random = np.random.default_rng(7)
    sizes = [(2, 100), (3, 200), (8, 100)]
    late = [named(random, ranks=ranks, steps=steps, noise=noise, delays=()) for ranks, steps in sizes * 50]
    assert sum(map(bool, late)) == 0


@pytest.mark.sweep
@pytest.mark.parametrize("noise", [normal, heavy])
def test_at_most_one_of_ten_thousand_healthy_jobs_has_a_late_rank(noise: Noise) -> None:
    """30,000 jobs: more than 9 are named with a chance of 0.1 % if one in 10,000 is."""
    random = np.random.default_rng(8)
    late = (named(random, ranks=3, steps=100, noise=noise, delays=()) for _ in range(30_000))
    assert sum(map(bool, late)) <= 9


@pytest.mark.sweep
def test_bursts_of_noise_rarely_leave_all_waits_to_one_rank() -> None:
    """2,400 healthy jobs: the latest rank has a chance of 1 in 10,000, and 80 % of the waits are for it."""
    random = np.random.default_rng(11)
    named = 0
    for ranks, steps in product((3, 4, 8), (60, 80, 120, 200)):
        for _ in range(200):
            healthy = job(random, ranks=ranks, steps=steps, noise=bursts)
            latest = latest_so_far(healthy)
            if latest is not None and latest[1] <= MAX_CHANCE:
                last = healthy.own_ns.argmax(axis=0)
                caused_ns = np.bincount(last, weights=healthy.waits_ns.sum(axis=0), minlength=ranks)
                named += bool(caused_ns[latest[0].row] >= MOSTLY * caused_ns.sum())
    assert named <= 4


def test_the_chance_of_a_false_name_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a chance of 20 % and no threshold of the delay, at most 20 % of equal ranks are named, and some are."""
    monkeypatch.setattr("traincope.analysis.stragglers.persistence.MAX_CHANCE", 0.2)
    monkeypatch.setattr("traincope.analysis.stragglers.persistence.MATERIAL", 0.0)
    monkeypatch.setattr("traincope.analysis.stragglers.persistence.MARGIN", 0.0)
    random = np.random.default_rng(9)
    late = [bool(named(random, ranks=2, steps=60, noise=normal, delays=())) for _ in range(100)]
    assert 0.0 < np.mean(late) <= 0.2


@pytest.mark.parametrize(("ratio", "steps"), [(0.05, 100), (0.03, 300)])
@pytest.mark.parametrize("shape", ["steady", "growing", "periodic"])
@pytest.mark.parametrize("noise", [normal, heavy])
def test_a_late_rank_is_found_with_its_delay(noise: Noise, shape: str, ratio: float, steps: int) -> None:
    """20 jobs: 19 of the late ranks are named, no other rank is, and the delays are right within a tenth."""
    random = np.random.default_rng(10)
    delay = Delay(rank=1, ratio=ratio, shape=shape)
    late: list[tuple[Late, ...]] = [
        late_ranks(job(random, ranks=4, steps=steps, noise=noise, delays=(delay,))) for _ in range(20)
    ]
    assert {each.row for found in late for each in found} == {1}
    assert sum(bool(found) for found in late) >= 19
    measured = np.mean([found[0].late_ns for found in late if found])
    assert measured == pytest.approx(delay.ns(steps).mean(), rel=0.1)
    assert sum(found[0].terms == ("forward",) for found in late if found) >= 18


def test_a_late_rank_is_found_although_its_delays_depend_on_each_other() -> None:
    """On a busy machine, delays of 30 % vary by a third, each with 0.4 of the deviation before: 70 of 100 named."""
    random = np.random.default_rng(16)
    found = []
    for _ in range(100):
        varying = np.exp(0.3 * correlated(random, (1, 69), correlation=0.4)[0])
        delay = Delay(rank=1, ratio=0.3, term="data_wait", varying=varying)
        found.append(named(random, ranks=3, steps=69, noise=normal, delays=(delay,)))
    assert found.count([1]) >= 70


def test_a_rank_that_becomes_slow_is_found_with_the_step() -> None:
    random = np.random.default_rng(11)
    (late,) = late_ranks(job(random, ranks=3, steps=200, noise=normal, delays=(Delay(rank=2, ratio=0.1, first=80),)))
    assert (late.row, late.terms) == (2, ("forward",))
    assert late.stretch[0] == pytest.approx(80, abs=10)
    assert late.stretch[1] == 200


def test_several_late_ranks_are_found() -> None:
    random = np.random.default_rng(12)
    delays = tuple(Delay(rank=rank, ratio=0.06 + 0.02 * rank, term="data_wait") for rank in range(3))
    assert named(random, ranks=8, steps=100, noise=normal, delays=delays) == [2, 1, 0]


def test_at_least_half_of_the_ranks_are_the_reference() -> None:
    """Each of 10 ranks is slower than the one before. The faster ones of the faster half are no measure for it."""
    random = np.random.default_rng(20)
    delays = tuple(Delay(rank=rank, ratio=0.06 * rank) for rank in range(10))
    late = late_ranks(job(random, ranks=10, steps=200, noise=normal, delays=delays))
    assert [each.row for each in late] == [9, 8, 7, 6, 5]
    assert {each.peers for each in late} == {(0, 1, 2, 3, 4)}


def test_a_rank_that_is_slow_in_all_terms_is_late_in_their_sum() -> None:
    random = np.random.default_rng(13)
    delays = tuple(Delay(rank=0, ratio=0.015, term=term) for term in ("forward", "backward", "optimizer"))
    (late,) = late_ranks(job(random, ranks=4, steps=300, noise=normal, delays=delays))
    assert (late.row, late.terms) == (0, ())
    assert late.late_ns == pytest.approx(0.045 * STEP_NS, rel=0.1)


def test_small_imbalance_is_not_named() -> None:
    """1.5 % of a step is certain in 1,000 steps, and less than what is worth a name."""
    random = np.random.default_rng(14)
    assert named(random, ranks=2, steps=1_000, noise=normal, delays=(Delay(rank=0, ratio=0.015),)) == []


def test_work_that_nobody_waits_for_is_not_late() -> None:
    """A rank with 10 % more work that overlaps its communication: all ranks wait equally."""
    random = np.random.default_rng(15)
    slow = job(random, ranks=4, steps=200, noise=normal, delays=(Delay(rank=1, ratio=0.1),))
    assert [late.row for late in late_ranks(slow)] == [1]
    hidden = type(slow)(
        work=slow.work, waits_ns=np.full_like(slow.waits_ns, 1e6), wall_ns=slow.wall_ns, num_tests=slow.num_tests
    )
    assert late_ranks(hidden) == ()


def test_a_slow_link_makes_no_rank_late() -> None:
    """The others wait a tenth of each step for the last rank, whose own work is not longer."""
    random = np.random.default_rng(16)
    assert late_ranks(job(random, ranks=4, steps=300, noise=normal, slow_link_ns=0.1 * STEP_NS)) == ()


def test_nine_steps_name_nobody() -> None:
    """However late a rank is."""
    random = np.random.default_rng(17)
    assert named(random, ranks=2, steps=9, noise=normal, delays=(Delay(rank=1, ratio=1.0),)) == []
    assert MAX_CHANCE * 2**9 < 1


def test_a_start_that_settles_hides_no_rank_that_is_late_by_much_more() -> None:
    """Rank 1 works 80 ms longer in each of 58 steps, in the first ones a little more: not 8 dependent blocks."""
    longer = np.full(59, 80.0)
    longer[:3] += [7, 4, 1]
    longer[-1] = 0
    work = np.stack([np.ones(59), 1 + longer]) * 1e6
    waits = np.stack([longer, np.zeros(59)]) * 1e6
    peers = Peers(work={"forward": work}, waits_ns=waits, wall_ns=work.max(axis=0) + 2e6, num_tests=4)
    (late,) = late_ranks(peers)
    assert (late.row, late.late_ns) == (1, pytest.approx(longer.mean() * 1e6))


def test_noise_of_an_optimizer_rarely_looks_like_fixed_work() -> None:
    """Healthy jobs of 45 steps. Their optimizer varies by half, and a step depends on the one before by 0.9: in some of
    them a rank is mentioned as the latest so far, and none is named by its optimizer.
    """
    rng = np.random.default_rng(7)
    mentioned = 0
    for _ in range(1000):
        noise = rng.standard_normal((3, 45))
        for at in range(1, 45):
            noise[:, at] = 0.9 * noise[:, at - 1] + (1 - 0.9**2) ** 0.5 * noise[:, at]
        work = {"optimizer": 30 * MS * np.exp(0.5 * noise), "forward": np.full((3, 45), 30.0 * MS)}
        own = work["optimizer"] + work["forward"]
        few = Peers(work=work, waits_ns=own.max(axis=0) - own, wall_ns=own.max(axis=0) + 10 * MS, num_tests=3)
        latest = latest_so_far(few)
        if latest is not None and latest[1] <= MAX_CHANCE_SO_FAR:
            mentioned += 1
            assert late_by_fixed_work(few, at=latest[0].row) is None
    assert 20 <= mentioned <= 200
