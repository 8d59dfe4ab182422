"""Cases of the score: a fault, the training in which it happens, and the answer that is right."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from evaluation.score.training import SAVED_STEPS
from traincope.analysis import FindingKind, HangKind

LAYOUTS = ("ddp", "fsdp", "tp", "plain", "pipeline")
SIZES = (2, 4, 2, 4, 8)
"""World sizes in turn. A case of 8 ranks takes as long as three of 2."""
RECORDINGS = {"windows": {}, "full": {"TRAINCOPE_BUDGET": "none"}, "level 0": {"TRAINCOPE_LEVEL": "0"}}
STUCK_CHECKPOINT = "checkpoint_stuck"
"""It is drawn after the first checkpoint: the first may take 10 minutes, which no score has time for."""
LINK_CUT = "link_cut"
"""The loopback device of the job's own network namespace goes down. It needs root, and no injector."""
STUCK = frozenset({HangKind.STUCK.value})
MISMATCH = frozenset({HangKind.MISMATCH.value})
FAILED = frozenset({FindingKind.FAILED_RANK.value})
KILLED = frozenset({FindingKind.KILLED_RANK.value})
KINDS = {
    "sleep": STUCK,
    "lock": STUCK,
    "loop": STUCK,
    "gil": STUCK,
    "sigstop": STUCK,
    "worker_stuck": STUCK,
    STUCK_CHECKPOINT: STUCK,
    "teardown_stuck": STUCK,
    "deadlock": frozenset({HangKind.DEADLOCK.value}),
    "missing_collective": MISMATCH,
    "other_collective": MISMATCH,
    "wrong_size": MISMATCH,
    "wrong_dtype": MISMATCH,
    "wrong_group": MISMATCH,
    "exception": FAILED,
    "out_of_memory": FAILED,
    "disk_full": FAILED,
    "worker_killed": FAILED,
    "sigkill": KILLED,
    "sigterm": KILLED,
    "exit_0": KILLED | FAILED,
    "leave_early": KILLED | FAILED | {HangKind.LEFT.value},
    LINK_CUT: frozenset({HangKind.NONE_COMPLETES.value}),
}
"""Fault that stops or ends a run -> the kinds of verdict that are right. A hang's kind is that of `HangKind`."""
FAULTS = tuple(KINDS)
HANGING = frozenset(
    {name for name, kinds in KINDS.items() if kinds & STUCK} | {"deadlock", "other_collective", "wrong_group", LINK_CUT}
)
"""Faults after which the job stands still until a person ends it."""
NOT_INJECTED = {
    *product(
        ("missing_collective", "other_collective", "wrong_size", "wrong_dtype", "wrong_group"), ("tp", "pipeline")
    ),
}
"""The injector changes calls of `torch.distributed`. Functional collectives, and stages, make none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    fault: str
    layout: str
    size: int
    recording: str
    rank: int
    step: int

    def __str__(self) -> str:
        return f"{self.fault} on rank {self.rank} of {self.size} in step {self.step}, {self.layout}, {self.recording}"

    @property
    def culprits(self) -> tuple[int, ...]:
        if self.fault == LINK_CUT:
            return ()
        return tuple(range(self.size)) if self.fault == "deadlock" else (self.rank,)

    @property
    def kinds(self) -> frozenset[str]:
        return KINDS[self.fault]

    @property
    def wait_seconds(self) -> float:
        """Longest wait for a live verdict. A checkpoint may take 30 s before it counts as stuck."""
        return 45.0 if self.fault == STUCK_CHECKPOINT else 25.0

    @property
    def is_beyond_evidence(self) -> bool:
        """True if no source shows who waits: gloo's flight recorder lacks messages between two ranks, and they are
        recorded only in windows.
        """
        waits = self.fault in HANGING - {STUCK_CHECKPOINT, "teardown_stuck"}
        return self.layout == "pipeline" and self.recording != "full" and waits


@dataclass(frozen=True, slots=True)
class Stratum:
    layout: str
    size: int
    recording: str


def stratified(
    rng: random.Random, *, count: int, faults: Sequence[str], layouts: Sequence[str], sizes: Sequence[int]
) -> Iterator[Case]:
    """Every fault as often as any other, then layouts, sizes and recordings in turn."""
    strata = [Stratum(*each) for each in product(layouts, sizes, RECORDINGS)]
    rng.shuffle(strata)
    order = list(faults)
    for number in range(count):
        if number % len(order) == 0:
            rng.shuffle(order)
        fault, after = order[number % len(order)], number % len(strata)
        fitting = (each for each in (*strata[after:], *strata) if (fault, each.layout) not in NOT_INJECTED)
        yield _drawn(rng, fault, next(fitting))


def every(rng: random.Random, *, faults: Sequence[str], layouts: Sequence[str], sizes: Sequence[int]) -> Iterator[Case]:
    """Every combination once, in random order."""
    combined = [
        (fault, Stratum(layout, size, recording))
        for fault, layout, size, recording in product(faults, layouts, sorted(set(sizes)), RECORDINGS)
        if (fault, layout) not in NOT_INJECTED
    ]
    rng.shuffle(combined)
    return (_drawn(rng, fault, stratum) for fault, stratum in combined)


def _drawn(rng: random.Random, fault: str, stratum: Stratum) -> Case:
    return Case(
        fault=fault,
        layout=stratum.layout,
        size=stratum.size,
        recording=stratum.recording,
        rank=rng.randrange(stratum.size),
        step=rng.randrange(SAVED_STEPS + 1 if fault == STUCK_CHECKPOINT else 12, 100),
    )
