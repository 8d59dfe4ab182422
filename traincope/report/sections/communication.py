"""Communication: each operation on each mesh axis, its call sites, waits by group, and bandwidth by message size."""

from collections.abc import Iterator, Sequence

from traincope.analysis import AxisOperation, CallSite, all_calls, without_places
from traincope.analysis.attribution.terms import exposed_transfer
from traincope.analysis.communication.call_sites import NO_PLACE
from traincope.report.sections.counted_steps import sampled
from traincope.report.sections.forms import across_hosts
from traincope.report.sections.section import Drawing, Lines, On, Part, Section, Table, Term, Words, number, rows
from traincope.report.sections.source import Source
from traincope.units import count, duration, gigabytes_per_second, milliseconds, numbers, size

NAME, TITLE = "communication", "Communication"
ALONE = "The run has one rank, so there is no communication."
IMPORTED = "The imported kernel traces have no steps with communication."
NO_CALL = "No collective was recorded in a counted step. `traincope doctor RUN` lists the probes that were on."
NO_WAITS = "No rank waited for another rank in any group."
MIN_SHARE = 0.05
"""Share of an operation's transfer time above which contention is named. JSON has every axis."""
MAX_SITES = 12
"""Call sites in a table; the figure has more."""


def communication(source: Source) -> Section:
    operations, ledger = source.analysis.comm, source.document["ledger"]
    if not operations or ledger is None:
        return Section(name=NAME, title=TITLE, missing=_why_none(source))
    per_step, apart = ledger["rank_steps"], across_hosts(source.analysis.timeline.clocks)
    calls = all_calls(source.analysis.calls) or without_places(operations)
    return Section(
        name=NAME,
        title=TITLE,
        lead=f"means per rank and step{sampled(ledger)}; times in ms, bus bandwidth in GB/s",
        parts=(
            Drawing(
                figure="icicle",
                of=(calls, per_step),
                caption="Axis, operation, call site, and its wait, exposed and hidden transfer; click a box to zoom in",
            ),
            *(_operations(operations, on=on) for on in (On.CONSOLE, On.SCREEN)),
            Lines((*([f"waits and transfers{apart}"] if apart else []), *_notes(operations, per_step))),
            *_sites(calls, per_step),
            *_waits(source),
            *_sizes(operations),
        ),
    )


def _why_none(source: Source) -> str:
    run = source.document["run"]
    return ALONE if run["world_size"] == 1 else IMPORTED if run["imported"] else NO_CALL


def _operations(operations: Sequence[AxisOperation], *, on: On) -> Table:
    """On a console axis and operation share the column that a narrow one shortens."""
    names = ("axis, operation",) if on is On.CONSOLE else ("axis", "operation")
    return Table(
        caption="Operations by axis",
        heads=(*names, "count", "bytes", "transfer", "wait", "exposed", "GB/s"),
        rows=rows(_operation(at, operation, on=on) for at, operation in enumerate(operations)),
        left=frozenset(range(len(names))),
        on=on,
    )


def _operation(at: int, operation: AxisOperation, *, on: On) -> Iterator[Words]:
    per, axis, name = ("ledger", "rank_steps"), operation.axis, operation.operation
    yield from (f"{axis} {name}",) if on is On.CONSOLE else (Term(exposed_transfer(axis), axis), name)
    yield number("comm", at, "count", form="mean", per=per)
    yield number("comm", at, "bytes", form="size", per=per)
    for key in ("transfer_ns", "wait_ns", "exposed_ns"):
        yield number("comm", at, key, form="milliseconds", per=per)
    yield number("comm", at, "bus_bandwidth_bytes_per_second", form="gigabytes")


def _notes(operations: Sequence[AxisOperation], per_step: int) -> Iterator[str]:
    """Operations with message imbalance or contention."""
    for operation in operations:
        name, imbalance = f"{operation.axis} {operation.operation}", operation.message_imbalance
        if imbalance is not None:
            senders = f"{numbers(imbalance.ranks, 'rank')} {'sends' if len(imbalance.ranks) == 1 else 'send'}"
            takes = milliseconds(imbalance.cost_ns / per_step)
            yield f"{name}: {senders} {imbalance.ratio:.2f} x the mean; excess {takes} ms per step"
        for contention in operation.contention:
            if (contention.extra_ns or 0) >= MIN_SHARE * operation.transfer_ns > 0:
                extra = milliseconds((contention.extra_ns or 0) / per_step)
                compared = f"{contention.compared:,} of {contention.count:,} compared"
                yield f"{name}: contention with {contention.axis} adds {extra} ms per step ({compared})"


def _sites(calls: Sequence[CallSite], per_step: int) -> Iterator[Part]:
    """The call sites with the most exposed time, where one is known."""
    if not any(call.place for call in calls):
        return
    most = sorted(calls, key=lambda call: (-call.exposed_ns, -call.transfer_ns))[:MAX_SITES]
    yield Table(
        caption="Call sites with the most exposed time",
        heads=("call site", "operation", "wait", "exposed", "transfer"),
        rows=rows(_site(call, per_step) for call in most),
        left=frozenset({0, 1}),
        on=On.SCREEN,
    )


def _site(call: CallSite, per_step: int) -> Iterator[str]:
    yield call.place or NO_PLACE
    yield f"{call.axis} {call.operation}"
    for ns in (call.known_wait_ns, call.exposed_ns, call.transfer_ns):
        yield milliseconds(None if ns is None else ns / per_step)


def _waits(source: Source) -> Iterator[Part]:
    waits = source.analysis.group_waits
    if not waits:
        yield Lines((NO_WAITS,), on=On.SCREEN)
        return
    steps = max(rank.num_counted for rank in source.analysis.ledger.ranks)
    caption = "Wait of each rank in each group until its last member arrived, ms per step"
    yield Drawing(figure="waits", of=(waits, max(steps, 1)), caption=caption)


def _sizes(operations: Sequence[AxisOperation]) -> Iterator[Part]:
    sizes = [(operation, messages) for operation in operations for messages in operation.sizes]
    if sizes:
        yield Table(
            caption="By message size, sums over all ranks and counted steps; a row: up to its size, over half of it",
            heads=("axis", "operation", "size up to", "count", "transfer", "mean transfer", "GB/s"),
            rows=rows(
                (
                    operation.axis,
                    operation.operation,
                    size(messages.max_bytes),
                    count(messages.count),
                    duration(messages.transfer_ns),
                    duration(messages.transfer_ns / messages.count),
                    gigabytes_per_second(messages.bus_bandwidth),
                )
                for operation, messages in sizes
            ),
            left=frozenset({0, 1}),
            on=On.SCREEN,
        )
