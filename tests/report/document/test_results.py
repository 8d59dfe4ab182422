"""Results made by hand, and the JSON objects that become of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TypedDict

import pytest

from traincope.report.schema.results import KEYS, convert, plain


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Wheel:
    num_spokes: int
    radius: float = 0.5


@dataclass(frozen=True)
class Cart:
    colour: Colour
    wheels: tuple[Wheel, ...]
    spare: Wheel | None
    load: Mapping[str, float]

    @property
    def num_wheels(self) -> int:
        return len(self.wheels)


class Priced(TypedDict):
    num_wheels: int
    money: float | None
    colour: str


CART = Cart(Colour.RED, (Wheel(8), Wheel(9)), Wheel(3), MappingProxyType({"hay": 2.0}))


def test_the_fields_of_a_result_are_its_keys() -> None:
    assert plain(CART) == {
        "colour": "red",
        "wheels": [{"num_spokes": 8, "radius": 0.5}, {"num_spokes": 9, "radius": 0.5}],
        "spare": {"num_spokes": 3, "radius": 0.5},
        "load": {"hay": 2.0},
    }
    assert type(plain(CART)["load"]) is dict


def test_listed_keys_replace_them_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Listed(Cart):
        """A class of its own, because the keys of a class are kept."""

    monkeypatch.setitem(KEYS, Listed, "num_wheels wheels paint=colour spare_spokes=spare.num_spokes")
    cart = Listed(Colour.RED, (), Wheel(3), {})
    assert list(plain(cart).items()) == [("num_wheels", 0), ("wheels", []), ("paint", "red"), ("spare_spokes", 3)]
    assert plain(Listed(Colour.RED, (), None, {}))["spare_spokes"] is None


def test_a_type_takes_its_keys_from_a_result_and_from_derived_values(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Sold(Cart):
        """A class of its own, because the keys of a class are kept."""

    monkeypatch.setitem(KEYS, Sold, "colour num_wheels")
    cart = Sold(Colour.RED, (), None, {})
    assert list(convert(cart, Priced, money=1.5).items()) == [("num_wheels", 0), ("money", 1.5), ("colour", "red")]
    with pytest.raises(KeyError, match="money"):
        convert(cart, Priced)
    with pytest.raises(TypeError, match="Priced has no mony"):
        convert(cart, Priced, money=1.0, mony=1.0)
