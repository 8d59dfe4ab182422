"""Checksum of a tensor's bytes, computed on the tensor's own device.

The bytes are read as integer words of up to 8 bytes. The checksum is the sum of word x weight modulo 2^64. Every weight
is odd, so a change within one word always changes the checksum: the word changes by d with 0 < |d| < 2^64, and d times
an odd number is not 0 modulo 2^64. Weights are pseudo-random, so changes of several words, or words in another order,
cancel with a probability of about 2^-64.

The plain sum of the words comes with it. If one bit flips, it changes by a power of two (`store.job.state_checks`).
"""

from math import gcd
from typing import Any

import numpy as np

from traincope.arrays import Ints

BLOCK_WORDS = 1 << 18
"""Words that are multiplied at once: the products take 2 MiB, and the weights as much for each device."""
MAX_WORD_BYTES = 8


class Checksums:
    """Checksums of tensors. It keeps one table of weights for each device."""

    def __init__(self) -> None:
        self._weights: dict[Any, Any] = {}

    def of(self, tensor: Any) -> Any:
        """Return the weighted and the plain sum of a tensor's words: int64 of shape (2,), on its device.

        The bytes are taken in the order of memory. `tensor` is plain, strided, `is_dense` and not empty.
        """
        import torch

        flat = tensor.as_strided((tensor.numel(),), (1,))
        num_bytes = flat.numel() * flat.element_size()
        word_bytes = gcd(num_bytes, MAX_WORD_BYTES)
        word = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}[word_bytes]
        block = max(BLOCK_WORDS * word_bytes // flat.element_size(), 1)
        sums = []
        for number, start in enumerate(range(0, flat.numel(), block)):
            words = _as_words(flat[start : start + block], word, word_bytes)
            weighted = (words * self._table(flat.device)[: words.numel()]).sum()
            weighted = weighted * int(_odd(number, 1, seed=1)[0]) if number else weighted
            sums.append(torch.stack([weighted, words.sum()]))
        return sums[0] if len(sums) == 1 else torch.stack(sums).sum(dim=0)

    def _table(self, device: Any) -> Any:
        if device not in self._weights:
            import torch

            self._weights[device] = torch.from_numpy(_odd(0, BLOCK_WORDS, seed=0)).to(device)
        return self._weights[device]


def is_dense(tensor: Any) -> bool:
    """Return whether the tensor's elements fill one stretch of memory, each once."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= max(size, 1)
    return True


def _as_words(flat: Any, word: Any, word_bytes: int) -> Any:
    """View a block as words. A block that does not begin at a multiple of a word is copied."""
    if flat.storage_offset() * flat.element_size() % word_bytes:
        flat = flat.clone()
    return flat.view(word)


def _odd(first: int, count: int, *, seed: int) -> Ints:
    """Pseudo-random odd numbers: splitmix64 (Steele, Lea and Flood 2014, doi:10.1145/2660193.2660195)."""
    mixed = (np.arange(first, first + count, dtype=np.uint64) + np.uint64(1 + (seed << 32))) * np.uint64(
        0x9E3779B97F4A7C15
    )
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    odd: Ints = ((mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)).view(np.int64)
    return odd
