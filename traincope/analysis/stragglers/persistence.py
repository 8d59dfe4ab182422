"""Test whether a rank is late step after step, without assuming how noise is distributed.

Two kinds of evidence must agree. First, the rank's own work exceeds that of its peers, in one of its terms or in their
sum. Steps are grouped into blocks, and a block speaks against the rank if its excess is above MARGIN of the step.
Second, its peers wait while it does not. Over all steps, the excess and the difference of the waits must both be
MATERIAL: own work that no rank waits for delays nothing, and a wait without longer work is not the rank's.

The work of equal ranks is exchangeable: whatever its distribution, the chance that one of them exceeds the median of
its peers is at most one half. So the blocks of a healthy rank are throws of a coin, and the largest lead that throws
against it gain in any stretch of blocks has a known distribution: that of a random walk reflected at zero (Lindley's
recursion). A rank is late if its lead is so large that a healthy run has such a rank, in any term, with a chance of at
most MAX_CHANCE. The stretch need not begin with the run: a rank may become slow.

Blocks must not depend on each other. They last twice the autocorrelation time of the noise in the rank's excess. A
throw is a sign, so the noise counts by its signs. A lasting change, and a steady growth, are no noise and are removed
before. So noise that comes in long bursts leaves few blocks, and no rank is named. Few steps do not show whether they
depend on each other. Then blocks have MIN_STEPS_PER_BLOCK steps, or last BLOCK_NS if that is shorter: a machine favours
one process over another for such times.

Where the blocks do not suffice, the latest rank has a chance: that a healthy run has a rank with its lead over the
median of its peers, or over all of them, which one of n ranks has with a chance of at most 1 / n per block. Then blocks
have no fewer steps than in few steps: in short runs, bursts of noise look shorter than they are. In few steps one case
is clear: work that no batch changes, the optimizer's, takes twice the peers' time or more in every block, and is most
of the lateness. Whether another kind of evidence agrees, the caller judges.

Several ranks can be late. They are set aside, and the others are compared among themselves, until none is late. The
ranks that remain are the reference, so they are at least half: where all ranks differ, a few fast ones are no measure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, log2

import numpy as np

from traincope.analysis.autocorrelation import positive_correlation_time
from traincope.arrays import Bools, Floats

MAX_CHANCE = 1e-4
"""Largest chance that a healthy run has a rank that is called late."""
MATERIAL = 0.02
"""Smallest share of a step that a late rank costs. This and the thresholds below are ours."""
MARGIN = 0.01
"""Share of a step by which a rank is late in a block that speaks against it."""
MOST = 0.8
"""Share of the lateness in all terms that single terms must have to be its cause."""
FEW_STEPS = 59
"""Number of steps below which their autocorrelation is unknown: those of a run of 60, without the first."""
MIN_STEPS_PER_BLOCK = 5
BLOCK_NS = 500_000_000
SMALL = 0.1
"""Share of a rank's usual excess below which noise does not count."""
MAX_BLOCKS = 200
"""Longer runs have longer blocks."""
FIXED = "optimizer"
"""The term whose work the parameters fix: no batch makes it longer for some steps."""
FIXED_TIMES = 2.0
"""Times the peers' that it must take in every block of few steps."""
FAIR = 1 / 2
"""Chance of a head of a fair coin."""
SCALES = (1, 5, 10, 20)
"""Lengths of blocks, relative to the shortest. Long blocks show delays of few steps, and small delays in much noise."""


