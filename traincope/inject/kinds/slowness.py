"""A rank that works on, but slowly."""

import gc
import time
from collections.abc import Callable

from traincope.inject.calls import late_with
from traincope.inject.injection import Injection, Moment, Shape
from traincope.inject.kinds.fault import Arm, Fault, Injector

PERIOD = 5
"""Steps between two delays of a periodic slowness."""


def _late_by(spend: Callable[[float], object]) -> Arm:
    """Spend the delay of each step in the injection's phase, on its rank."""

    def arm(injector: Injector) -> None:
        injection = injector.injection

        def act(step: int) -> None:
            if step == injection.step:
                injector.tell(step)
            seconds = delay_seconds(injection, step)
            if seconds:
                spend(seconds)

        if injector.rank == injection.rank:
            injector.moments.at(injection.phase, act)

    return arm


class _Garbage:
    """Garbage that only a collection finds, because it refers to itself. Its finalizer takes time."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._itself = seconds, self

    def __del__(self) -> None:
        time.sleep(self._seconds)


def _collect_garbage(seconds: float) -> None:
    _Garbage(seconds)
    gc.collect(0)


def delay_seconds(injection: Injection, step: int) -> float:
    """The delay in a step. A growing one grows by a tenth of `seconds` per step."""
    since = step - injection.step
    if since < 0:
        return 0.0
    return {
        Shape.CONSTANT: injection.seconds,
        Shape.GROWING: injection.seconds * (1 + since / 10),
        Shape.PERIODIC: injection.seconds if since % PERIOD == 0 else 0.0,
        Shape.ONCE: injection.seconds if since == 0 else 0.0,
    }[injection.shape]


def _arm_link(injector: Injector) -> None:
    """Be late with every message between the rank and the next one."""
    injection = injector.injection

    def act(step: int) -> None:
        if step == injection.step:
            injector.tell(step)
            peers = frozenset(injector.culprits) - {injector.rank}
            injector.calls.change = late_with(peers, lambda: time.sleep(injection.seconds))

    if injector.rank in injector.culprits:
        injector.moments.at(Moment.END, act)


def _pair(injection: Injection, world_size: int) -> tuple[int, ...]:
    return tuple(sorted({injection.rank, (injection.rank + 1) % world_size}))


SLOWNESS = (
    Fault(name="slow", what="the rank is late in one phase from that step on", arm=_late_by(time.sleep)),
    Fault(
        name="slow_gc",
        what="the rank collects garbage for that long in one phase, from that step on",
        arm=_late_by(_collect_garbage),
    ),
    Fault(
        name="slow_link",
        what="messages between the rank and the next one are late from that step on",
        arm=_arm_link,
        culprits=_pair,
    ),
)
