"""Fingerprints of batches: equal for equal batches, different for a change that is read, and no operator of torch."""

from collections import UserDict
from collections.abc import Iterator

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from traincope.record.segments.fingerprint import MAX_PARTS, Unread, _tensors, fingerprint


def test_equal_batches_have_equal_fingerprints_in_every_process() -> None:
    batch = torch.arange(4 * 1025).view(4, 1025)
    assert fingerprint(batch) == fingerprint(batch.clone()) == 49162079787723785
    assert fingerprint({"a": batch}) == fingerprint(UserDict(a=batch)) == fingerprint([(batch,)])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("size", [1, 3, 7, 8, 61, 4096])
def test_one_changed_row_changes_the_fingerprint(dtype: torch.dtype, size: int) -> None:
    batch = torch.zeros(8, size, dtype=dtype)
    other = batch.clone()
    other[-1] = 1
    assert fingerprint(batch) != fingerprint(other)
    assert fingerprint(batch) != fingerprint(batch.view(-1)[:-1])


def test_a_batch_that_cannot_be_read_at_once_has_a_reason_instead() -> None:
    assert fingerprint(torch.zeros(4, device="meta")) is Unread.ON_DEVICE
    assert fingerprint([torch.ones(4), torch.zeros(4, device="meta")]) is Unread.ON_DEVICE
    for batch in (None, "text", 3, [], torch.zeros(0), torch.zeros(4, 4).t()[1:], torch.zeros(4, 4).to_sparse()):
        assert fingerprint(batch) is Unread.WITHOUT_TENSORS


def test_no_mode_of_the_training_sees_the_reading() -> None:
    seen: list[object] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
            seen.append(func)
            return func(*args, **(kwargs or {}))  # type: ignore[operator, misc]

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
            seen.append(func)
            return func(*args, **(kwargs or {}))  # type: ignore[operator, misc]

    batch = torch.ones(64, 64)
    with Functions(), Operators():
        found = fingerprint(batch)
    assert found == fingerprint(batch)
    assert not seen


def test_no_code_of_the_batch_runs() -> None:
    ran: list[str] = []

    class Lazy:
        @property
        def __class__(self) -> type:  # type: ignore[override]
            ran.append("class")
            return list

    class Loading(list[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            ran.append("iter")
            return super().__iter__()

    batch = torch.ones(4)
    assert fingerprint([Lazy(), Loading([batch])]) == fingerprint(batch)
    assert ran == []


def test_a_batch_of_many_numbers_is_not_read_through() -> None:
    rows = [list(range(1000)) for _ in range(1000)]
    assert fingerprint([*rows, torch.ones(4)]) is Unread.WITHOUT_TENSORS
    looks = iter(range(MAX_PARTS))
    assert 0 < len(list(_tensors(rows, int, depth=0, looks=looks))) < MAX_PARTS
    assert next(looks, None) is None


@pytest.mark.parametrize("begin", [0, 5])
def test_a_tensor_whose_memory_was_freed_is_left_out(begin: int) -> None:
    freed = torch.ones(1000)[begin:]
    freed.untyped_storage().resize_(0)
    assert fingerprint(freed) is Unread.WITHOUT_TENSORS
    assert fingerprint([freed, torch.ones(4)]) == fingerprint(torch.ones(4))
