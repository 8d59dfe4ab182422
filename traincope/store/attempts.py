"""What an attempt of a job came to, from one rank's records: enough to say what a restart cost.

Ranks of one attempt make the same steps, so the lowest of them tells for all; only ends differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.errors import RunDirectoryError
from traincope.events import CLEAN, OPEN, Flag, Kind, Phase
from traincope.store.evaluating import evaluated
from traincope.store.layout import NAMES_FILE, RANK_FILE, attempt_number, rank_number, records_of
from traincope.store.lines import dense_names, parse, read_numbered
from traincope.store.records import read_records
from traincope.store.segments import RECORD_DTYPE, own_events

SAVING, LOADING = "save", "load"
"""How the names of checkpoint stalls begin."""
SAVED = "checkpoint saved"
"""The event at the end of an asynchronous save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One launch of a job. Instants are ns of wall time since the epoch."""

    number: int
    began_ns: int
    first_step_ns: int | None
    """When its first step began; None: it came to none."""
    last_ns: int
    """The last instant that any rank recorded."""
    num_steps: int
    """Complete steps, those whose records were dropped included: numbers count on."""
    steps_ns: int
    """What they took, without the checkpoint stalls and evaluations in them."""
    kept_steps: int | None
    """Whose result the last checkpoint has that was saved whole, the step of the save too if its optimizer was done;
    None: no save was seen."""
    kept_ns: int
    loaded: bool
    """Whether a checkpoint was loaded."""
    checkpoint_stall_ns: int
    """Since the first step began, outside of evaluations."""
    evaluation_ns: int
    """Since the first step began."""
    endings: Mapping[int, str | None] = field(default_factory=dict)
    """Rank -> `clean`, the exception that left its run, or None: no end was recorded."""

    ended_ns: Mapping[int, int] = field(default_factory=dict)
    """Rank -> when it wrote that ending."""
    noted: bool = False
    """Whether the launcher noted that a rank did not end well: it may have seen nothing wrong itself."""

    @property
    def startup_ns(self) -> int:
        """Until its first step began, or all of it where it came to none."""
        return (self.last_ns if self.first_step_ns is None else self.first_step_ns) - self.began_ns

    @property
    def other_ns(self) -> int:
        """In nothing that is named above: between steps, or in the one that was not completed."""
        named_ns = self.startup_ns + self.steps_ns + self.checkpoint_stall_ns + self.evaluation_ns
        return self.last_ns - self.began_ns - named_ns

    @property
    def clean(self) -> bool:
        """Whether every rank that recorded came to a clean end, as far as it and the launcher know."""
        return not self.noted and all(ending == CLEAN for ending in self.endings.values())


def read_attempt(directory: Path) -> Attempt | None:
    """A light reading of an attempt that is not the last; None where nothing of it can be read."""
    ranks = {number: path for path in directory.glob("rank-*") if (number := rank_number(path)) is not None}
    for path in (ranks[number] for number in sorted(ranks)):
        main = _main(records_of(path, thread="main"))
        if len(main):
            return summarise(
                main,
                names=dense_names(read_numbered(path / NAMES_FILE, version=_version(path))),
                number=attempt_number(directory) or 0,
                last_ns=max((_last_wall_ns(other) for other in ranks.values()), default=0),
                endings={number: _ending(ranks[number]) for number in sorted(ranks)},
                ended_ns={number: at for number in sorted(ranks) if (at := _ended_ns(ranks[number])) is not None},
            )
    return None


def summarise(
    main: NDArray[np.void],
    *,
    names: tuple[str, ...],
    number: int,
    last_ns: int,
    endings: Mapping[int, str | None],
    ended_ns: Mapping[int, int] | None = None,
) -> Attempt:
    """`main`: the training thread's records (RECORD_DTYPE, at least one), on its own clock; `last_ns`: wall time."""
    offset = wall_offset_ns(main)
    steps = main[(main["kind"] == Kind.STEP) & (main["flags"] & Flag.PARTIAL == 0)]
    began = int(steps["start_ns"][0]) if len(steps) else _last_ns(main)
    done = _done(steps[steps["end_ns"] != OPEN])
    stalls = main[(main["phase"] == Phase.CHECKPOINT_STALL) & (main["kind"] == Kind.PHASE)]
    kinds = np.array([names[at].partition(" ")[0] if at < len(names) else "" for at in stalls["name"]], dtype=object)
    saved_ns = _saves_ns(main, stalls[kinds == SAVING], names=names)
    kept = done[_settled_ns(done, main) <= saved_ns.max(initial=0)]
    ended = _last_ns(main)
    layers = [evaluated(main, last_ns=ended), *(_spans(layer, ended) for layer in (stalls, kept, done))]
    evaluation_ns, checkpoint_stall_ns, kept_ns, rest_ns = _layers_ns(*layers, since=began)
    return Attempt(
        number=number,
        began_ns=int(main["start_ns"].min()) + offset,
        first_step_ns=began + offset if len(steps) else None,
        last_ns=max(last_ns, _last_ns(main) + offset),
        num_steps=int(done["count"].sum()),
        steps_ns=kept_ns + rest_ns,
        kept_steps=int(kept["count"].sum()) if len(saved_ns) else None,
        kept_ns=kept_ns,
        loaded=bool((kinds == LOADING).any()),
        checkpoint_stall_ns=checkpoint_stall_ns,
        evaluation_ns=evaluation_ns,
        endings=dict(endings),
        ended_ns=dict(ended_ns or {}),
    )


