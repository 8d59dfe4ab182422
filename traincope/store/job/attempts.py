"""Summary of one attempt of a job, from the records of one rank: the numbers that the cost of a restart needs.

All ranks of an attempt run the same steps, so the lowest rank stands for all of them. Only their endings differ.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Bools, Ints
from traincope.errors import RunDirectoryError
from traincope.events import CHECKPOINT_SAVED, CLEAN, END_OF_TIME_NS, OPEN, RESUMED, ROLLBACK, Flag, Kind, Phase
from traincope.store.job.hang_notices import HangNotice, Progress
from traincope.store.layout import DETAILS_FILE, NAMES_FILE, RANK_FILE, attempt_number, rank_number, record_files
from traincope.store.lines import dense_names, parse, read_numbered
from traincope.store.segments.evaluating import evaluation_intervals
from traincope.store.segments.records import read_records
from traincope.store.segments.segments import RECORD_DTYPE, last_instant_ns, last_progress_ns, recorder_events

SAVING, SAVING_LATER, LOADING = "save", "async_save", "load"
"""First word of the names of checkpoint stalls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """A return to an earlier state within an attempt, as the training declared it."""

    at_ns: int
    """Time of its declaration, on the clock of the records."""
    step: int
    """Steps that this state had had."""
    why: str
    undone: int
    """Number of undone steps."""
    after: int
    """Number of the first step that it did not undo. In an `Attempt`, counted from the attempt's first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One launch of a job. Instants are ns of wall time since the epoch."""

    number: int
    began_ns: int
    first_step_ns: int | None
    """Begin of its first step; None if it reached no step."""
    last_ns: int
    """The last instant that any rank recorded."""
    num_steps: int
    """Complete steps, including steps whose records were dropped, because step numbers continue."""
    steps_ns: int
    """Duration of the steps, without the checkpoint stalls and evaluations in them."""
    kept_steps: int | None
    """Steps whose result is in the last complete checkpoint, without undone ones. The step of the save counts if its
    optimizer was done. None if no save was recorded.
    """
    kept_ns: int
    loaded: bool
    """True if a checkpoint was loaded."""
    checkpoint_stall_ns: int
    """Since the begin of the first step, outside evaluations."""
    evaluation_ns: int
    """Since the begin of the first step."""
    endings: Mapping[int, str | None] = field(default_factory=dict)
    """Rank -> `clean`, or the exception that ended its run; None if no end was recorded."""

    unrecorded: tuple[int, ...] = ()
    """Ranks without a directory. Only for earlier attempts."""
    first_number: int | None = None
    """Number of its first step in the records."""
    unsaved_since_ns: int | None = None
    """Begin of its first step that is neither in the last complete checkpoint nor undone."""
    undone_spans: tuple[tuple[int, int], ...] = ()
    """Begin and end of the steps that each rollback undid."""
    resumed_step: int | None = None
    """Steps that its state had had when it continued, as the training declared, or None."""
    ended_ns: Mapping[int, int] = field(default_factory=dict)
    """Rank -> the time when it wrote its ending."""
    rank_last_ns: Mapping[int, int] = field(default_factory=dict)
    """Rank -> its last instant, if it was read. 0: it has no records."""
    progress: Progress = field(default_factory=Progress)
    """Progress of its ranks, as far as their newest records show it."""
    noted: bool = False
    """True if the launcher noted a rank that did not end well. The rank itself may have recorded nothing unusual."""
    hang: HangNotice | None = None
    """The answer of an agent about the hang in which it ended (`standing_notice`). Only for earlier attempts."""
    rollbacks: tuple[Rollback, ...] = ()
    undone_steps: int = 0
    """Steps of `num_steps` that rollbacks undid, and their time."""
    undone_ns: int = 0
    skipped_steps: int = 0
    """Steps of `num_steps` that updated nothing and that no rollback undid, and their time."""
    skipped_ns: int = 0
    kept_skipped_steps: int = 0
    """Skipped steps that are in the last complete checkpoint, and their time."""
    kept_skipped_ns: int = 0

    @property
    def state_steps(self) -> int:
        """Steps that its state had had at the end, if it began anew or declared where it continued."""
        return (self.resumed_step or 0) + self.num_steps - sum(rollback.undone for rollback in self.rollbacks)

    @property
    def earliest_step(self) -> int | None:
        """Steps of the earliest state that it continued from, or went back to; None if it declared none."""
        return None if self.resumed_step is None else min([self.resumed_step, *(back.step for back in self.rollbacks)])

    def steps_until(self, step: int) -> int | None:
        """Steps that its state had had more than at its begin, after the recorded `step`, which no rollback undid until
        then. None if it made no step.
        """
        if self.first_number is None:
            return None
        before = step - self.first_number
        return before + 1 - sum(back.undone for back in self.rollbacks if before >= back.after)

    @property
    def startup_ns(self) -> int:
        """Time before the first step; the whole attempt if it reached no step."""
        return (self.last_ns if self.first_step_ns is None else self.first_step_ns) - self.began_ns

    @property
    def other_ns(self) -> int:
        """Time in none of the other terms: between steps, or in a step that was not completed."""
        named_ns = self.startup_ns + self.steps_ns + self.checkpoint_stall_ns + self.evaluation_ns
        return self.last_ns - self.began_ns - named_ns

    @property
    def clean(self) -> bool:
        """True if every recorded rank ended cleanly, according to itself and the launcher."""
        return not self.noted and all(ending == CLEAN for ending in self.endings.values())


