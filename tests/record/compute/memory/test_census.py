"""The census of live tensors: what grew, and what holds it."""

import gc
from types import SimpleNamespace

import pytest
import torch

from traincope.record.compute.memory import census
from traincope.record.compute.memory.census import count, growth, held_by, named

SHAPE = (3, 5, 7)


@pytest.fixture(autouse=True)
def nothing_is_frozen() -> None:
    """Other tests of this process call `gc.freeze()`, which hides all objects of that time, this module's too."""
    gc.unfreeze()


kept_here: list[torch.Tensor] = []


class Holder:
    def __init__(self) -> None:
        self.losses = [torch.zeros(SHAPE)]


def grown(before: census.Counted) -> dict[str, object]:
    """The growth of tensors of SHAPE; every test uses its own number of them."""
    after = count(28, device_type="cpu")
    (group,) = (each for each in growth(before, after) if each[0][0] == SHAPE)
    return {**named(*group), "held_by": held_by(before, group[0])}


def test_new_tensors_are_grouped_and_their_holder_is_a_module_s_variable() -> None:
    before = count(0, device_type="cpu")
    kept_here.extend(torch.zeros(SHAPE) for _ in range(4))
    try:
        assert grown(before) == {
            "shape": list(SHAPE),
            "dtype": "float32",
            "device": "cpu",
            "tensors": 4,
            "bytes": 4 * 105 * 4,
            "held_by": f"a list of 4, in {__name__}.kept_here",
        }
    finally:
        kept_here.clear()


def test_the_holder_is_an_attribute_of_an_object() -> None:
    before = count(0, device_type="cpu")
    holder = Holder()
    assert grown(before)["held_by"] == f"a list, in {__name__}.Holder.losses"
    assert len(holder.losses) == 1


def test_a_local_variable_is_out_of_sight_and_nothing_is_invented() -> None:
    before = count(0, device_type="cpu")
    kept = [torch.zeros(SHAPE) for _ in range(2)]
    assert grown(before)["held_by"] == "a list of 2"
    assert len(kept) == 2


def test_a_new_tensor_with_the_identity_of_one_that_is_gone_is_new() -> None:
    gone = [torch.zeros(2) for _ in range(1_000)]
    before = count(0, device_type="cpu")
    identities = {id(each) for each in gone}
    gone.clear()
    kept_here.extend(torch.zeros(SHAPE) for _ in range(6))
    try:
        assert identities.issuperset(id(each) for each in kept_here)
        assert grown(before)["held_by"] == f"a list of 6, in {__name__}.kept_here"
    finally:
        kept_here.clear()


def test_what_is_frozen_holds_nothing_in_sight() -> None:
    before = count(0, device_type="cpu")
    gc.freeze()
    try:
        kept_here.extend(torch.zeros(SHAPE) for _ in range(7))
        assert grown(before)["held_by"] == ""
    finally:
        kept_here.clear()
        gc.unfreeze()


def test_what_is_released_is_not_growth() -> None:
    before = count(0, device_type="cpu")
    kept = [torch.zeros(SHAPE) for _ in range(2)]
    kept.clear()
    assert not [each for each in growth(before, count(28, device_type="cpu")) if each[0][0] == SHAPE]


def test_the_census_keeps_no_tensor_alive() -> None:
    holder = Holder()
    before = count(0, device_type="cpu")
    assert held_by(before, (torch.Size(SHAPE), torch.float32, torch.device("cpu"))) == ""
    del holder
    after = count(1, device_type="cpu")
    assert len(before.groups[torch.Size(SHAPE), torch.float32, torch.device("cpu")]) == 1
    assert (torch.Size(SHAPE), torch.float32, torch.device("cpu")) not in after.groups


def test_a_window_for_another_cause_counts_nothing() -> None:
    recorder = SimpleNamespace(shared=SimpleNamespace(step=7), control=SimpleNamespace(requests_at=lambda _: ()))
    each = census.Census(recorder, device_type="cpu")  # type: ignore[arg-type]  # the used part
    each.between_steps()
    assert each._before is None


@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter])
def test_the_compared_types_are_torch_s(kind: type) -> None:
    assert type(kind(torch.zeros(2))) is kind
