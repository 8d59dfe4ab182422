"""Native kernels before every `c10d` operator: they write the records that `Collectives` writes, without Python.

Python answers what happens once per thread, per segment or per group (`_answer`). The end of a collective on gloo is
the instant at which its work's future is complete. Other works end at their wait.
"""

import ctypes
import logging
import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

from traincope.native.cached import VARIABLE, Use, resolved_use
from traincope.native.installed import find_library, load
from traincope.native.library import MAX_OPERATIONS, MAX_PLACES, NO_STALL, NOWHERE, Cell, Library
from traincope.record.communication.groups import Groups, KnownGroup
from traincope.record.communication.missed_collectives import INCOMPARABLE_OPERATORS, CallCounts
from traincope.record.communication.operations import OPERATIONS, Operation, Output
from traincope.record.instrumentation.dispatcher import GROUP_TYPE, KEY, is_from
from traincope.record.instrumentation.guard import guard, trial_ns
from traincope.record.instrumentation.torch_private import (
    async_position,
    cpu_backend,
    has_kernel,
    hide_from_compiler,
    num_arguments,
)
from traincope.record.session.recorder import MAX_WRITERS, Recorder

logger = logging.getLogger(__name__)

PROBE, ON = "native", "on"
ASK = f"ask(int question, {GROUP_TYPE}? group, int address) -> int"
FOR_PLACE = 0
"""The question for a place with room for a record. The other one is for the number of a group."""
FILE = "traincope/native/dispatch/library.cpp"
"""The place of our kernels, as torch reports it."""
FILLS = {None: 0, Output.TENSOR: 1, Output.LIST: 2}
IN_PRE_FORWARD = int(Cell.IN_PRE_FORWARD)
AS_COLLECTIVE, AS_MESSAGE, NOT_COMPARABLE = range(3)

_kept: list[Any] = []
"""The operator that native code asks by. It stays registered: another thread may be about to ask."""
_active: "NativeKernels | None" = None


def native_kernels(recorder: Recorder, groups: Groups) -> "NativeKernels | None":
    """Install the native kernels, or return None: the Python hooks record. The probe `native` has the state."""
    try:
        kernels = NativeKernels(_library(), recorder, groups)
        kernels.install()
    except _Unavailable as reason:
        recorder.probes[PROBE] = f"off: {reason}"
        if resolved_use() is Use.REQUIRE:
            logger.warning("traincope: the Python hooks record collectives, not the native recorder: %s", reason)
        return None
    recorder.probes[PROBE] = ON
    return kernels


class _Unavailable(Exception):
    """The reason why the native recorder does not record."""


def _library() -> Library:
    """Find and load the library. Raises _Unavailable."""
    if resolved_use() is Use.OFF:
        raise _Unavailable(f"{VARIABLE}={Use.OFF}")
    found = find_library()
    if found.path is None:
        raise _Unavailable(found.why)
    try:
        library = load(found.path)
    except (OSError, AttributeError) as error:
        raise _Unavailable(f"{found.path} cannot be loaded: {error}") from error
    _register()
    if not library.prepare():
        raise _Unavailable("torch does not show the operator that asks Python")
    return library