def read_attempts(directories: Sequence[Path]) -> Iterator[Attempt]:
    """Summarise attempts in order, all but the last, without reading all of them. Those that cannot be read are left
    out.
    """
    began = [
        [at for rank in path.glob("rank-*") if (at := began_wall_ns(rank)) is not None] for path in directories[1:]
    ]
    for number, directory in enumerate(directories[:-1]):
        later = [at for of_attempt in began[number:] for at in of_attempt]
        attempt = read_attempt(directory, until_ns=min(later, default=None))
        if attempt is not None:
            yield attempt


def read_attempt(directory: Path, *, until_ns: int | None = None) -> Attempt | None:
    """Summarise an attempt without reading all of it; None if nothing can be read. `until_ns`: see `summarise`."""
    ranks = {number: path for path in directory.glob("rank-*") if (number := rank_number(path)) is not None}
    for path in (ranks[number] for number in sorted(ranks)):
        main = _training_records(_main_files(path))
        words = _read_words(path) if len(main) else None
        if words is not None:
            ends = {number: _end_of(ranks[number], until_ns=until_ns) for number in sorted(ranks)}
            attempt = summarise(
                main,
                names=dense_names(words[0]),
                details=words[1],
                number=attempt_number(directory) or 0,
                rank_last_ns={rank: end.last_ns for rank, end in ends.items()},
                until_ns=until_ns,
                endings={rank: end.ending for rank, end in ends.items()},
                ended_ns={number: at for number in sorted(ranks) if (at := _ended_ns(ranks[number])) is not None},
            )
            lowest, last_step = rank_number(path) or 0, _last_step(_within_attempt(main, until_ns=until_ns))
            progress = _progress({**ends, lowest: replace(ends[lowest], last_step=last_step)})
            size = _read_manifest(path).get("world_size")
            unrecorded = {*range(size if isinstance(size, int) else 0)} - {*ranks}
            return replace(attempt, progress=progress, unrecorded=tuple(sorted(unrecorded)))
    return None


