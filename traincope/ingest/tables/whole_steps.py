"""Steps of a table in which every worker has all its operations; the others are left out, each with its reason.

Profilers also note sends and receives that never ran, at the ends of the pipeline. They are dropped here, as the
StragglerAnalysis study does: its paper is "Understanding Stragglers in Large Model Training Using What-if Analysis".
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from traincope.arrays import Bools, Ints
from traincope.errors import DataError
from traincope.ingest.tables.reading import Table
from traincope.store.side_tables.operations import MESSAGES, OF_STAGE, PAIRS, OperationKind, Operations

OVERLAP_NS = 100_000
"""Two computations of one worker that share more than this do not follow each other.

Times of 32 bits are that inexact after half an hour, and events on several streams by some us.
"""
NEAR_NS = 50_000
"""A message that begins this much after the last computation may still belong to it: the study's own bound."""
ALONE = (OperationKind.FORWARD, OperationKind.BACKWARD, OperationKind.OPTIMIZER)
"""Kinds that do not overlap on a worker. The host may collect garbage at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeSteps:
    """The operations of the steps that are whole."""

    operations: Operations
    left_out: dict[int, str]
    """Number of each step that was left out -> why."""
    idle_messages: int
    """Messages of whole steps that never ran."""
    laid_out: bool
    """The table counts the time of each step from its own start, so the steps were laid one after the other."""


def whole_steps(table: Table) -> WholeSteps:
    """Return the whole steps. Raises DataError if none is, or if a rank has no single place in the mesh."""
    operations, laid_out = _in_order(table)
    _require_one_place(table)
    reasons: dict[int, str] = {}
    for step, why in (*_missing_workers(operations), *_overlaps(operations), *_repeated(operations)):
        reasons.setdefault(step, why)
    kept = np.ones(len(operations), dtype=bool)
    for step, why in _drop_idle_messages(operations, kept):
        reasons.setdefault(step, why)
    present = operations.only(kept)
    for step, why in (*_unpaired(present), *_incomplete_collectives(present)):
        reasons.setdefault(step, why)
    whole = ~np.isin(operations.step, list(reasons))
    if not (whole & kept).any():
        step, why = next(iter(sorted(reasons.items())))
        raise DataError(f"{table.path} contains no whole step, so there is nothing to import; step {step}: {why}")
    return WholeSteps(
        operations=operations.only(whole & kept),
        left_out=dict(sorted(reasons.items())),
        idle_messages=int((whole & ~kept).sum()),
        laid_out=laid_out,
    )


def _in_order(table: Table) -> tuple[Operations, bool]:
    """Return the rows in order of step, rank and start, and whether the steps were laid one after the other."""
    kinds, kind = np.unique(table.optype, return_inverse=True)
    order = np.lexsort((table.sequence, table.start_ns, table.rank, table.step))
    operations = Operations(
        num_replicas=int(table.dp_rank.max()) + 1,
        num_stages=int(table.stage.max()) + 1,
        kinds=tuple(str(name) for name in kinds),
        kind=kind.reshape(-1)[order].astype(np.int64),
        rank=table.rank[order],
        dp_rank=table.dp_rank[order],
        stage=table.stage[order],
        chunk=table.chunk[order],
        step=table.step[order],
        microbatch=table.microbatch[order],
        start_ns=table.start_ns[order],
        end_ns=table.end_ns[order],
    )
    steps, first_ns, last_ns = operations.step_bounds()
    laid_out = bool((np.diff(first_ns) <= 0).any())
    if laid_out:
        lengths = last_ns - first_ns
        offset = np.cumsum(lengths) - lengths - first_ns
    else:
        offset = np.full(len(steps), max(0, -int(first_ns.min())))
    shift_ns = offset[np.searchsorted(steps, operations.step)]
    shifted = replace(operations, start_ns=operations.start_ns + shift_ns, end_ns=operations.end_ns + shift_ns)
    return shifted, laid_out


def _require_one_place(table: Table) -> None:
    """Require that each rank is at one (dp_rank, stage), and is alone there."""
    places = np.unique(np.stack([table.rank, table.dp_rank, table.stage], axis=1), axis=0)
    for column, what in (([0], "rank"), ([1, 2], "(dp_rank, stage)")):
        _, first, count = np.unique(places[:, column], axis=0, return_index=True, return_counts=True)
        if (count > 1).any():
            at = int(first[count > 1][0])
            same = places[(places[:, column] == places[at, column]).all(axis=1)]
            rows = " and ".join(f"rank {r} at dp_rank {d}, stage {s}" for r, d, s in same[:2].tolist())
            raise DataError(
                f"{table.path} has {rows}; each {what} must be one worker: keep one rank of its tensor group"
            )


def _missing_workers(operations: Operations) -> Iterator[tuple[int, str]]:
    """Yield the steps without some (dp_rank, stage)."""
    stages, size = operations.num_stages, operations.num_replicas * operations.num_stages
    worker = operations.dp_rank * stages + operations.stage
    present = np.unique(np.stack([operations.step, worker], axis=1), axis=0)
    steps, count = np.unique(present[:, 0], return_counts=True)
    for step in steps[count < size].tolist():
        missing = min(set(range(size)) - set(present[present[:, 0] == step, 1].tolist()))
        yield step, f"dp_rank {missing // stages}, stage {missing % stages} has no row"


def _overlaps(operations: Operations) -> Iterator[tuple[int, str]]:
    """Yield the steps in which a worker's computations overlap."""
    main = operations.only(operations.are(*ALONE))
    order = np.lexsort((main.end_ns, main.start_ns, main.rank))
    before, after = order[:-1], order[1:]
    shared_ns = np.minimum(main.end_ns[before], main.end_ns[after]) - main.start_ns[after]
    wrong = (main.rank[before] == main.rank[after]) & (shared_ns > OVERLAP_NS)
    for first, second in zip(before[wrong].tolist(), after[wrong].tolist(), strict=True):
        names = f"{main.kinds[main.kind[first]]} and {main.kinds[main.kind[second]]}"
        yield int(main.step[second]), f"{names} of rank {main.rank[second]} overlap"


