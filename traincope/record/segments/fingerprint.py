"""Fingerprint of a batch: a hash of a few words of each of its tensors, read from the CPU's memory in microseconds.

No operator of torch runs, so no mode of the training sees the reading, and no device is waited for. No code of the
training runs either: a lazy batch may load itself when it is iterated, or when its class is asked for.
"""

import ctypes
import struct
from collections import UserDict
from collections.abc import Iterator
from enum import Enum
from hashlib import blake2b
from typing import Any

from traincope.events import BATCH_ON_DEVICE, BATCH_WITHOUT_TENSORS
from traincope.record.instrumentation.torch_private import without_functions

WORDS = 61
"""Number of words of 8 bytes that are read from a tensor, at even distances; about, because the distance is odd."""
MAX_TENSORS = 16
MAX_DEPTH = 4
MAX_PARTS = 1_024
"""Number of objects in a batch that are looked at. Some batches are lists of many numbers."""
HASH_BYTES = 7
"""A record's value is positive and below 2^61."""
WORD_BYTES = 8

_shape = struct.Struct("@qq")


class Unread(Enum):
    """Reason why a batch has no fingerprint. The value is the name of its record."""

    ON_DEVICE = BATCH_ON_DEVICE
    WITHOUT_TENSORS = BATCH_WITHOUT_TENSORS


def fingerprint(batch: Any) -> int | Unread:
    """Return a positive hash of a batch: a tensor, or tuples, lists and dicts of tensors.

    Equal batches have equal hashes, in every process. Batches that differ only in words that are not read, or after
    the 16th tensor, have equal hashes too. Left out are tensors that do not lie contiguously in the CPU's memory, those
    whose memory was freed, and objects of other types. A batch with a tensor on another device is not read.
    """
    import torch

    digest, found = blake2b(digest_size=HASH_BYTES), False
    with without_functions():
        for number, tensor in enumerate(_tensors(batch, torch.Tensor, depth=0, looks=iter(range(MAX_PARTS)))):
            if number == MAX_TENSORS:
                break
            if tensor.device.type != "cpu":
                return Unread.ON_DEVICE
            if tensor.layout is not torch.strided or not tensor.is_contiguous():
                continue
            num_bytes = tensor.numel() * tensor.element_size()
            begin = tensor.storage_offset() * tensor.element_size()
            if tensor.untyped_storage().nbytes() < begin + num_bytes:
                continue
            digest.update(_shape.pack(num_bytes, tensor.element_size()))
            if num_bytes:
                _add_words(digest, tensor.data_ptr(), num_bytes)
                found = True
    return int.from_bytes(digest.digest(), "little") | 1 if found else Unread.WITHOUT_TENSORS


def _add_words(digest: Any, address: int, num_bytes: int) -> None:
    """Hash words at even distances, and the last 8 bytes. An odd distance meets every column of a power of two."""
    num_words = num_bytes // WORD_BYTES
    if num_words:
        memory = memoryview((ctypes.c_char * (num_words * WORD_BYTES)).from_address(address)).cast("B").cast("Q")
        digest.update(memory[:: num_words // WORDS | 1].tobytes())
    last = min(num_bytes, WORD_BYTES)
    digest.update(ctypes.string_at(address + num_bytes - last, last))


def _tensors(batch: Any, kind: type, *, depth: int, looks: Iterator[int]) -> Iterator[Any]:
    """Yield the plain tensors of a batch. A subclass may not hold memory of its own, so it is left out.

    `looks`: as many as there may still be looks at parts.
    """
    if type(batch) is kind:
        yield batch
    elif depth < MAX_DEPTH:
        for _, part in zip(looks, _parts(batch), strict=False):
            yield from _tensors(part, kind, depth=depth + 1, looks=looks)


def _parts(batch: Any) -> Iterator[Any]:
    """Return the parts of a collection, by the iterators of Python's own types."""
    content = vars(batch).get("data") if issubclass(type(batch), UserDict) else batch
    if type(content) is dict:
        return iter(content.values())
    for kind in (list, tuple):
        if issubclass(type(content), kind):
            return kind.__iter__(content)
    return iter(())
