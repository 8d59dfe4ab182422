"""Random programs, which every invariant of the ledger holds for."""

from collections.abc import Callable, Sequence
from functools import partial

from hypothesis import strategies as st

from tests.virtual_gpu.actions import (
    US,
    Action,
    Clock,
    Group,
    Launch,
    Meaning,
    Program,
    Range,
    RecordEvent,
    Sleep,
    Synchronize,
    WaitEvent,
    Work,
    annotated,
    backward,
    collective,
    copy,
    evaluate,
    fill,
    forward,
    graph,
    item,
    next_batch,
    operator,
    optimizer,
    recompute,
    sleep,
    step,
)

STREAMS = (7, 20)
COMMUNICATION_STREAMS = (40, 41)
MAX_STEPS = 3
GROUPS = ("default_pg", "dp")

microseconds = st.integers(1, 40)
"""Short enough that begins and ends often coincide."""
odd_ns = st.integers(1_000, 40_000)
Body = st.SearchStrategy[tuple[Action, ...]]


def _kernel(ns: int, stream: int) -> Action:
    return Launch(works=(Work(name="gemm", duration_ns=ns, stream=stream),))


streams = st.sampled_from(STREAMS)
device_work: st.SearchStrategy[Action] = st.one_of(
    st.builds(_kernel, odd_ns, streams),
    st.builds(lambda us, stream, blocking: copy(us, stream, blocking=blocking), microseconds, streams, st.booleans()),
    st.builds(fill, microseconds, streams),
    st.builds(graph, microseconds, microseconds),
    st.builds(item, microseconds),
)
waiting: st.SearchStrategy[Action] = st.one_of(
    st.builds(sleep, microseconds),
    st.builds(lambda ns: Sleep(ns=ns), odd_ns),
    st.builds(lambda stream: Synchronize(stream=stream), st.one_of(st.none(), streams)),
)


def _between(events: tuple[str, int, int]) -> tuple[Action, ...]:
    name, stream, on = events
    return RecordEvent(event=name, stream=stream), WaitEvent(event=name, stream=on)


ordering = st.builds(
    _between,
    st.tuples(st.sampled_from("abc"), st.sampled_from(STREAMS + COMMUNICATION_STREAMS), streams),
)
loose: Body = st.lists(st.one_of(device_work, waiting), min_size=1, max_size=4).map(tuple)


def _collector(*body: Action) -> Range:
    return Range(name="<built-in function collect>", category="python_function", body=body, meaning=Meaning.GC)


PHASES = (
    forward,
    partial(forward, name="## forward ##"),
    partial(operator, sequence=3),
    operator,
    optimizer,
    partial(annotated, "## zero_grad ##", Meaning.OPTIMIZER),
)
EVALUATIONS = (partial(annotated, "validation", Meaning.EVALUATION),)
ACTIVITIES = (
    next_batch,
    partial(annotated, "## checkpoint ##", Meaning.CHECKPOINT_STALL),
    partial(annotated, "gc", Meaning.GC),
    _collector,
    partial(annotated, "compile", Meaning.COMPILE),
    partial(annotated, "my part", None),
)
"""None of them is a phase, so they can be in a backward."""


Makers = Sequence[Callable[..., Action]]


def _around(body: Body, makers: Makers) -> st.SearchStrategy[Action]:
    """A range around a body."""
    return st.builds(lambda make, inside: make(*inside), st.sampled_from(makers), body)


def _in_backward(body: Body) -> st.SearchStrategy[Action]:
    node = st.builds(lambda inside: evaluate("MmBackward0", *inside), body)
    again = st.builds(
        lambda before, inside, forward_thread: evaluate(
            "CheckpointFunctionBackward", *before, recompute(*inside, forward_thread=forward_thread)
        ),
        body,
        body,
        st.sampled_from((0, None)),
    )
    return st.lists(st.one_of(node, again), min_size=1, max_size=2).map(lambda nodes: backward(*nodes))


def _some(strategy: st.SearchStrategy[Action]) -> Body:
    return st.lists(strategy, min_size=1, max_size=2).map(tuple)


def _ranges(makers: Makers) -> st.SearchStrategy[Action]:
    return st.one_of(
        _around(loose, makers),
        _around(_some(_around(loose, makers)), makers),
        _in_backward(loose),
        _in_backward(_some(_around(loose, (*ACTIVITIES, optimizer)))),
    )


RANGES = {
    True: _ranges((*ACTIVITIES, *PHASES, *EVALUATIONS)),
    False: _ranges((*ACTIVITIES, *PHASES)),
}
"""True: the program may evaluate -> ranges."""


@st.composite
def programs(draw: st.DrawFn, *, max_ranks: int = 3, evaluates: bool = True) -> Program:
    """Ranks with work of their own between collectives that all of them join in the same order."""
    num_ranks, num_steps = draw(st.integers(1, max_ranks)), draw(st.integers(1, MAX_STEPS))
    groups = [
        Group(name=str(number), ranks=tuple(range(num_ranks)), description=description)
        for number, description in enumerate(GROUPS)
    ]
    bodies: list[list[Action]] = [[] for _ in range(num_ranks)]
    for number in range(1, num_steps + 1):
        met = draw(st.lists(st.tuples(st.sampled_from(groups), microseconds), max_size=3)) if num_ranks > 1 else []
        for body in bodies:
            body.append(step(number, *_one_step(draw, met, RANGES[evaluates])))
    return Program(
        ranks=tuple(map(tuple, bodies)),
        latency_ns=draw(st.sampled_from((500, 3 * US, 7_001))),
        gap_ns=draw(st.sampled_from((0, 400))),
        wake_ns=draw(st.sampled_from((0, 2_500))),
        clocks=(Clock(), draw(st.builds(_clock, st.integers(0, 10**9), st.integers(0, 200_000)))),
        untraced=draw(st.sampled_from((frozenset(), frozenset(range(1, num_ranks))))),
    )


def _clock(offset_ns: int, drift_ppb: int) -> Clock:
    return Clock(offset_ns=offset_ns, drift_ppb=drift_ppb)


def _one_step(draw: st.DrawFn, met: list[tuple[Group, int]], ranges: st.SearchStrategy[Action]) -> list[Action]:
    body = [_kernel(draw(odd_ns), draw(streams))]
    for group, us in [*met, (None, 0)]:
        body += draw(st.lists(st.one_of(device_work, waiting, ranges), max_size=3))
        body += draw(st.one_of(st.just(()), ordering))
        if group is not None:
            # NCCL needs the group's kernels on one stream: another order on some rank would never end.
            body.append(collective(group, us, stream=COMMUNICATION_STREAMS[int(group.name)]))
    return body
