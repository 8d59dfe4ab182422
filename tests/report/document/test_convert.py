"""Results made by hand, and the JSON objects that their types make of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Annotated, TypedDict

import pytest

from traincope.report.schema.convert import convert, result


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Wheel:
    num_spokes: int


@dataclass(frozen=True)
class Cart:
    colour: Colour
    wheels: tuple[Wheel, ...]
    spare: Wheel | None
    load: Mapping[str, float]
    price: float = 7.0

    @property
    def num_wheels(self) -> int:
        return len(self.wheels)


class WheelJson(TypedDict):
    spokes: Annotated[int, result.num_spokes]


class CartJson(TypedDict):
    num_wheels: int
    colour: str
    wheels: list[WheelJson]
    spare: WheelJson | None
    spare_spokes: Annotated[int | None, result.spare.num_spokes]
    load: dict[str, float] | None
    money: float | None


CART = Cart(Colour.RED, (Wheel(8), Wheel(9)), Wheel(3), MappingProxyType({"hay": 2.0}))


def test_keys_come_in_the_order_of_the_type_with_plain_values() -> None:
    converted = convert(CART, CartJson, money=None)
    assert list(converted.items()) == [
        ("num_wheels", 2),
        ("colour", "red"),
        ("wheels", [{"spokes": 8}, {"spokes": 9}]),
        ("spare", {"spokes": 3}),
        ("spare_spokes", 3),
        ("load", {"hay": 2.0}),
        ("money", None),
    ]
    assert type(converted["load"]) is dict


def test_a_null_on_the_path_to_a_value_makes_it_null() -> None:
    converted = convert(Cart(Colour.RED, (), None, {}), CartJson, money=1.5)
    assert (converted["spare"], converted["spare_spokes"], converted["money"]) == (None, None, 1.5)


def test_a_key_without_a_value_and_a_value_without_a_key_are_refused() -> None:
    with pytest.raises(AttributeError, match="money"):
        convert(CART, CartJson)
    with pytest.raises(TypeError, match="CartJson has no mony"):
        convert(CART, CartJson, money=1.0, mony=1.0)
