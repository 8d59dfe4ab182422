"""What a configuration's values are held to; a value that fails raises ConfigError."""

import math

from traincope.errors import ConfigError


def require(condition: bool, message: str) -> None:
    """`message` names the key, its value, and what to change."""
    if not condition:
        raise ConfigError(message)


def finite(value: float, *, key: str, otherwise: str = "give a number") -> None:
    """`otherwise` says how else what was meant is written."""
    require(-math.inf < value < math.inf, f"{key} = {value} is not finite; {otherwise}")


def positive(value: float, *, key: str, otherwise: str = "give a number") -> None:
    """Finite too."""
    finite(value, key=key, otherwise=otherwise)
    require(value > 0, f"{key} = {value} must be greater than 0")


def not_negative(value: float, *, key: str) -> None:
    """Finite, and 0 or greater."""
    finite(value, key=key)
    require(value >= 0, f"{key} = {value} is negative; 0 switches it off")


def divides(small: int, large: int, *, divisor: str, dividend: str) -> None:
    require(large % small == 0, f"{dividend} = {large} is not a multiple of {divisor} = {small}; change one of them")
