"""A kind of fault, and what its action can use."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from traincope.inject.calls import Calls
from traincope.inject.injection import Injection, truth_now, write_truth
from traincope.inject.moments import Moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Injector:
    """One injection in one process."""

    injection: Injection
    rank: int
    world_size: int
    moments: Moments
    calls: Calls
    group: Any
    """A second group of all ranks; None unless the fault needs one."""
    culprits: tuple[int, ...]

    def tell(self, step: int) -> None:
        """Write the truth, before the fault acts."""
        write_truth(truth_now(self.injection, culprits=self.culprits, rank=self.rank, step=step))


Arm = Callable[[Injector], None]
Action = Callable[[Injector], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of fault."""

    name: str
    what: str
    """Phrase that describes the fault."""
    arm: Arm
    """Prepare it, on every rank."""
    culprits: Callable[[Injection, int], tuple[int, ...]] = lambda injection, _world_size: (injection.rank,)
    """The ranks to blame, from the injection and the world size."""
    needs_group: bool = False
    """True if it needs a second group of all ranks."""


def once(action: Action) -> Arm:
    """Act once on the injection's rank, in its step and phase."""
    return _armed(action, everywhere=False)


def prepared(action: Action) -> Arm:
    """Act once on the injection's rank, in its step and phase. What it prepares writes the truth when it happens."""
    return _armed(action, everywhere=False, tells=False)


def once_everywhere(action: Action) -> Arm:
    """Act once on every rank, in the injection's step and phase."""
    return _armed(action, everywhere=True)


def _armed(action: Action, *, everywhere: bool, tells: bool = True) -> Arm:
    def arm(injector: Injector) -> None:
        injection = injector.injection

        def act(step: int) -> None:
            if step == injection.step:
                if tells:
                    injector.tell(step)
                action(injector)

        if everywhere or injector.rank == injection.rank:
            injector.moments.at(injection.phase, act)

    return arm


def every_rank(_injection: Injection, world_size: int) -> tuple[int, ...]:
    return tuple(range(world_size))


def no_rank(_injection: Injection, _world_size: int) -> tuple[int, ...]:
    return ()