class NativeKernels:
    """The kernels of one run."""

    was_withdrawn = False
    left_out: tuple[str, ...] = ()

    def __init__(self, library: Library, recorder: Recorder, groups: Groups) -> None:
        self._library, self._recorder, self._groups = library, recorder, groups
        self._places = recorder.share_places(library)
        self._number_of = {id(writer): number for number, writer in enumerate(recorder.writers)}
        self._traits: dict[int, tuple[int, bool, bool]] = {}
        """Address of each group that the library knows -> number, reducer, whether it shows the next call too."""
        self._references: dict[int, weakref.ref[Any]] = {}
        self._installed = False
        self._dropped = 0
        self._before = {cell: library.cells[cell] for cell in (Cell.COLLECTIVES, Cell.MESSAGES, Cell.INCOMPARABLE)}
        self.answer = guard(self._answer)
        self.begin_wait, self.end_wait, self.end_raised = library.begin_wait, library.end_wait, library.end_raised
        library.begin_run()

    def install(self) -> None:
        """Register the kernels. Raises _Unavailable if another kernel is already at the key, or torch refuses."""
        global _active
        names = [f"c10d::{operation.op}" for operation in OPERATIONS]
        for name in (*names, "_c10d_functional::wait_tensor"):
            if has_kernel(name, KEY):
                raise _Unavailable(f"another kernel precedes {name} already")
        for number, operation in enumerate(OPERATIONS):
            self._library.set_operation(number, self._described(operation))
        self._dropped = self._library.cells[Cell.DROPPED]
        self._recorder.shared.native_wait_ns = 2 * trial_ns(partial(self._library.next_offset, 0))
        encoded = [operation.op.encode() for operation in OPERATIONS]
        _active, self._installed = self, True
        if not self._library.install((ctypes.c_char_p * len(encoded))(*encoded), len(encoded)):
            self.remove()
            raise _Unavailable("torch refuses the native kernels")
        self._recorder.is_native, self._recorder.begin_phase_natively = True, self._library.begin_phase
        self._recorder.between_blocks(self._count_drops)

    def remove(self) -> None:
        """Restore the operators. A collective that is under way still ends in its record."""
        global _active
        if self._installed:
            self._installed = False
            self._library.remove()
            self._recorder.is_native, self._recorder.begin_phase_natively = False, None
            self._count_drops()
        if _active is self:
            _active = None

    def end_waits(self) -> int:
        """Forget the collectives that nothing has waited for. Returns the number that were too many."""
        return self._library.end_waits()

    def prepare(self, detailed: bool) -> None:
        """Hold no work between windows."""
        if not detailed:
            self._library.take_latest()

    @property
    def operators(self) -> list[str]:
        return [f"c10d::{operation.op}" for operation in OPERATIONS] if self._installed else []

    def hidden(self, operators: Iterable[str]) -> tuple[str, ...]:
        """Return those of `operators` that another kernel hides: ours is registered and not called any more."""
        registered = self.operators
        return tuple(name for name in operators if name in registered and not is_from(FILE, name))

    def count_calls(self, counts: CallCounts) -> None:
        """Add the calls since the last time."""
        now = {cell: self._library.cells[cell] for cell in self._before}
        collectives, messages, incomparable = (now[cell] - before for cell, before in self._before.items())
        self._before = now
        counts.add(collectives=collectives, messages=messages, incomparable=incomparable)

    def tell(self, group: Any, known: KnownGroup, address: int | None = None) -> None:
        """Tell the library a group's number and traits, if they are new. It forgets the group when that is gone."""
        address = self._library.value_of(group) if address is None else address
        traits = known.number, known.reducer, known.attempts_left > 0
        if self._traits.get(address) == traits:
            return
        ranks = (ctypes.c_int32 * len(known.ranks))(*known.ranks)
        number, reducer, asks = traits
        if self._library.set_group(address, number, ranks, len(ranks), _completes(group), reducer, asks):
            self._traits[address] = traits
            self._references[address] = weakref.ref(group, partial(self._forget, address))

    def _forget(self, address: int, _: object) -> None:
        self._traits.pop(address, None)
        self._references.pop(address, None)
        self._library.forget_group(address)

    def before_forward(self, inside: bool) -> None:
        """Note that DDP prepares a forward: it waits for its collectives until that is over."""
        self._library.cells[IN_PRE_FORWARD] = inside

    def end_reducer(self, *, until_first: bool, unless_waited: bool) -> bool:
        """Write the stall of DDP's collectives that only C++ waited for. Returns whether there were any."""
        ended = self._library.end_reducer(until_first, unless_waited, False)
        if ended < 0:
            ended = self._library.end_reducer(until_first, unless_waited, not self._make_room())
        return ended > 0

    def begin_stall(self, without_room: int) -> int:
        """Return the number of a wait's stall for which there was no room, or NO_STALL."""
        if not self._make_room():
            return NO_STALL
        return max(self._library.begin_stall(-without_room), NO_STALL)

    def _make_room(self) -> bool:
        """Let the calling thread's records go to its writer's segment. Returns whether there is room for one."""
        writer = self._recorder.threads.writer
        number = self._number_of.get(id(writer))
        if number is None or not writer.share(self._places[number]):
            return False
        self._library.bind(number)
        return True

    def _answer(self, question: int, group: Any, address: int) -> bool:
        if question == FOR_PLACE:
            return self._make_room()
        from torch.distributed import ProcessGroup

        unboxed = ProcessGroup.unbox(group)
        self.tell(unboxed, self._groups.find(unboxed), address)
        return address in self._traits

    def _count_drops(self) -> None:
        dropped = self._library.cells[Cell.DROPPED]
        self._recorder.shared.dropped += dropped - self._dropped
        self._dropped = dropped

    def _described(self, operation: Operation) -> Any:
        """The numbers of `Operation` in `native/dispatch/operations.h`."""
        shape, position = operation.message
        counted = AS_COLLECTIVE if operation.tag is None else AS_MESSAGE
        if operation.op in INCOMPARABLE_OPERATORS:
            counted = NOT_COMPARABLE
        places = (operation.peer, operation.tag, async_position(operation.op))
        fields = (
            self._recorder.names.intern(operation.name),
            num_arguments("c10d", operation.op),
            operation.group,
            *(NOWHERE if place is None else place for place in places),
            position,
            shape.value,
            FILLS[operation.fills],
            int(operation.blocking),
            counted,
        )
        return (ctypes.c_int32 * len(fields))(*fields)


def _completes(group: Any) -> bool:
    """Return whether the futures of the group's works are complete when its collectives are."""
    from torch import distributed

    gloo = getattr(distributed, "ProcessGroupGloo", None)
    return gloo is not None and isinstance(cpu_backend(group), gloo)


def _register() -> None:
    """Define the operator by which native code asks, once per process."""
    if _kept:
        return
    from torch.library import Library as Operators

    operators = Operators("traincope", "FRAGMENT")
    operators.define(ASK)
    hide_from_compiler(_ask, calls_too=True)
    operators.impl("ask", _ask, "CPU")
    _kept.append(operators)


def _ask(question: int, group: Any, address: int) -> int:
    kernels = _active
    return int(kernels is not None and bool(kernels.answer(question, group, address)))


if len(OPERATIONS) > MAX_OPERATIONS or MAX_WRITERS > MAX_PLACES:
    raise AssertionError("the library has too few operators or places")
