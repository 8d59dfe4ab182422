"""The census of live tensors: what grew, and what holds it."""

import gc
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from tests.faults.victims.victims import Victims
from traincope.record.compute.memory import census
from traincope.record.compute.memory.census import count, growth, held, named
from traincope.record.compute.memory.local_holders import local_holder, place_of_growth
from traincope.store.job.requests import Cause

SHAPE = (3, 5, 7)


kept_here: list[torch.Tensor] = []


class Holder:
    def __init__(self) -> None:
        self.losses = [torch.zeros(SHAPE)]


def grown(before: census.Counted) -> dict[str, object]:
    """The growth of tensors of SHAPE; every test uses its own number of them."""
    after = count(28, device_type="cpu")
    (group,) = (each for each in growth(before, after) if each[0][0] == SHAPE)
    return {**named(*group), **held(before, group[0])}


def new_tensors_are_grouped_and_their_holder_is_a_module_s_variable() -> None:
    before = count(0, device_type="cpu")
    line = sys._getframe().f_lineno + 1
    kept_here.extend(torch.zeros(SHAPE) for _ in range(4))
    try:
        assert grown(before) == {
            "shape": list(SHAPE),
            "dtype": "float32",
            "device": "cpu",
            "tensors": 4,
            "bytes": 4 * 105 * 4,
            "held_by": f"a list of 4, in {__name__}.kept_here at test_census.py:{line}",
            "has_graph": False,
        }
    finally:
        kept_here.clear()


def the_holder_is_an_attribute_of_an_object() -> None:
    before = count(0, device_type="cpu")
    holder = Holder()
    assert grown(before)["held_by"] == f"a list, in {__name__}.Holder.losses"
    assert len(holder.losses) == 1


def test_the_dictionary_of_variables_that_the_training_keeps_is_unchanged() -> None:
    """`locals()` is one dictionary per frame up to Python 3.12: reading it again would change what was kept."""
    rate, held_here = 0.1, [torch.zeros(1)]
    settings = locals()
    before = dict(settings)
    assert local_holder(held_here) is None
    assert settings == before == {"rate": rate, "held_here": held_here}


def test_a_dictionary_that_another_function_keeps_is_not_emptied() -> None:
    kept: list[dict[str, object]] = []

    def keep_those_above() -> None:
        kept.append(sys._getframe(1).f_locals)

    held_here = [torch.zeros(1)]
    keep_those_above()
    assert str(local_holder(held_here)).startswith("held_here of ")
    assert kept[0]["held_here"] is held_here


def the_holder_is_a_local_variable_of_a_function_that_runs() -> None:
    before = count(0, device_type="cpu")
    kept = []
    for _ in range(2):
        line = sys._getframe().f_lineno + 1
        kept.append((torch.zeros(SHAPE), None))
    name = "the_holder_is_a_local_variable_of_a_function_that_runs"
    assert grown(before)["held_by"] == f"a tuple of 2, in a list of 2, in kept of {name}() at test_census.py:{line}"
    assert sys._getframe().f_locals["kept"] is kept


def a_graph_that_a_kept_tensor_holds_is_seen() -> None:
    weight = torch.zeros(SHAPE, requires_grad=True)
    before = count(0, device_type="cpu")
    kept = [2 * weight]
    assert grown(before)["has_graph"] is True
    kept = [torch.zeros(SHAPE)]
    assert grown(before)["has_graph"] is False
    assert len(kept) == 1


def a_new_tensor_with_the_identity_of_one_that_is_gone_is_new() -> None:
    gone = [torch.zeros(2) for _ in range(1_000)]
    before = count(0, device_type="cpu")
    identities = {id(each) for each in gone}
    gone.clear()
    kept_here.extend(torch.zeros(SHAPE) for _ in range(6))
    try:
        assert identities.issuperset(id(each) for each in kept_here)
        assert str(grown(before)["held_by"]).startswith(f"a list of 6, in {__name__}.kept_here at ")
    finally:
        kept_here.clear()


