"""Simulated runs of several hosts with known clocks, and records delayed as on a real network.

Clocks differ by seconds, run up to 100 ppm too fast or slow, and are never quite steady. Wall clocks are wrong by
seconds, and some are stepped. Ranks arrive late and wake late, mostly by little, sometimes by much. In two of three
runs each host is present for only a part of the run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from tests.timeline.build import Row, clock, collective, group, message, rank, run, step
from traincope.arrays import Floats, Ints
from traincope.store import RunRecords

SECOND = 1_000_000_000
EPOCH_NS = 1_760_000_000 * SECOND
SWING, SWING_NS = 1e-7, 40 * SECOND
"""Amplitude and period of the rates' swing: 0.2 ppm in 20 s, twice that of a free oscillator."""
KINDS = 3
"""Collectives, or messages in each direction, per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostClock:
    """True time, ns since the begin of the run -> the time that the host shows."""

    booted_ns: int
    drift: float
    phase: float
    """Phase of its swing."""
    wall_ns: int
    """Wall time at the begin of the run, and the time and size of a step of the clock."""
    stepped_ns: int
    stepped_at_ns: int

    @classmethod
    def draw(cls, random: np.random.Generator) -> "HostClock":
        return cls(
            booted_ns=int(random.integers(0, 10_000_000)) * SECOND,
            drift=float(random.uniform(-100e-6, 100e-6)),
            phase=float(random.uniform(0, 2 * np.pi)),
            wall_ns=EPOCH_NS + int(random.uniform(-3, 3) * SECOND),
            stepped_ns=int(random.uniform(-2, 2) * SECOND) if random.integers(2) else 0,
            stepped_at_ns=int(random.uniform(0, 30) * SECOND),
        )

    def monotonic(self, true_ns: Ints | Floats) -> Ints:
        turn = 2 * np.pi * true_ns / SWING_NS + self.phase
        swung = SWING * SWING_NS / (2 * np.pi) * (np.sin(turn) - np.sin(self.phase))
        return self.booted_ns + np.rint(true_ns * (1 + self.drift) + swung).astype(np.int64)

    def wall(self, true_ns: int) -> int:
        return self.wall_ns + true_ns + (self.stepped_ns if true_ns >= self.stepped_at_ns else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A simulated run with its truth."""

    seed: int
    chain: bool
    """True: each rank sends only to the next one and back, like a pipeline; otherwise collectives of all ranks."""
    clocks: tuple[HostClock, ...]
    ranks_per_host: int
    length_ns: int
    run: RunRecords