def summarise(
    main: NDArray[np.void],
    *,
    names: tuple[str, ...],
    number: int,
    endings: Mapping[int, str | None],
    last_ns: int = 0,
    rank_last_ns: Mapping[int, int] | None = None,
    ended_ns: Mapping[int, int] | None = None,
    details: Mapping[int, Any] | None = None,
    until_ns: int | None = None,
) -> Attempt:
    """Summarise the training thread's records.

    `main`: RECORD_DTYPE, at least one record, on the rank's own clock. `last_ns` and, by rank, `rank_last_ns`: wall
    time of the last record. `details`: of events, by number. `until_ns`: wall time when the next attempt began. Ranks
    that others have given up may still wait then; the attempt ends for the job at that time, or with its last complete
    step.
    """
    offset = wall_offset_ns(main)
    steps = main[(main["kind"] == Kind.STEP) & (main["flags"] & Flag.PARTIAL == 0)]
    began = int(steps["start_ns"][0]) if len(steps) else last_instant_ns(main)
    done = _done(steps[steps["end_ns"] != OPEN])
    ended = last_instant_ns(main)
    last_ns = max(last_ns, ended + offset, *(rank_last_ns or {}).values())
    if until_ns is not None:
        at_least = max([began if len(steps) else int(main["start_ns"].min()), *done["end_ns"].tolist()])
        last_ns = min(last_ns, max(until_ns, at_least + offset))
    stalls = main[(main["phase"] == Phase.CHECKPOINT_STALL) & (main["kind"] == Kind.PHASE)]
    stalls["end_ns"][stalls["end_ns"] > last_ns - offset] = OPEN
    kinds = np.array([names[at].partition(" ")[0] if at < len(names) else "" for at in stalls["name"]], dtype=object)
    saved_ns = _saves_ns(main, stalls[kinds == SAVING], later=stalls[kinds == SAVING_LATER], names=names)
    declared = read_rollbacks(main, names=names, details=details or {})
    rollbacks = tuple(_within(declared, first=int(steps["step"][0]) if len(steps) else 0, num_steps=_count(done)))
    undone = undone_steps(done["count"], rollbacks)
    saved, skipped = ~undone & (_settled_ns(done, main) <= saved_ns.max(initial=0)), ~undone & done["skipped"]
    parts = [_spans(done[part], ended) for part in (undone, saved & skipped, saved, skipped, ~undone)]
    layers = [evaluation_intervals(main, last_ns=ended), _spans(stalls, ended), *parts]
    evaluation_ns, checkpoint_stall_ns, *steps_ns = _layers_ns(*layers, since=began, until=last_ns - offset)
    undone_ns, kept_skipped_ns, kept_ns, skipped_ns, _ = steps_ns
    return Attempt(
        number=number,
        began_ns=int(main["start_ns"].min()) + offset,
        first_step_ns=began + offset if len(steps) else None,
        last_ns=last_ns,
        rank_last_ns=dict(rank_last_ns or {}),
        num_steps=_count(done),
        steps_ns=sum(steps_ns),
        first_number=int(steps["step"][0]) if len(steps) else None,
        unsaved_since_ns=next(iter((done["start_ns"][~undone & ~saved] + offset).tolist()), None),
        undone_spans=tuple(_undone_spans(done, undone, offset=offset)),
        kept_steps=_count(done[saved]) if len(saved_ns) else None,
        kept_ns=kept_skipped_ns + kept_ns,
        loaded=bool((kinds == LOADING)[_before_rollbacks(stalls, done, rollbacks)].any()),
        checkpoint_stall_ns=checkpoint_stall_ns,
        evaluation_ns=evaluation_ns,
        endings=dict(endings),
        resumed_step=read_resumed_step(main, names=names, details=details or {}),
        ended_ns=dict(ended_ns or {}),
        rollbacks=rollbacks,
        undone_steps=_count(done[undone]),
        undone_ns=undone_ns,
        skipped_steps=_count(done[skipped]),
        skipped_ns=kept_skipped_ns + skipped_ns,
        kept_skipped_steps=_count(done[saved & skipped]),
        kept_skipped_ns=kept_skipped_ns,
    )


def began_wall_ns(rank: Path) -> int | None:
    """Wall time when the training thread's first record began, from its oldest segment; None without records."""
    oldest = _training_records(_main_files(rank)[:1])
    return int(oldest["start_ns"].min()) + wall_offset_ns(oldest) if len(oldest) else None


