"""Ledger terms in which a host delays its rank: what happens in them, and the advice, by what the record shows."""

from collections import Counter
from collections.abc import Collection

import numpy as np

from traincope.analysis.confidence import MEDIUM
from traincope.analysis.faults.slow_code import python_in_compute
from traincope.analysis.ledger.ledger import Ledger
from traincope.analysis.verdict.findings import MIN_SHARE, Finding, FindingKind, percent
from traincope.analysis.verdict.losses.copies import ANY_COPY, copy_advice
from traincope.events import BATCHES_END, LOADER_WITHOUT_WORKERS, NO_STEP, Kind, Phase
from traincope.store.job.attempts import LOADING, SAVING, SAVING_LATER
from traincope.timeline import LedgerClock, RankTimeline, Timeline

OTHER_PROCESS = (
    "Do the work of that thread in another process (multiprocessing; for asynchronous checkpoints "
    "AsyncCheckpointerType.PROCESS), or in code that releases the GIL"
)
HOST_LOSSES = {
    "checkpoint_stall": ("checkpoints stop training", "Save checkpoints asynchronously, or less often."),
    "gc": ("garbage collection stops the training thread", "Call gc.disable(), and gc.collect() between steps."),
    "compile": ("compilation stops training", "Keep tensor shapes constant, to compile only once."),
    "sync": ("the host waits for the device", "Read values from the device (.item(), print) less often."),
    "launch_gap": (
        "the GPUs wait for the host to launch their next kernel",
        "Launch fewer and larger kernels ({how}), and do less between launches.",
    ),
    "exposed_memory": ("the GPUs only copy memory", ANY_COPY),
}
"""Term -> (description, advice), for terms without further analysis. `{how}`: see `fewer_kernels`."""
PARTLY_REMOVED = ("sync", "launch_gap", "exposed_memory")
"""Terms that the advice does not remove as a whole: the device's work, launches and copies remain."""
SAVED_LATER = (
    "Saves run in the background already, and only their start stops training: save less often, or copy less there "
    "(each rank its own shard, into pinned memory that is kept between saves)."
)
MANY_ITERATORS, MOST = 8, 0.8
"""Iterators, and their share of all batches, from which a loader's iterator is made anew in each step."""
MADE_HERE = "each batch is made in the training process (num_workers=0)"
GIVE_WORKERS = (
    "Give the DataLoader workers (num_workers), so that they make batches during the steps, or tokenize and decode the "
    "data before training"
)
MORE_WORKERS = "Give the DataLoader more workers or a deeper prefetch, or preprocess the data before training"
FULL_HOST = "the cores of its host are busy, {busy:.1f} of {cores} with the loader's workers, so more would not help"
CHEAPER_BATCHES = (
    "Make batches with less work: decode and tokenize the data before training, and let each worker use one thread "
    "(torch.set_num_threads(1) in the dataset, OMP_NUM_THREADS=1). Or give the job more cores"
)
MADE_ANEW = "the iterator of the DataLoader is made anew in each step{workers}"
WITH_WORKERS = ", and its workers with it"
ONE_ITERATOR = (
    "Make one iterator per epoch: for batch in loader, or iterator = iter(loader) before the loop and next(iterator) "
    "in it, with the next one at StopIteration, after sampler.set_epoch(epoch)"
)
DO_LESS = "Do less of that, do it less often, or in another thread or process; traincope.span() around it names it"
LOADED = "Load checkpoints before the first step, each rank its own shard, from a local disk."


def python_work(timeline: Timeline, ledger: Ledger) -> Finding | None:
    """Return the finding about Python's own modules, or sleep, in the compute of all ranks: only their stacks show it.

    None on the GPUs' clock: there the host runs ahead, and what it does may cost nothing.
    """
    found = [python_in_compute(rank) for rank in timeline.run.ranks]
    known = [each for each in found if each is not None]
    if ledger.clock is LedgerClock.DEVICE or not known or len(known) < len(found):
        return None
    line, share = min(known, key=lambda each: each[1])
    if share < MIN_SHARE or any(each.site != line.site for each, _ in known):
        return None
    return Finding(
        kind=FindingKind.UNATTRIBUTED,
        confidence=MEDIUM,
        evidence=(
            f"{percent(share)} of step time is Python's own work, or sleep, within forward, backward or optimizer: the "
            f"stacks of all ranks show it in {line.called} at {line.site} ({line.function})"
        ),
        advice=f"{DO_LESS}.",
        estimated_gain_ratio=share,
        gain_at_most=True,
    )


