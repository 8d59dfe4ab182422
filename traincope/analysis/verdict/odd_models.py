"""Ranks whose model differs from that of most ranks, by the errors that DDP raises on all of them when it is made.

torch compares the models while it wraps them. It raises the same error at the same line on ranks with the usual model
too: the numbers in it show which model is the odd one.
"""

import re
from collections import Counter
from collections.abc import Mapping

COUNTS = re.compile(r"but Rank (\d+) has (\d+) params, while rank (\d+) has inconsistent (\d+) params")
"""Each rank raises it with its own number of parameters, and with the number of the first rank that has another one."""
UNLIKE_FIRST = re.compile(r"appears not to match \w+ of the same param in process 0\b")
"""Each rank with another shape than rank 0 raises it."""


def odd_models(messages: Mapping[int, str], num_ranks: int) -> tuple[int, ...]:
    """Ranks whose model is not that of more than half of the ranks; empty if that is not known.

    Args:
        messages: Rank -> message of its error.
        num_ranks: Number of ranks of the job.
    """
    counts = dict(_counts(messages))
    if counts.keys() == messages.keys() and len(counts) == num_ranks:
        usual, ranks = Counter(counts.values()).most_common(1)[0]
        odd = tuple(sorted(rank for rank, count in counts.items() if count != usual))
        return odd if 2 * ranks > num_ranks else ()
    unlike = {rank for rank, message in messages.items() if UNLIKE_FIRST.search(message)}
    return (0,) if num_ranks > 2 and unlike == set(range(1, num_ranks)) and _is_one_text(messages) else ()


def _counts(messages: Mapping[int, str]) -> list[tuple[int, int]]:
    """Rank -> number of parameters that it counted of its own model. Numbers of a smaller group are left out."""
    found = ((rank, COUNTS.search(message)) for rank, message in messages.items())
    return [(rank, int(match[2])) for rank, match in found if match is not None and int(match[1]) == rank]


def _is_one_text(messages: Mapping[int, str]) -> bool:
    """Return whether the ranks differ from rank 0 in the same way. In front of the text is the rank's number."""
    return len({message.partition(": ")[2] for message in messages.values()}) == 1