def make_trial(seed: int, *, with_evidence: int | None = None) -> Trial:
    """A run drawn from the seed. `with_evidence`: the number of steps with communication."""
    random = np.random.default_rng(seed)
    clocks = tuple(HostClock.draw(random) for _ in range(int(random.integers(2, 6))))
    ranks_per_host, chain = int(random.integers(1, 3)), bool(random.integers(2))
    wire_ns = float(random.uniform(5_000, 200_000))
    steps = random.uniform(0.05, 0.5) * random.uniform(0.9, 1.3, int(random.integers(20, 120)))
    borders = SECOND * (random.uniform(0, 5) + np.cumsum([0, *steps]))
    size = len(clocks) * ranks_per_host
    lives = _lives(seed, len(clocks), until_ns=borders[-1]).repeat(ranks_per_host, axis=0)
    rows: list[list[Row]] = [
        _steps(clocks[number // ranks_per_host], borders[(borders >= life[0]) & (borders <= life[1])])
        for number, life in enumerate(lives)
    ]
    begins = borders[:-1]
    known = len(begins) if with_evidence is None else with_evidence
    for kind in range(KINDS):
        meet = _messages if chain else _collectives
        for number, true_row in meet(random, begins + kind * 0.03 * SECOND, wire_ns, lives=lives, kind=kind):
            if true_row.sequence < known * KINDS:
                rows[number].append(_shown(true_row, clocks[number // ranks_per_host]))
    world = group("world", *range(size))
    hosts = [f"host {number // ranks_per_host}" for number in range(size)]
    ranks = [rank(number, *rows[number], groups=[world], boot_id=hosts[number]) for number in range(size)]
    return Trial(
        seed=seed,
        chain=chain,
        clocks=clocks,
        ranks_per_host=ranks_per_host,
        length_ns=int(borders[-1]),
        run=run(*ranks),
    )


def _late(random: np.random.Generator, shape: Sequence[int], usual_ns: float, *, seldom_ns: float) -> Floats:
    """Delays: mostly small, one in twenty large."""
    much = random.random(shape) < 0.05
    return random.exponential(usual_ns, shape) + much * random.exponential(seldom_ns, shape)


TrueRow = tuple[int, Row]
"""A rank, and its record in true time."""


def _collectives(
    random: np.random.Generator, begins: Floats, wire_ns: float, *, lives: Floats, kind: int
) -> Iterator[TrueRow]:
    """Collectives. They end after the last begin, each when the wire and its own scheduler allow it."""
    shape = len(lives), len(begins)
    starts = begins + _late(random, shape, 1e6, seldom_ns=1e8)
    ends = starts.max(axis=0) + wire_ns + _late(random, shape, 1e5, seldom_ns=2e7)
    present = _lived(lives, starts, ends).all(axis=0)
    for number, at in product(range(len(lives)), np.flatnonzero(present).tolist()):
        start, end = int(starts[number, at]), int(ends[number, at])
        yield number, collective(start, end, name="all_reduce", sequence=at * KINDS + kind, num_bytes=4)


def _messages(
    random: np.random.Generator, begins: Floats, wire_ns: float, *, lives: Floats, kind: int
) -> Iterator[TrueRow]:
    """Messages from each rank to the next and back. A receive may be posted before or after the send; it ends on
    arrival.
    """
    for sender, receiver in [pair for at in range(len(lives) - 1) for pair in ((at, at + 1), (at + 1, at))]:
        sends = begins + _late(random, (len(begins),), 1e6, seldom_ns=1e8)
        receives = begins + _late(random, (len(begins),), 1e6, seldom_ns=1e8)
        present = np.maximum(sends + wire_ns, receives) + _late(random, (len(begins),), 1e5, seldom_ns=2e7)
        lived = _lived(lives[[sender]], sends, present) & _lived(
            lives[[receiver]], np.minimum(sends, receives), present
        )
        for at in np.flatnonzero(lived[0]).tolist():
            sent, posted, come = int(sends[at]), int(receives[at]), int(present[at])
            sequence = at * KINDS + kind
            yield sender, message("send", sent, sent + 9_000, peer=receiver, sequence=sequence, num_bytes=4)
            yield receiver, message("recv", posted, come, peer=sender, sequence=sequence, num_bytes=4)


def _lives(seed: int, hosts: int, *, until_ns: float) -> Floats:
    """Begin and end of each host; in every third run those of the run."""
    random = np.random.default_rng([seed, hosts])
    shares = np.column_stack([random.uniform(0, 0.3, hosts), random.uniform(0.6, 1, hosts)])
    return until_ns * (np.array([[0.0, 1.0]] * hosts) if seed % 3 == 1 else shares)


def _lived(lives: Floats, begins: Floats, ends: Floats) -> NDArray[np.bool_]:
    """Begin and end of the overlap of all hosts."""
    lived: NDArray[np.bool_] = (begins >= lives[:, :1]) & (ends <= lives[:, 1:])
    return lived


def _steps(host: HostClock, borders: Floats) -> list[Row]:
    """Steps, and a pair of clocks each second."""
    shown = host.monotonic(borders).tolist()
    pairs = [
        (int(host.monotonic(np.float64(at))), host.wall(at)) for at in range(int(borders[0]), int(borders[-1]), SECOND)
    ]
    return [
        *(step(at, begin, end) for at, (begin, end) in enumerate(pairwise(shown))),
        *(clock(*pair) for pair in pairs),
    ]


def _shown(row: Row, host: HostClock) -> Row:
    """The record in the host's clock."""
    start_ns, end_ns = host.monotonic(np.array([row.start_ns, row.end_ns])).tolist()
    return replace(row, start_ns=start_ns, end_ns=end_ns)