def what_is_frozen_holds_nothing_in_sight() -> None:
    before = count(0, device_type="cpu")
    gc.freeze()
    try:
        kept_here.extend(torch.zeros(SHAPE) for _ in range(7))
        assert grown(before)["held_by"] == ""
    finally:
        kept_here.clear()
        gc.unfreeze()


def what_is_released_is_not_growth() -> None:
    before = count(0, device_type="cpu")
    kept = [torch.zeros(SHAPE) for _ in range(2)]
    kept.clear()
    assert not [each for each in growth(before, count(28, device_type="cpu")) if each[0][0] == SHAPE]


def the_census_keeps_no_tensor_alive() -> None:
    holder = Holder()
    before = count(0, device_type="cpu")
    assert held(before, (torch.Size(SHAPE), torch.float32, torch.device("cpu")))["held_by"] == ""
    del holder
    after = count(1, device_type="cpu")
    assert len(before.groups[torch.Size(SHAPE), torch.float32, torch.device("cpu")]) == 1
    assert (torch.Size(SHAPE), torch.float32, torch.device("cpu")) not in after.groups


def test_a_window_for_another_cause_counts_nothing() -> None:
    recorder = SimpleNamespace(shared=SimpleNamespace(step=7), control=SimpleNamespace(requests_at=lambda _: ()))
    each = census.Census(recorder, device_type="cpu")  # type: ignore[arg-type]  # the used part
    each.between_blocks()
    assert each._before is None


@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter])
def test_the_compared_types_are_torch_s(kind: type) -> None:
    assert type(kind(torch.zeros(2))) is kind


def test_the_line_at_which_a_container_grows_is_found_whatever_it_is() -> None:
    cache: dict[str, int] = {}
    total: list[int] = []
    other = [0]
    cache["key"] = 1
    at = sys._getframe().f_lineno
    total += [2]
    other[0] = len(total) + len(cache)
    assert place_of_growth("cache") == f" at test_census.py:{at - 1}"
    assert place_of_growth("total") == f" at test_census.py:{at + 1}"
    assert place_of_growth("at") == ""


def tensors_inside_a_graph_are_named_with_what_holds_the_graph() -> None:
    """The squares are held by autograd in C++, and the scalar that keeps their graph is in a list."""
    written: list[dict[str, object]] = []
    step = SimpleNamespace(step=0)
    request = SimpleNamespace(cause=Cause.MEMORY_GROWTH)
    recorder = SimpleNamespace(
        shared=step,
        control=SimpleNamespace(requests_at=lambda _: (request,)),
        event=lambda _, details: written.append(details),
    )
    each = census.Census(recorder, device_type="cpu")  # type: ignore[arg-type]  # the used part
    weight = torch.zeros(9, 11, requires_grad=True)
    each.between_blocks()
    history = []
    for _ in range(3):
        history.append((weight.exp().square().sum(),))
    step.step = census.NUM_STEPS
    each.between_blocks()
    (details,) = written
    groups = {tuple(group["shape"]): group for group in details["groups"]}  # type: ignore[attr-defined]
    assert (groups[9, 11]["held_by"], groups[9, 11]["has_graph"]) == ("", True)
    assert groups[()]["held_by"].startswith("a tuple, in a list of 3, in history of tensors_inside_a_graph")
    assert len(history) == 3


@pytest.mark.parametrize(
    "case",
    [
        new_tensors_are_grouped_and_their_holder_is_a_module_s_variable,
        the_holder_is_an_attribute_of_an_object,
        the_holder_is_a_local_variable_of_a_function_that_runs,
        a_graph_that_a_kept_tensor_holds_is_seen,
        a_new_tensor_with_the_identity_of_one_that_is_gone_is_new,
        what_is_frozen_holds_nothing_in_sight,
        what_is_released_is_not_growth,
        the_census_keeps_no_tensor_alive,
        tensors_inside_a_graph_are_named_with_what_holds_the_graph,
    ],
    ids=lambda case: case.__name__,
)
def test_in_a_process_of_its_own(victims: Victims, case: Callable[[], None]) -> None:
    """A census looks at every object, and the process of the tests has a million."""
    ended = victims.train(case)
    assert ended.code == 0, ended.err