def began_wall_ns(rank: Path) -> int | None:
    """When its training thread's first record began, by its oldest segment alone; None where there is none yet."""
    oldest = _main(records_of(rank, thread="main")[:1])
    return int(oldest["start_ns"].min()) + wall_offset_ns(oldest) if len(oldest) else None


def wall_offset_ns(records: NDArray[np.void]) -> int:
    """Wall time less the records' own clock; 0 where they hold no reading of both."""
    clocks = records[records["kind"] == Kind.CLOCK]
    offsets = np.sort(clocks["value"] - clocks["start_ns"])
    return int(offsets[len(offsets) // 2]) if len(offsets) else 0


def _saves_ns(main: NDArray[np.void], saves: NDArray[np.void], *, names: tuple[str, ...]) -> NDArray[np.int64]:
    """When saves were begun that have ended; the end of an asynchronous one stands for its beginning."""
    whole = saves[saves["end_ns"] != OPEN]["start_ns"]
    events = own_events(main)
    later = [int(at) for at, name in zip(events["start_ns"], events["name"], strict=True) if _is_saved(names, name)]
    return np.append(whole.astype(np.int64), np.array(later, dtype=np.int64))


def _is_saved(names: tuple[str, ...], number: int) -> bool:
    return number < len(names) and names[number] == SAVED


DONE = np.dtype([("start_ns", np.int64), ("end_ns", np.int64), ("count", np.int64)])
"""A complete step; or several, whose records were dropped between two that are there."""


def _done(whole: NDArray[np.void]) -> NDArray[np.void]:
    """Steps follow each other, so what lies between two whose numbers do not, was steps."""
    dropped = np.flatnonzero(np.diff(whole["step"]) > 1)
    done = np.zeros(len(whole) + len(dropped), dtype=DONE)
    done["start_ns"] = np.append(whole["start_ns"], whole["end_ns"][dropped])
    done["end_ns"] = np.append(whole["end_ns"], whole["start_ns"][dropped + 1])
    done["count"] = np.append(np.ones(len(whole)), np.diff(whole["step"])[dropped] - 1)
    return done


def _settled_ns(done: NDArray[np.void], main: NDArray[np.void]) -> NDArray[np.int64]:
    """When each step's result stood: at the end of its last optimizer's step, or at its own where none was seen."""
    optimizers = main[(main["kind"] == Kind.PHASE) & (main["phase"] == Phase.OPTIMIZER) & (main["end_ns"] != OPEN)]
    ends = np.sort(optimizers["end_ns"])
    at = np.searchsorted(ends, done["end_ns"], side="right") - 1
    last = np.append(ends, 0)[at]
    return np.where((at >= 0) & (last > done["start_ns"]) & (done["count"] == 1), last, done["end_ns"])


def _spans(records: NDArray[np.void], last_ns: int) -> NDArray[np.int64]:
    """(start, end) of each; what was under way when the records ended lasted until then."""
    ends = np.where(records["end_ns"] == OPEN, last_ns, records["end_ns"])
    return np.stack([records["start_ns"], ends], axis=1)


def _layers_ns(*layers: NDArray[np.int64], since: int) -> list[int]:
    """Time of each layer since an instant that no layer before it has: so they sum to what they cover together."""
    spans = np.empty((0, 2), dtype=np.int64)
    covered = [0]
    for layer in layers:
        spans = np.concatenate([spans, layer.clip(min=since)])
        covered.append(_covered_ns(spans))
    return np.diff(covered).tolist()


def _covered_ns(spans: NDArray[np.int64]) -> int:
    """Time in any of the (start, end)."""
    starts, ends = spans[np.argsort(spans[:, 0], kind="stable")].T
    reach = np.maximum.accumulate(ends)
    begins = np.maximum(starts, np.append(starts[:1], reach[:-1]))
    return int(np.maximum(ends - begins, 0).sum())


def _last_ns(records: NDArray[np.void]) -> int:
    return int(max(records["start_ns"].max(initial=0), records["end_ns"].max(initial=0)))


def _last_wall_ns(rank: Path) -> int:
    """From its newest segment alone."""
    newest = _main(records_of(rank, thread="main")[-1:])
    return _last_ns(newest) + wall_offset_ns(newest) if (newest["kind"] == Kind.CLOCK).any() else 0


def _main(paths: list[Path]) -> NDArray[np.void]:
    """What can be read of these segments; another format, or damage, is nothing."""
    parts = []
    for path in paths:
        try:
            parts.append(read_records(path).records)
        except RunDirectoryError:
            continue
    return np.concatenate(parts) if parts else np.empty(0, dtype=RECORD_DTYPE)


def _version(rank: Path) -> int:
    version = _card(rank).get("version", 1)
    return version if isinstance(version, int) else 1


def _ending(rank: Path) -> str | None:
    ending = _card(rank).get("ending")
    return ending if isinstance(ending, str) else None


def _ended_ns(rank: Path) -> int | None:
    ended = _card(rank).get("ended_wall_ns")
    return ended if isinstance(ended, int) else None


def _card(rank: Path) -> dict[str, object]:
    try:
        card = parse((rank / RANK_FILE).read_text(errors="replace"))
    except OSError:
        return {}
    return card if isinstance(card, dict) else {}