Work = Mapping[str, Floats]
"""Term -> ns of each rank in each step: (ranks, steps)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """A rank that is late."""

    row: int
    terms: tuple[str, ...]
    """Terms in which its work is longer; empty if only their sum is."""
    excess_ns: Floats
    """Its own work in these terms, or in all, above the median of the ranks that are not late, in each step."""
    late_ns: float
    """Mean lateness per step: its excess, at most what its peers waited longer than it did."""
    stretch: tuple[int, int]
    """First step position of the clearest stretch of blocks against it, and the one after the last."""
    peers: tuple[int, ...] = ()
    """Rows that it is compared with: the ranks that are not late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Ranks that have the same work to do, in the steps that all of them completed."""

    work: Work
    """Only terms that can be MATERIAL."""
    waits_ns: Floats
    """(ranks, steps)."""
    wall_ns: Floats
    """Time of each step."""
    num_tests: int
    """Ranks in the whole run that are tested, times the number of ways."""

    @property
    def own_ns(self) -> Floats:
        """Sum of all terms."""
        return _sum(self.work.values(), like=self.waits_ns)

    @property
    def material_ns(self) -> float:
        return MATERIAL * float(self.wall_ns.mean())

    def among(self, rows: Sequence[int]) -> "Peers":
        """The same of some of the ranks."""
        chosen = list(rows)
        work = {term: ns[chosen] for term, ns in self.work.items()}
        return replace(self, work=work, waits_ns=self.waits_ns[chosen])


def material_terms(work: Work, wall_ns: Floats) -> Work:
    """Leave out the terms in which no rank can be late: each takes less than MATERIAL of a step."""
    return {
        term: ns for term, ns in work.items() if len(ns) and ns.mean(axis=1).max() >= MATERIAL * float(wall_ns.mean())
    }


def late_ranks(peers: Peers) -> tuple[Late, ...]:
    """Find the late ranks, the latest first."""
    rows, late = list(range(len(peers.waits_ns))), list[int]()
    while len(rows) > 1 and (found := {rows[each.row] for each in _late_among(peers.among(rows))}):
        usual = [row for row in rows if row not in found]
        if 2 * len(usual) < len(peers.waits_ns):
            break
        late, rows = [*late, *sorted(found)], usual
    final = (_evidence(_Compared(peers.among([row, *rows])), at=0) for row in late)
    named = [
        replace(each, row=row, peers=tuple(rows)) for row, each in zip(late, final, strict=True) if each is not None
    ]
    return tuple(sorted(named, key=lambda each: -each.late_ns))


def latest_so_far(peers: Peers) -> tuple[Late, float] | None:
    """Return the evidence against the latest rank where it does not suffice, and the chance that a healthy run has a
    rank with such a lead; None if none is MATERIAL.
    """
    if len(peers.waits_ns) < 2 or not len(peers.wall_ns):
        return None
    compared = _Compared(peers)
    late_ns = _lateness(peers, compared.measures[""])
    row = int(np.argmax(late_ns))
    excess_ns = compared.excess_ns("", at=row)
    length = max(_shortest_block(excess_ns, peers.wall_ns), _steps_of_few(peers.wall_ns))
    if late_ns[row] < peers.material_ns or len(peers.wall_ns) < length:
        return None
    heads = {False: FAIR, True: 1 / len(late_ns)} if len(late_ns) > 2 else {False: FAIR}
    leads = {
        over_all: _largest_lead(compared.against("", at=row, length=length, over_all=over_all))[0] for over_all in heads
    }
    blocks = len(peers.wall_ns) // length
    chance = min(chance_of_lead(blocks, leads[way], head) if leads[way] else 1.0 for way, head in heads.items())
    late = Late(
        row=row,
        terms=(),
        excess_ns=excess_ns,
        late_ns=float(late_ns[row]),
        stretch=(0, len(peers.wall_ns)),
        peers=tuple(other for other in range(len(late_ns)) if other != row),
    )
    return late, min(peers.num_tests * len(heads) * chance, 1.0)


def late_by_fixed_work(peers: Peers, *, at: int) -> Late | None:
    """Return the evidence against a rank by its fixed work alone, in steps that are too few; None if that isn't most of
    its lateness, or not clear in every block.
    """
    work_ns = peers.work.get(FIXED)
    length = _independent_steps(peers.wall_ns, len(peers.wall_ns))
    if work_ns is None or len(peers.wall_ns) < length:
        return None
    compared = _Compared(peers)
    late_ns = float(_lateness(peers, work_ns)[at])
    enough_ns = max(peers.material_ns, MOST * float(_lateness(peers, compared.measures[""])[at]))
    own_ns = _block_means(work_ns[at, len(peers.wall_ns) % length :], length)
    usual_ns = own_ns - compared.excess_ns(FIXED, at=at, length=length)
    if late_ns < enough_ns or not (own_ns >= FIXED_TIMES * usual_ns).all():
        return None
    return Late(
        row=at,
        terms=(FIXED,),
        excess_ns=compared.excess_ns(FIXED, at=at),
        late_ns=late_ns,
        stretch=(0, len(peers.wall_ns)),
        peers=tuple(row for row in range(len(work_ns)) if row != at),
    )


def steps_needed(wall_ns: Floats, *, num_tests: int) -> int:
    """Return the fewest steps of such times after which a rank can be called late."""
    needed = _blocks_needed(num_tests)
    return min(needed * _independent_steps(wall_ns, needed), max(needed, FEW_STEPS))


def _blocks_needed(num_tests: int) -> int:
    """Return the fewest throws of a coin that are all heads with a small enough chance."""
    return ceil(log2(num_tests / MAX_CHANCE))


def _independent_steps(wall_ns: Floats, steps: int) -> int:
    """Return the smallest number of steps in a block of a run of `steps`, if they do not depend on each other."""
    return ceil(steps / MAX_BLOCKS) if steps >= FEW_STEPS else _steps_of_few(wall_ns)


def _steps_of_few(wall_ns: Floats) -> int:
    """Return the number of steps in a block of few steps."""
    return min(MIN_STEPS_PER_BLOCK, ceil(BLOCK_NS / max(float(np.median(wall_ns)), 1.0)))


def _late_among(peers: Peers) -> Iterator[Late]:
    """Yield all late ranks. Most are not, by their means alone."""
    compared = _Compared(peers)
    late_ns = _lateness(peers, compared.measures[""])
    for at in np.flatnonzero(late_ns >= peers.material_ns).tolist():
        late = _evidence(compared, at=at)
        if late is not None:
            yield late


def _lateness(peers: Peers, work_ns: Floats) -> Floats:
    """Return each rank's mean lateness: its excess of this work, at most what its peers waited longer than it did.

    The medians are those of the other ranks: the upper one of the work, the lower one of the waits.
    """
    work, waits = work_ns.mean(axis=1), peers.waits_ns.mean(axis=1)
    late_ns: Floats = np.minimum(work - _of_others(work, upper=True), _of_others(waits, upper=False) - waits)
    return late_ns


class _Compared:
    """Peers with the medians of their blocks. Each median is computed once, for all ranks that are examined."""

    def __init__(self, peers: Peers) -> None:
        self.peers = peers
        self.measures = {**peers.work, "": peers.own_ns}
        """Term -> ns of each rank in each step; the empty name is the sum of all."""
        self._ordered: dict[tuple[str, int, bool], tuple[Floats, Floats]] = {}

    def excess_ns(self, measure: str, *, at: int, length: int = 1, over_all: bool = False) -> Floats:
        """Return a rank's mean excess over the median of the others, or over all of them, in blocks of this length.

        The first steps that fill no block are left out.
        """
        work_ns = self.measures[measure]
        work_ns = work_ns[:, work_ns.shape[1] % length :]
        if (measure, length, over_all) not in self._ordered:
            means_ns = _block_means(work_ns, length)
            self._ordered[measure, length, over_all] = _largest(means_ns) if over_all else _middle(means_ns, upper=True)
        own_ns = _block_means(work_ns[at], length)
        excess_ns: Floats = own_ns - _without_own(own_ns, *self._ordered[measure, length, over_all])
        return excess_ns

    def against(self, measure: str, *, at: int, length: int, over_all: bool = False) -> Bools:
        """Return which blocks speak against a rank."""
        margins_ns = MARGIN * _block_means(self.peers.wall_ns[len(self.peers.wall_ns) % length :], length)
        speaks: Bools = self.excess_ns(measure, at=at, length=length, over_all=over_all) > margins_ns
        return speaks


def _evidence(compared: _Compared, *, at: int) -> Late | None:
    """Return the evidence against a rank; None if it is not late."""
    peers, measures = compared.peers, compared.measures
    material_ns = peers.material_ns
    if _lateness(peers, measures[""])[at] < material_ns:
        return None
    num_tests = peers.num_tests * len(measures)
    clear = {
        term: found
        for term, work_ns in measures.items()
        if _lateness(peers, work_ns)[at] >= material_ns
        and (found := _clearest_stretch(compared, term, at=at, num_tests=num_tests)) is not None
    }
    if not clear:
        return None
    terms = tuple(term for term in clear if term)
    work_ns = _sum((measures[term] for term in terms), like=peers.waits_ns)
    if "" in clear and _lateness(peers, work_ns)[at] < MOST * _lateness(peers, measures[""])[at]:
        terms, work_ns = (), measures[""]
    return Late(
        row=at,
        terms=terms,
        excess_ns=work_ns[at] - _of_others(work_ns, upper=True)[at],
        late_ns=float(_lateness(peers, work_ns)[at]),
        stretch=max(clear.values(), key=lambda found: found.clearness).positions,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """Steps in which blocks speak against a rank."""

    positions: tuple[int, int]
    clearness: float
    """Lead / needed lead."""


def _clearest_stretch(compared: _Compared, measure: str, *, at: int, num_tests: int) -> _Stretch | None:
    """Return the stretch of the clearest lead, in blocks of any length; None if no lead is large enough."""
    lengths = list(_block_lengths(compared, measure, at=at, num_tests=num_tests))
    found = []
    for length in lengths:
        skipped = len(compared.peers.wall_ns) % length
        against = compared.against(measure, at=at, length=length)
        lead, first, end = _largest_lead(against)
        needed = lead_needed(len(against), MAX_CHANCE / num_tests / len(lengths))
        if needed is not None and lead >= needed:
            positions = (skipped + first * length if first else 0, skipped + end * length)
            found.append(_Stretch(positions=positions, clearness=lead / needed))
    return max(found, key=lambda stretch: stretch.clearness, default=None)


def _sum(works_ns: Iterable[Floats], *, like: Floats) -> Floats:
    total: Floats = sum(works_ns, np.zeros_like(like))
    return total


def _of_others(values: Floats, *, upper: bool) -> Floats:
    """Return the median of the other rows; of an even number, the upper or the lower of the two in the middle."""
    return _without_own(values, *_middle(values, upper=upper))


def _without_own(values: Floats, low: Floats, high: Floats) -> Floats:
    """Return the median of the other rows for some of the rows, from `_middle` of all."""
    result: Floats = np.where(values <= low, high, low)
    return result


def _middle(values: Floats, *, upper: bool) -> tuple[Floats, Floats]:
    """Return the two values in each column of which one is the median of the other rows, for every row."""
    others = len(values) - 1
    place = others // 2 if upper else (others - 1) // 2
    ordered = np.partition(values, (place, place + 1), axis=0)
    return ordered[place], ordered[place + 1]


def _largest(values: Floats) -> tuple[Floats, Floats]:
    """Return the two largest values in each column, of which one is the largest of the other rows, for every row."""
    ordered = np.partition(values, (-2, -1), axis=0)
    return ordered[-2], ordered[-1]


def _block_lengths(compared: _Compared, measure: str, *, at: int, num_tests: int) -> Iterator[int]:
    """Yield the lengths of blocks that leave enough of them, the shortest first."""
    wall_ns = compared.peers.wall_ns
    if len(wall_ns) < steps_needed(wall_ns, num_tests=num_tests):
        return
    needed = _blocks_needed(num_tests)
    shortest = _shortest_block(compared.excess_ns(measure, at=at), wall_ns)
    yield from (shortest * scale for scale in SCALES if len(wall_ns) // (shortest * scale) >= needed)


def _shortest_block(excess_ns: Floats, wall_ns: Floats) -> int:
    """Return the smallest number of steps in a block, so that blocks do not depend on each other."""
    independent = _independent_steps(wall_ns, len(wall_ns))
    if len(wall_ns) < FEW_STEPS:
        return independent
    level_ns = float(np.median(excess_ns)) - MARGIN * float(wall_ns.mean())
    time = positive_correlation_time(_signs(_noise(excess_ns), above=SMALL * level_ns))
    return max(independent, 1 if time == 1 else ceil(2 * time))


def _noise(values: Floats) -> Floats:
    """Return what remains of a series without its clearest change of level and its steady growth."""
    place = np.arange(len(values), dtype=np.float64)
    after = place > np.argmax(np.abs(np.cumsum(values - values.mean())[:-1]))
    parts = np.stack([np.ones_like(place), place / len(place), after.astype(np.float64)], axis=1)
    fitted, *_ = np.linalg.lstsq(parts, values, rcond=None)
    noise: Floats = np.rint(values - parts @ fitted)  # less than a ns is rounding
    return noise


def _signs(noise_ns: Floats, *, above: float) -> Floats:
    """Return the signs of noise; 0 where it is not above a size: less can't have made the rank late."""
    signs: Floats = np.where(np.abs(noise_ns) > above, np.sign(noise_ns), 0.0)
    return signs