def wall_offset_ns(records: NDArray[np.void]) -> int:
    """Wall time minus the records' own clock; 0 if no record holds both clocks."""
    clocks = records[records["kind"] == Kind.CLOCK]
    offsets = np.sort(clocks["value"] - clocks["start_ns"])
    return int(offsets[len(offsets) // 2]) if len(offsets) else 0


def _saves_ns(
    main: NDArray[np.void], saves: NDArray[np.void], *, later: NDArray[np.void], names: tuple[str, ...]
) -> NDArray[np.int64]:
    """Begin times of completed saves.

    `later`: calls that began asynchronous saves. An asynchronous save that ends is taken for the newest that had begun.
    Without a recorded begin it counts at its end.
    """
    complete = saves[saves["end_ns"] != OPEN]["start_ns"].astype(np.int64)
    events = recorder_events(main)
    ends = np.array(events["start_ns"][_named(events, CHECKPOINT_SAVED, names=names)], dtype=np.int64)
    begins = np.sort(later["start_ns"].astype(np.int64))
    at = np.searchsorted(begins, ends, side="right") - 1
    return np.append(complete, np.where(at >= 0, np.append(begins, 0)[at], ends))


def read_resumed_step(main: NDArray[np.void], *, names: Sequence[str], details: Mapping[int, Any]) -> int | None:
    """Steps of the state from which the training thread declared that it continued, or None."""
    events = recorder_events(main)
    numbers = events["group"][_named(events, RESUMED, names=names)].tolist()
    steps = [values.get("step") for number in numbers if isinstance(values := details.get(number), dict)]
    return next((step for step in steps if type(step) is int and step >= 0), None)


def _named(events: NDArray[np.void], name: str, *, names: Sequence[str]) -> NDArray[np.bool_]:
    return np.isin(events["name"], [number for number, known in enumerate(names) if known == name])


def read_rollbacks(main: NDArray[np.void], *, names: Sequence[str], details: Mapping[int, Any]) -> Iterator[Rollback]:
    """Rollbacks that the training thread declared, in order."""
    events = recorder_events(main)
    for event in events[_named(events, ROLLBACK, names=names)]:
        values = details.get(int(event["group"]))
        if isinstance(values, dict) and all(type(values.get(key)) is int for key in ("step", "undone", "last")):
            yield Rollback(
                at_ns=int(event["start_ns"]),
                step=values["step"],
                why=str(values.get("why", "")),
                undone=values["undone"],
                after=values["last"] + 1,
            )


def _within(rollbacks: Iterable[Rollback], *, first: int, num_steps: int) -> Iterator[Rollback]:
    """Count from the attempt's first step, of `num_steps` complete ones.

    A process that was killed in the step of a rollback has not completed it, so that step does not count as undone.
    """
    for rollback in rollbacks:
        after = rollback.after - first
        yield replace(rollback, after=after, undone=rollback.undone - max(after - num_steps, 0))


def undone_steps(counts: Ints, rollbacks: Sequence[Rollback]) -> Bools:
    """True for each entry that a rollback undid, of an attempt's steps in order.

    `counts`: steps of each entry. An entry of several steps, whose records were dropped, is undone as a whole.
    """
    before = np.cumsum(counts) - counts
    undone = np.zeros(len(counts), dtype=bool)
    for rollback in rollbacks:
        standing = np.flatnonzero(~undone & (before < rollback.after))
        later = np.cumsum(counts[standing][::-1])[::-1] - counts[standing]
        undone[standing[later < rollback.undone]] = True
    return undone


def _undone_spans(done: NDArray[np.void], undone: Bools, *, offset: int) -> Iterator[tuple[int, int]]:
    """Begin and end, in wall time, of each sequence of undone steps."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], undone, [False]]).astype(np.int8)))
    for first, after in edges.reshape(-1, 2).tolist():
        yield int(done["start_ns"][first]) + offset, int(done["end_ns"][after - 1]) + offset


def continued_from(attempts: Sequence[Attempt]) -> dict[int, int | None]:
    """Number of each attempt -> steps that its state had had at its begin: as it declared, or as its loaded checkpoint
    has. None: unknown.
    """
    starts: dict[int, int | None] = {}
    begun: int | None = None
    before: Attempt | None = None
    for attempt in attempts:
        if attempt.resumed_step is not None:
            begun = attempt.resumed_step
        elif before is None:
            begun = None if attempt.loaded else 0
        elif not attempt.loaded or begun is None or before.kept_steps is None:
            begun = None
        else:
            begun += before.kept_steps
        starts[attempt.number] = begun
        before = attempt if attempt.num_steps or before is None else before
    return starts


def _before_rollbacks(stalls: NDArray[np.void], done: NDArray[np.void], rollbacks: Sequence[Rollback]) -> Bools:
    """True for stalls before the end of the first step, if there are rollbacks, which load checkpoints too."""
    first_ns = done["end_ns"].min(initial=END_OF_TIME_NS) if rollbacks else END_OF_TIME_NS
    before: Bools = stalls["start_ns"] < first_ns
    return before


DONE_DTYPE = np.dtype([("start_ns", np.int64), ("end_ns", np.int64), ("count", np.int64), ("skipped", np.bool_)])
"""A complete step, or several steps whose records were dropped between two recorded ones."""


def _done(complete: NDArray[np.void]) -> NDArray[np.void]:
    """Complete steps. A gap in step numbers counts as steps, because steps follow each other."""
    dropped = np.flatnonzero(np.diff(complete["step"]) > 1)
    done = np.zeros(len(complete) + len(dropped), dtype=DONE_DTYPE)
    done["start_ns"] = np.append(complete["start_ns"], complete["end_ns"][dropped])
    done["end_ns"] = np.append(complete["end_ns"], complete["start_ns"][dropped + 1])
    done["count"] = np.append(np.ones(len(complete)), np.diff(complete["step"])[dropped] - 1)
    done["skipped"][: len(complete)] = complete["flags"] & Flag.SKIPPED > 0
    return done[np.argsort(done["start_ns"], kind="stable")]


def _count(done: NDArray[np.void]) -> int:
    return int(done["count"].sum())


def _settled_ns(done: NDArray[np.void], main: NDArray[np.void]) -> NDArray[np.int64]:
    """Time when the result of each step existed: the end of its last optimizer step, or of the step if none was
    recorded.
    """
    optimizers = main[(main["kind"] == Kind.PHASE) & (main["phase"] == Phase.OPTIMIZER) & (main["end_ns"] != OPEN)]
    ends = np.sort(optimizers["end_ns"])
    at = np.searchsorted(ends, done["end_ns"], side="right") - 1
    last = np.append(ends, 0)[at]
    return np.where((at >= 0) & (last > done["start_ns"]) & (done["count"] == 1), last, done["end_ns"])


def _spans(records: NDArray[np.void], last_ns: int) -> NDArray[np.int64]:
    """(start, end) of each record; an open record lasts until the records end."""
    ends = np.where(records["end_ns"] == OPEN, last_ns, records["end_ns"])
    return np.stack([records["start_ns"], ends], axis=1)


def _layers_ns(*layers: NDArray[np.int64], since: int, until: int) -> list[int]:
    """Time of each layer between two instants, without the time of earlier layers. The layers sum to their union."""
    spans = np.empty((0, 2), dtype=np.int64)
    covered = [0]
    for layer in layers:
        spans = np.concatenate([spans, layer.clip(min=since, max=max(since, until))])
        covered.append(_covered_ns(spans))
    return np.diff(covered).tolist()


def _covered_ns(spans: NDArray[np.int64]) -> int:
    """Length of the union of (start, end) intervals."""
    starts, ends = spans[np.argsort(spans[:, 0], kind="stable")].T
    reach = np.maximum.accumulate(ends)
    begins = np.maximum(starts, np.append(starts[:1], reach[:-1]))
    return int(np.maximum(ends - begins, 0).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """End of one rank, from its manifest and its newest segment. Instants are 0 without a record of both clocks."""

    ending: str | None
    last_ns: int
    moved_ns: int
    """The last begin or end of an interval, up to when the next attempt began."""
    last_step: tuple[int, int] | None
    """Number and end of its last complete step."""


def _end_of(rank: Path, *, until_ns: int | None) -> _End:
    newest, ending = _training_records(_main_files(rank)[-1:]), _ending(rank)
    if not (newest["kind"] == Kind.CLOCK).any():
        return _End(ending=ending, last_ns=0, moved_ns=0, last_step=None)
    offset, within = wall_offset_ns(newest), _within_attempt(newest, until_ns=until_ns)
    return _End(
        ending=ending,
        last_ns=last_instant_ns(newest) + offset,
        moved_ns=last_progress_ns(within, raised=ending not in (None, CLEAN)) + offset,
        last_step=_last_step(within),
    )


def _within_attempt(main: NDArray[np.void], *, until_ns: int | None) -> NDArray[np.void]:
    """The records as they were when the next attempt began."""
    if until_ns is None:
        return main
    offset = wall_offset_ns(main)
    begun = main[main["start_ns"] <= until_ns - offset]
    begun["end_ns"][begun["end_ns"] > until_ns - offset] = OPEN
    return begun


def _last_step(main: NDArray[np.void]) -> tuple[int, int] | None:
    """Number of the last complete step, and the wall time of its end."""
    steps = main[(main["kind"] == Kind.STEP) & (main["flags"] & Flag.PARTIAL == 0) & (main["end_ns"] != OPEN)]
    return (int(steps["step"].max()), int(steps["end_ns"].max()) + wall_offset_ns(main)) if len(steps) else None


def _progress(ends: Mapping[int, _End]) -> Progress:
    steps = {rank: end.last_step for rank, end in ends.items() if end.last_step is not None}
    going = [rank for rank, end in ends.items() if end.ending != CLEAN]
    return Progress(
        next_steps={rank: steps[rank][0] + 1 if rank in steps else 0 for rank in going},
        last_step_ns=max((end_ns for _, end_ns in steps.values()), default=None),
        moved_ns={rank: end.moved_ns for rank, end in ends.items()},
    )


def _main_files(rank: Path) -> list[Path]:
    """Segments of the training thread; none where the directory may not be listed."""
    try:
        return record_files(rank, thread="main")
    except PermissionError:
        return []


def _read_words(rank: Path) -> tuple[dict[int, Any], dict[int, Any]] | None:
    """Names and details; None if the system does not let this process read them."""
    try:
        names, details = (read_numbered(rank / file, version=_version(rank)) for file in (NAMES_FILE, DETAILS_FILE))
    except OSError:
        return None
    return names, details


def _training_records(paths: list[Path]) -> NDArray[np.void]:
    """Records of the segments that can be read; other formats and damaged files count as empty."""
    parts = []
    for path in paths:
        try:
            parts.append(read_records(path).records)
        except RunDirectoryError:
            continue
    return np.concatenate(parts) if parts else np.empty(0, dtype=RECORD_DTYPE)


def _version(rank: Path) -> int:
    version = _read_manifest(rank).get("version", 1)
    return version if isinstance(version, int) else 1


def _ending(rank: Path) -> str | None:
    ending = _read_manifest(rank).get("ending")
    return ending if isinstance(ending, str) else None


def _ended_ns(rank: Path) -> int | None:
    ended = _read_manifest(rank).get("ended_wall_ns")
    return ended if isinstance(ended, int) else None


def _read_manifest(rank: Path) -> dict[str, object]:
    try:
        manifest = parse((rank / RANK_FILE).read_text(errors="replace"))
    except OSError:
        return {}
    return manifest if isinstance(manifest, dict) else {}
