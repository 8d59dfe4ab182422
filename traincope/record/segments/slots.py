"""Slots: closing and extending a record in place in its segment, each by one 64-bit store."""

from time import monotonic_ns

from traincope.events import END_WORD, FLAGS_SHIFT, FLAGS_WORD, OPEN, VALUE_WORD, Flag

Slot = tuple[memoryview, int]
"""The words of a segment and the index of a record's `end_ns` among them."""

DONE_BEFORE_WAIT = int(Flag.DONE_BEFORE_WAIT) << FLAGS_SHIFT


def end(slot: Slot) -> None:
    """Close a record in place: one aligned 64-bit store."""
    words, index = slot
    words[index] = monotonic_ns()


def end_at(slot: Slot, end_ns: int) -> None:
    words, index = slot
    words[index] = end_ns


def end_bounded(slot: Slot) -> None:
    """Close a collective that is already complete: it ended now or earlier."""
    words, index = slot
    words[index] = monotonic_ns()
    words[index + FLAGS_WORD - END_WORD] |= DONE_BEFORE_WAIT


def end_step(slot: Slot, end_ns: int, *, own_ns: int, flag: int) -> None:
    """Close a step with the recorder's own time in it. The end is written last: an open step has no such time."""
    words, index = slot
    words[index + VALUE_WORD - END_WORD] = own_ns
    if flag:
        words[index + FLAGS_WORD - END_WORD] |= flag << FLAGS_SHIFT
    words[index] = end_ns


def end_abandoned(slot: Slot, end_ns: int) -> None:
    """Close an open record at this time, in which its hook was interrupted; not one that began later."""
    words, index = slot
    if words[index] == OPEN and words[index - END_WORD] <= end_ns:  # the first word is the start
        words[index] = end_ns


def is_open(slot: Slot) -> bool:
    words, index = slot
    return words[index] == OPEN


def add_flag(slot: Slot, flag: int) -> None:
    words, index = slot
    words[index + FLAGS_WORD - END_WORD] |= flag << FLAGS_SHIFT
