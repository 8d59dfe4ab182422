"""Checks of a configuration's values. A value that fails raises ConfigError."""

import math

from traincope.errors import ConfigError


def require(condition: bool, message: str) -> None:
    """Raise ConfigError with `message` unless `condition` holds.

    `message` names the key, its value, and what to change.
    """
    if not condition:
        raise ConfigError(message)


def require_finite(value: float, *, key: str, remedy: str = "give a number") -> None:
    """Require a finite number. `remedy` names another way to write what the user meant."""
    require(-math.inf < value < math.inf, f"{key} = {value} is not finite; {remedy}")


def require_positive(value: float, *, key: str, remedy: str = "give a number") -> None:
    """Require a finite number greater than 0."""
    require_finite(value, key=key, remedy=remedy)
    require(value > 0, f"{key} is {value}; it must be greater than 0")


def require_not_negative(value: float, *, key: str) -> None:
    """Require a finite number of at least 0."""
    require_finite(value, key=key)
    require(value >= 0, f"{key} = {value} is negative; 0 switches it off")


def require_divisor(small: int, large: int, *, divisor: str, dividend: str) -> None:
    require(large % small == 0, f"{dividend} = {large} is not a multiple of {divisor} = {small}; change one of them")