def _block_means(values: Floats, length: int) -> Floats:
    means: Floats = values.reshape(*values.shape[:-1], -1, length).mean(axis=-1)
    return means


def _largest_lead(against: Bools) -> tuple[int, int, int]:
    """Return the largest lead of blocks against a rank in any stretch, its first block and the one after its last."""
    walk = np.concatenate([[0], np.cumsum(np.where(against, 1, -1))])
    leads = walk - np.minimum.accumulate(walk)
    end = int(np.argmax(leads))
    first = int(np.flatnonzero(walk[: end + 1] == walk[: end + 1].min())[-1])
    return int(leads[end]), first, end


@cache
def lead_needed(count: int, max_chance: float) -> int | None:
    """Return the smallest lead that `count` throws of a coin gain with at most this chance; None if there is none."""
    if chance_of_lead(count, count) > max_chance:
        return None
    low, high = 1, count
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if chance_of_lead(count, middle) <= max_chance else (middle + 1, high)
    return low


@cache
def chance_of_lead(count: int, lead: int, head: float = FAIR) -> float:
    """Return the chance that heads lead by `lead` in some stretch of `count` throws. `head`: its chance in one."""
    chances = np.zeros(lead + 1)
    chances[0] = 1.0
    for _ in range(count):
        moved = np.zeros_like(chances)
        moved[1:] = chances[:-1] * head
        moved[: lead - 1] += chances[1:lead] * (1 - head)
        moved[0] += chances[0] * (1 - head)
        moved[lead] += chances[lead]
        chances = moved
    return float(chances[lead])
