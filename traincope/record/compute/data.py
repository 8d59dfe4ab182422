"""Hook on data: the time inside a DataLoader's `next`, with or without workers, and a fingerprint of its batch."""

import functools
from itertools import count
from time import monotonic_ns
from typing import Any

from traincope.events import (
    BATCH_READ,
    BATCHES_END,
    LENGTH_SHIFT,
    LOADER,
    LOADER_WITHOUT_WORKERS,
    MAX_LENGTH,
    MAX_WORKERS,
    WORKERS_SHIFT,
    Kind,
    Phase,
    SamplerTrait,
)
from traincope.record.compute.phases import Phases
from traincope.record.instrumentation.guard import SAMPLING_INTERVAL, guard
from traincope.record.instrumentation.patching import Patches
from traincope.record.instrumentation.torch_private import data_loader_iterator, reads_a_stream, sampler_of
from traincope.record.segments.fingerprint import Unread, fingerprint
from traincope.record.segments.slots import Slot
from traincope.record.session.recorder import Recorder

REPEATS = ("repeat_count", "mini_repeat_count")
"""Attributes of samplers that give a sample so many times: GRPO needs several completions of each prompt."""


class DataLoading:
    """Hook on `torch.utils.data`."""

    name = "data"
    level = 0

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._patches = Patches()

    def install(self, recorder: Recorder) -> None:
        iterator_class = data_loader_iterator()
        original = iterator_class.__next__

        by_workers, here = recorder.names.intern(LOADER), recorder.names.intern(LOADER_WITHOUT_WORKERS)
        data_wait, phases = int(Phase.DATA_WAIT), self._phases

        def begin(iterator: Any) -> Slot:
            recorder.before_work()
            return phases.begin(data_wait, here if getattr(iterator, "_num_workers", None) == 0 else by_workers)

        new_iterator, next_batch = count(1), count()

        def note_batch(iterator: Any, batch: Any) -> None:
            found = fingerprint(batch)
            write(iterator, *((found.value, 0) if isinstance(found, Unread) else (BATCH_READ, found)))

        def note_end(iterator: Any) -> None:
            write(iterator, BATCHES_END, 0)

        def write(iterator: Any, name: str, value: int) -> None:
            of_iterator = phases.loaders.get(iterator)
            if of_iterator is None:
                of_iterator = next(new_iterator), _traits(iterator)
                phases.loaders.add(iterator, of_iterator)
            number, tag = of_iterator
            now = monotonic_ns()
            recorder.writer().write(
                Kind.BATCH,
                now,
                now,
                name=recorder.names.intern(name),
                group=number,
                sequence=next(next_batch),
                tag=tag,
                value=value,
            )

        note, ended = guard(note_batch, every=SAMPLING_INTERVAL), guard(note_end)
        begin_wait, finish = guard(begin, every=SAMPLING_INTERVAL), guard(phases.end, every=SAMPLING_INTERVAL)

        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:  # noqa: N807
            slot = begin_wait(iterator) if recorder.active else None
            try:
                batch = original(iterator)
            except StopIteration:
                if slot is not None:
                    ended(iterator)
                raise
            finally:
                if slot is not None:
                    finish(slot)
            if slot is not None:
                note(iterator, batch)
            return batch

        self._patches.replace(iterator_class, "__next__", __next__)

    def remove(self) -> None:
        self._patches.restore()


def _traits(iterator: Any) -> int:
    """Return bits of `SamplerTrait` of the iterator's sampler, its length, and the number of its workers."""
    workers = min(_count(iterator, "_num_workers"), MAX_WORKERS)
    return workers << WORKERS_SHIFT | _length(iterator) << LENGTH_SHIFT | _sampler_traits(iterator)


def _length(iterator: Any) -> int:
    """Return the number of batches of the iterator, at most MAX_LENGTH; 0 if unknown. Only torch's samplers are asked:
    another one may compute its length.
    """
    batches, sampler = sampler_of(iterator)
    are_of_torch = all(type(each).__module__.startswith("torch.utils.data") for each in (batches, sampler))
    return min(len(batches), MAX_LENGTH) if are_of_torch and not reads_a_stream(iterator) else 0


def _sampler_traits(iterator: Any) -> int:
    if reads_a_stream(iterator):
        return int(SamplerTrait.STREAM)
    batches, sampler = sampler_of(iterator)
    if sampler is None:
        return 0
    kinds = {kind.__name__ for kind in type(sampler).__mro__}
    shuffles = getattr(sampler, "shuffle", False) is True or "RandomSampler" in kinds  # it may be a method
    divides = any(
        max(_count(each, name) for name in ("num_replicas", "num_processes")) > 1 for each in (batches, sampler)
    )
    repeats = any(_count(each, name) > 1 for each in (batches, sampler) for name in REPEATS)
    traits = SamplerTrait.SHUFFLES * shuffles | SamplerTrait.DIVIDES * divides | SamplerTrait.REPEATS * repeats
    return int(SamplerTrait.KNOWN | traits)


def _count(sampler: Any, name: str) -> int:
    value = getattr(sampler, name, 0)
    return value if type(value) is int else 0