def host_advice(term: str, timeline: Timeline, ranks: Collection[int] = ()) -> str:
    """Return the advice for the loss in a term. `ranks`: those that lose; empty for all."""
    if term == "checkpoint_stall":
        return _checkpoint_advice([rank for rank in timeline.ranks if not ranks or rank.rank in ranks])
    if term == "exposed_memory":
        return copy_advice(timeline, ranks)
    return HOST_LOSSES[term][1].format(how=fewer_kernels(timeline))


def makes_iterators(ranks: Collection[RankTimeline]) -> bool:
    """Return whether each of these ranks takes about one batch of each iterator of a loader, and then leaves it."""
    for rank in ranks:
        batches = rank.main[rank.main["kind"] == Kind.BATCH]
        ends = [number for number, name in enumerate(rank.names) if name == BATCHES_END]
        is_end = np.isin(batches["name"], ends)
        num_left = len(np.unique(batches["group"])) - np.count_nonzero(is_end)
        if num_left < max(MANY_ITERATORS, MOST * np.count_nonzero(~is_end)):
            return False
    return bool(ranks)


def loads_itself(ranks: Collection[RankTimeline]) -> bool:
    """Return whether most of these ranks' data wait is in loaders without workers: they make batches themselves."""
    waited_ns: Counter[bool] = Counter()
    for rank in ranks:
        waits = rank.closed(rank.main[(rank.main["kind"] == Kind.PHASE) & (rank.main["phase"] == Phase.DATA_WAIT)])
        for name in np.unique(waits["name"]).tolist():
            chosen = waits[waits["name"] == name]
            lasted_ns = int((chosen["end_ns"] - chosen["start_ns"]).sum())
            waited_ns[rank.name(name) == LOADER_WITHOUT_WORKERS] += lasted_ns
    return waited_ns[True] > waited_ns[False]


def fewer_kernels(timeline: Timeline) -> str:
    """Return the ways to fewer kernels that the record does not show in use."""
    compiled = any(
        (records["phase"] == Phase.COMPILE).any() for rank in timeline.ranks for records in rank.threads.values()
    )
    ways = ("CUDA graphs", "larger batches where memory allows")
    return ", ".join(ways if compiled else ("torch.compile", *ways))


def _checkpoint_advice(ranks: Collection[RankTimeline]) -> str:
    """A save in the background is advised unless the saves run there already: on another thread, or by `async_save`."""
    return {
        LOADING: LOADED,
        SAVING_LATER: SAVED_LATER,
    }.get(checkpoint_action(ranks), HOST_LOSSES["checkpoint_stall"][1])


def checkpoint_action(ranks: Collection[RankTimeline]) -> str:
    """Return the action that stops these ranks longest; SAVING_LATER if their saves run in the background too."""
    stopped_ns: Counter[str] = Counter()
    elsewhere = False
    for rank in ranks:
        for records in rank.threads.values():
            stalls = records[(records["kind"] == Kind.PHASE) & (records["phase"] == Phase.CHECKPOINT_STALL)]
            actions = [rank.name(int(name)).partition(" ")[0] for name in stalls["name"]]
            if records is not rank.main:
                elsewhere |= SAVING in actions
                continue
            closed = rank.closed(stalls)
            for action, step, start_ns, end_ns in zip(
                actions, stalls["step"], closed["start_ns"], closed["end_ns"], strict=True
            ):
                stopped_ns[action] += 0 if step == NO_STEP else int(end_ns - start_ns)
    longest = stopped_ns.most_common(1)[0][0] if stopped_ns else SAVING
    return SAVING_LATER if elsewhere and longest != LOADING else longest
