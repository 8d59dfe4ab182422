"""Limits of the rate at which an agent ships: bytes and files per second, with bursts of one second."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from traincope.errors import UsageError

logger = logging.getLogger(__name__)

INTERVAL_VARIABLE = "TRAINCOPE_SHIP_INTERVAL"
BANDWIDTH_VARIABLE = "TRAINCOPE_SHIP_BANDWIDTH"
DEFAULT_INTERVAL_SECONDS = 15.0
DEFAULT_BYTES_PER_SECOND = 16 << 20
MAX_INTERVAL_SECONDS = 3_600.0
MIN_BYTES_PER_SECOND = 64 << 10
SLICE_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipSettings:
    """Settings of one agent's shipping."""

    interval_seconds: float = DEFAULT_INTERVAL_SECONDS
    """Time from one round to the next: a host that disappears costs at most this, and the time of a round."""
    bytes_per_second: int = DEFAULT_BYTES_PER_SECOND
    files_per_second: int = 50
    """In a shared directory, whose server does some work per file. Behind a URL, files are few."""

    def __post_init__(self) -> None:
        if not 0 < self.interval_seconds <= MAX_INTERVAL_SECONDS:
            raise UsageError(
                f"{INTERVAL_VARIABLE} must be above 0 and at most {MAX_INTERVAL_SECONDS:g} seconds, "
                f"not {self.interval_seconds:g}"
            )
        if self.bytes_per_second < MIN_BYTES_PER_SECOND:
            raise UsageError(
                f"{BANDWIDTH_VARIABLE} must be at least {MIN_BYTES_PER_SECOND} bytes per second, "
                f"not {self.bytes_per_second}"
            )

    @classmethod
    def of_an_agent(cls, environment: Mapping[str, str]) -> "ShipSettings":
        """Settings from the environment. A wrong one is reported and has its default."""
        valid: dict[str, str] = {}
        for name in (INTERVAL_VARIABLE, BANDWIDTH_VARIABLE):
            given = {name: environment.get(name, "")}
            try:
                cls.read(given)
            except UsageError as error:
                logger.warning("%s: ignored", error)
            else:
                valid |= given
        return cls.read(valid)

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "ShipSettings":
        """Settings from the environment. Raises UsageError."""
        return cls(
            interval_seconds=_number(environment, INTERVAL_VARIABLE, default=DEFAULT_INTERVAL_SECONDS),
            bytes_per_second=int(_number(environment, BANDWIDTH_VARIABLE, default=DEFAULT_BYTES_PER_SECOND)),
        )


class Rate:
    """Limits amounts per second. The next amount waits for the time that the last ones took."""

    def __init__(
        self,
        per_second: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._per_second, self._clock, self._sleep = per_second, clock, sleep
        self._free_at = clock()

    def wait(self, amount: float, *, is_over: Callable[[], bool] = bool) -> bool:
        """Wait until the amount may pass. False if `is_over` became true first; the amount then must not pass."""
        while (seconds := self._free_at - self._clock()) > 0:
            if is_over():
                return False
            self._sleep(min(seconds, SLICE_SECONDS))
        self.charge(amount)
        return True

    def charge(self, amount: float) -> None:
        """Count an amount that has passed, so that the next one waits for its time."""
        self._free_at = max(self._free_at, self._clock() - 1.0) + amount / self._per_second


def _number(environment: Mapping[str, str], name: str, *, default: float) -> float:
    text = environment.get(name, "")
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{name} must be a number, not {text!r}")
    return number
