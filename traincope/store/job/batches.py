"""Batches of a rank in one attempt, in the order in which its training thread fetched them."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Bools, Floats, Ints
from traincope.errors import RunDirectoryError
from traincope.events import BATCH_READ, BATCHES_END, Flag, Kind, Phase
from traincope.store.job.attempts import wall_offset_ns
from traincope.store.layout import NAMES_FILE, RANK_FILE, rank_number, record_files
from traincope.store.lines import dense_names, read_numbered, read_object
from traincope.store.segments.evaluating import evaluation_intervals
from traincope.store.segments.records import read_records
from traincope.store.segments.segments import last_instant_ns

LOSS = "loss"
"""Name of the logged value that is read with the batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBatches:
    """Batches for training, without those of evaluations. Arrays have one entry per batch, in order."""

    steps: Ints
    """Number of the attempt's steps before the one in which the batch was fetched."""
    fingerprints: Ints
    """0: not read, or a batch whose record was dropped."""
    ends_pass: Bools
    """True for the last batch of an iterator that was used up."""
    starts_pass: Bools
    """True for the first batch of an iterator."""
    iterator: Ints
    """Number of the iterator that gave it."""
    sampler: Ints
    """Bits of `SamplerTrait`."""
    loss_steps: Ints
    losses: Floats
    """Logged values `loss`, and the number of the attempt's steps before them."""
    began_ns: int
    """Wall time of the first batch; 0 without one."""
    unread: str | None
    """Name of the first batch without a fingerprint, or None."""
    complete: bool
    """False if records of batches were dropped."""


def read_batches(attempt: Path, *, ranks: Collection[int] | None = None) -> dict[int, RankBatches]:
    """Read the batches of an attempt, of all ranks or of some. Ranks that cannot be read are left out."""
    found = {}
    for directory in sorted(attempt.glob("rank-*")):
        number = rank_number(directory)
        if ranks is not None and number not in ranks:
            continue
        try:
            version = int(read_object(directory / RANK_FILE).get("version", 1))
            main = [read_records(path).records for path in record_files(directory, thread="main")]
            names = dense_names(read_numbered(directory / NAMES_FILE, version=version))
        except (RunDirectoryError, OSError):
            continue
        if number is not None and main:
            found[number] = rank_batches(np.concatenate(main), names=names)
    return found


def rank_batches(main: NDArray[np.void], *, names: Sequence[str]) -> RankBatches:
    """Take the batches from the training thread's records, which are RECORD_DTYPE on the rank's own clock."""
    fetched = main[main["kind"] == Kind.BATCH]
    ended = fetched[_named(fetched, BATCHES_END, names=names)]["group"]
    complete = bool((np.diff(fetched["sequence"].astype(np.int64)) == 1).all())
    fetched = fetched[~_named(fetched, BATCHES_END, names=names)]
    steps = main[(main["kind"] == Kind.STEP) & (main["flags"] & Flag.PARTIAL == 0)]
    first = int(steps["step"][0]) if len(steps) else 0
    evaluating = [*_evaluating(main, fetched)]
    kept = fetched[~np.isin(fetched["group"], evaluating) & (fetched["step"] >= first) & (len(steps) > 0)]
    last_of = {int(number): at for at, number in enumerate(kept["group"])}
    first_of = {int(number): at for at, number in reversed([*enumerate(kept["group"])])}
    ends_pass, starts_pass = np.zeros(len(kept), dtype=bool), np.zeros(len(kept), dtype=bool)
    ends_pass[[at for number, at in last_of.items() if number in ended]] = True
    starts_pass[[*first_of.values()]] = True
    unread = kept["name"][~_named(kept, BATCH_READ, names=names)].tolist()
    logged = main[(main["kind"] == Kind.SCALAR) & (main["step"] >= first)]
    logged = logged[_named(logged, LOSS, names=names)]
    return RankBatches(
        steps=kept["step"].astype(np.int64) - first,
        fingerprints=kept["value"].astype(np.int64),
        ends_pass=ends_pass,
        starts_pass=starts_pass,
        iterator=kept["group"].astype(np.int64),
        sampler=kept["tag"].astype(np.int64),
        loss_steps=logged["step"].astype(np.int64) - first,
        losses=np.ascontiguousarray(logged["value"]).view(np.float64),
        began_ns=int(kept["start_ns"][0]) + wall_offset_ns(main) if len(kept) else 0,
        unread=names[unread[0]] if unread and unread[0] < len(names) else None,
        complete=complete,
    )


def _evaluating(main: NDArray[np.void], fetched: NDArray[np.void]) -> Iterator[int]:
    """Numbers of iterators most of whose batches an evaluation fetched: in it, or as the last work before it."""
    work = main[(main["kind"] == Kind.PHASE) & np.isin(main["phase"], (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER))]
    times, worked = fetched["start_ns"], np.sort(work["start_ns"])
    inside = np.zeros(len(fetched), dtype=bool)
    for start, end in evaluation_intervals(main, last_ns=last_instant_ns(main)):
        inside |= (times >= start) & (times < end)
        before = int(np.searchsorted(times, start)) - 1
        if before >= 0 and np.searchsorted(worked, times[before]) == np.searchsorted(worked, start):
            inside[before] = True
    for number in np.unique(fetched["group"]).tolist():
        if 2 * int(inside[fetched["group"] == number].sum()) > int((fetched["group"] == number).sum()):
            yield number


def _named(records: NDArray[np.void], name: str, *, names: Sequence[str]) -> Bools:
    found: Bools = np.isin(records["name"], [number for number, known in enumerate(names) if known == name])
    return found