def _repeated(operations: Operations) -> Iterator[tuple[int, str]]:
    """Yield the steps in which a worker computes a microbatch twice, or only in one direction."""
    counts = []
    for kind in (OperationKind.FORWARD, OperationKind.BACKWARD):
        rows = operations.only(operations.are(kind))
        keys = np.stack([rows.step, rows.rank, rows.chunk, rows.microbatch], axis=1)
        found, count = np.unique(keys, axis=0, return_counts=True)
        counts.append({tuple(key): number for key, number in zip(found.tolist(), count.tolist(), strict=True)})
    forward, backward = counts
    for key in sorted(forward.keys() | backward.keys()):
        if (forward.get(key, 0), backward.get(key, 0)) != (1, 1):
            step, rank, chunk, microbatch = key
            yield (
                step,
                f"rank {rank} has {forward.get(key, 0)} forwards and {backward.get(key, 0)} backwards of microbatch "
                f"{microbatch} in chunk {chunk}, not one of each",
            )


def _drop_idle_messages(operations: Operations, kept: Bools) -> Iterator[tuple[int, str]]:
    """Clear in `kept` the messages that never ran. Yield the steps whose messages do not fit the computations."""
    last = int(operations.part.max())
    keys, number = np.unique(_step_and_rank(operations), axis=0, return_inverse=True)
    number = number.reshape(-1)
    for kind, (compute, distance) in MESSAGES.items():
        rows = np.flatnonzero(operations.are(kind))
        computed = np.flatnonzero(operations.are(compute))
        other = operations.part[computed] + distance
        needed = (other >= 0) & (other <= last)
        have = np.bincount(number[rows], minlength=len(keys))
        want = np.bincount(number[computed[needed]], minlength=len(keys))
        for cell in np.flatnonzero(have != want).tolist():
            mine, own = rows[number[rows] == cell], number[computed] == cell
            ran = _that_ran(operations, mine, computed[own], needed[own], sends=kind in PAIRS)
            if ran is None:
                step, rank = keys[cell].tolist()
                yield step, f"rank {rank} has {len(mine)} rows of {kind}, and its computations need {want[cell]}"
            else:
                kept[mine] = ran


def _that_ran(operations: Operations, rows: Ints, computed: Ints, needed: Bools, *, sends: bool) -> Bools | None:
    """Mark the messages that ran, of one worker, step and kind; None if they do not fit its computations.

    The n-th message belongs to the n-th computation of its direction. A first receive may be absent.
    """
    ran = np.zeros(len(rows), dtype=bool)
    if not needed.any():
        return ran
    if sends:
        possible = operations.end_ns[rows] >= operations.end_ns[computed].min() - NEAR_NS
    else:
        possible = operations.start_ns[rows] <= operations.start_ns[computed].max() + NEAR_NS
    skipped = len(computed) - int(possible.sum())
    if skipped not in ((0,) if sends else (0, 1)) or needed[:skipped].any():
        return None
    ran[possible] = needed[skipped:]
    return ran


def _unpaired(operations: Operations) -> Iterator[tuple[int, str]]:
    """Yield the steps with a send without a receive, or a receive without a send."""
    stages = operations.num_stages
    for send, receive in PAIRS.items():
        sides = []
        for kind in (send, receive):
            rows = operations.only(operations.are(kind))
            sender = rows.stage if kind is send else (rows.stage + MESSAGES[kind][1]) % stages
            found, count = np.unique(np.stack([rows.step, rows.dp_rank, sender], axis=1), axis=0, return_counts=True)
            sides.append({tuple(key): number for key, number in zip(found.tolist(), count.tolist(), strict=True)})
        sent, received = sides
        for key in sorted(sent.keys() | received.keys()):
            if sent.get(key, 0) != received.get(key, 0):
                step, dp_rank, stage = key
                target = (stage + MESSAGES[send][1]) % stages
                yield (
                    step,
                    f"dp_rank {dp_rank} has {sent.get(key, 0)} rows of {send} in stage {stage}, and "
                    f"{received.get(key, 0)} of {receive} in stage {target}",
                )


def _incomplete_collectives(operations: Operations) -> Iterator[tuple[int, str]]:
    """Yield the steps in which a member of a group lacks a collective."""
    replicas, stages = operations.num_replicas, operations.num_stages
    for kind in (*OF_STAGE, OperationKind.CLIP):
        rows = operations.only(operations.are(kind))
        keys, count = np.unique(_step_and_rank(rows, rows.stage), axis=0, return_counts=True)
        by_group: dict[tuple[int, int], list[int]] = {}
        for (step, _, stage), number in zip(keys.tolist(), count.tolist(), strict=True):
            group = -1 if kind is OperationKind.CLIP else stage
            by_group.setdefault((step, group), []).append(number)
        size = replicas * stages if kind is OperationKind.CLIP else replicas
        for (step, group), counts in sorted(by_group.items()):
            if len(counts) != size or len(set(counts)) > 1:
                where = "of the job" if group < 0 else f"of stage {group}"
                yield step, f"not all ranks {where} have the same number of rows of {kind}"


def _step_and_rank(operations: Operations, *more: Ints) -> Ints:
    return np.stack([operations.step, operations.rank, *more], axis=1)
