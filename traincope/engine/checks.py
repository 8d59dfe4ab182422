"""What a configuration's values are held to; a value that fails raises ConfigError."""

from traincope.errors import ConfigError


def require(condition: bool, message: str) -> None:
    """`message` names the key, its value, and what to change."""
    if not condition:
        raise ConfigError(message)


def positive(value: float, *, key: str) -> None:
    require(value > 0, f"{key} = {value} must be greater than 0")


def divides(small: int, large: int, *, divisor: str, dividend: str) -> None:
    require(large % small == 0, f"{dividend} = {large} is not a multiple of {divisor} = {small}; change one of them")
