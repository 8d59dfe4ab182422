"""Hook on optimizers: checksums of what they update, in every n-th step, right after their step and before the next.

After the step, replicas on different ranks must have the same bytes. Until the next step nothing may change them. The
analysis compares (`analysis.faults.anomalies.corruption`); the ranks exchange nothing. Checksums are computed in the
order of the training's own work on the device, and are copied from a GPU without waiting for it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from threading import get_ident
from time import monotonic_ns
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from traincope.arrays import Ints
from traincope.record.compute.phases import Phases
from traincope.record.instrumentation.guard import guard
from traincope.record.session.recorder import Recorder
from traincope.record.state.check_file import CheckFile
from traincope.record.state.checksum import Checksums
from traincope.record.state.host_copy import HostCopy, is_capturing
from traincope.record.state.replicas import known_parameters
from traincope.record.state.tensors import LocalTensor, state_tensors
from traincope.store.job.state_checks import HeldCheck, Layout, StateCheck, flipped_bit

NOT_REQUESTED = "off: nothing to watch: corruption_check_steps is not set"
MAX_UNDER_WAY = 64
"""Maximum number of checks that are still on their way from a device. Further ones are left out."""


class _Sums:
    """Checksums of tensors, on their way to the host."""

    def __init__(self, checksums: Checksums, tensors: Sequence[LocalTensor]) -> None:
        import torch

        self._num_tensors = len(tensors)
        self._parts: list[tuple[list[int], HostCopy]] = []
        """For each device: positions, and their sums."""
        positions: dict[Any, list[int]] = {}
        for at, tensor in enumerate(tensors):
            if tensor.local is not None and tensor.local.numel():
                positions.setdefault(tensor.local.device, []).append(at)
        with torch.no_grad():
            for ats in positions.values():
                self._parts.append((ats, HostCopy(torch.stack([checksums.of(tensors[at].local) for at in ats]))))

    @property
    def arrived(self) -> bool:
        return all(copy.arrived for _, copy in self._parts)

    def values(self) -> Ints:
        """The weighted and the plain sums, int64 of shape (tensors, 2)."""
        values = np.zeros((self._num_tensors, 2), dtype=np.int64)
        for ats, copy in self._parts:
            values[ats] = copy.tensor.numpy()
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """A check after an optimizer's step."""

    step: int
    inner: tuple[Any, ...]
    """Optimizers that stepped inside of this one's step."""
    layout: Layout
    identities: tuple[tuple[int, int, int], ...]
    sums: _Sums
    at_ns: int


@dataclass(slots=True)
class _Known:
    """The state of the checks of one optimizer."""

    number: int
    taken: _Taken | None = None
    """The check that its next step is compared with."""
    last_step: int = -1


class StateChecks:
    """Hook on optimizers, through `Phases`."""

    name = "corruption_checks"
    level = 0

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._checksums = Checksums()
        self._optimizers: WeakKeyDictionary[Any, _Known] = WeakKeyDictionary()
        self._numbers = count()
        self._inside: list[Any] = []
        """Optimizers that are stepping, the outermost first, and those that have stepped inside of it."""
        self._under_way: deque[tuple[Callable[[], bool], Callable[[], None]]] = deque()
        """For each check: whether it has arrived, and what writes it."""
        self._file: CheckFile | None = None

    def install(self, recorder: Recorder) -> None:
        self._recorder, self._every = recorder, recorder.corruption_check_steps
        if self._every is None:
            recorder.probes[self.name] = NOT_REQUESTED
            return
        self._file = CheckFile(lambda: recorder.directory)
        self._check, self._compare = guard(self._take), guard(self._compare_with)
        self._phases.optimizer_steps, self._roots = self, self._phases.collect_roots()
        recorder.between_steps(self._write_arrived)

    def remove(self) -> None:
        self._phases.optimizer_steps = None
        self._optimizers.clear()
        self._inside.clear()
        if self._file is not None:
            try:
                self._write_arrived()
            finally:  # a broken device raises
                self._file.close()
                self._file = None
                self._under_way.clear()

    def begins(self, optimizer: Any) -> None:
        """Compare the state with that after the optimizer's last step, if that step was checked."""
        if get_ident() != self._recorder.main_thread:
            return
        if any(other is optimizer for other in self._inside):
            self._inside.clear()  # the last step raised
        known = None if self._inside else self._optimizers.get(optimizer)
        self._inside.append(optimizer)
        if known is not None and known.taken is not None:
            taken, known.taken = known.taken, None
            self._compare(optimizer, taken)

    def ended(self, optimizer: Any) -> None:
        """Take a check, if the step is due and no other optimizer's step encloses this one."""
        if not self._inside or self._inside[0] is not optimizer or get_ident() != self._recorder.main_thread:
            return
        members, self._inside = self._inside, []
        step = self._recorder.shared.step
        known = self._optimizers.get(optimizer)
        if known is None:
            known = self._optimizers[optimizer] = _Known(next(self._numbers))
        if self._every is not None and step >= 0 and step % self._every == 0 and step != known.last_step:
            known.last_step = step
            self._check(members, known, step)

    def _take(self, members: Sequence[Any], known: _Known, step: int) -> None:
        if is_capturing() or len(self._under_way) >= MAX_UNDER_WAY:
            return
        begun_ns = monotonic_ns()
        tensors = self._tensors(members)
        layout = Layout(optimizer=known.number, tensors=tuple(tensor.described for tensor in tensors))
        sums, identities = _Sums(self._checksums, tensors), tuple(tensor.identity for tensor in tensors)
        ended_ns = monotonic_ns()
        inner = tuple(members[1:])
        known.taken = _Taken(step=step, inner=inner, layout=layout, identities=identities, sums=sums, at_ns=ended_ns)

        def write() -> None:
            weighted = sums.values()[:, 0]
            self._write(
                StateCheck(step=step, at_ns=ended_ns, cost_ns=ended_ns - begun_ns, layout=layout, sums=weighted)
            )

        self._later(lambda: sums.arrived, write)

    def _compare_with(self, optimizer: Any, taken: _Taken) -> None:
        if is_capturing() or len(self._under_way) >= MAX_UNDER_WAY:
            return
        begun_ns = monotonic_ns()
        tensors = self._tensors([optimizer, *taken.inner])
        if tuple(tensor.described for tensor in tensors) != taken.layout.tensors:
            return  # the training has added or removed tensors
        now = _Sums(self._checksums, tensors)
        ended_ns = monotonic_ns()
        bits = [8 * (tensor.local.element_size() if tensor.local is not None else 1) for tensor in tensors]
        same = [tensor.identity == before for tensor, before in zip(tensors, taken.identities, strict=True)]

        def write() -> None:
            differences = now.values() - taken.sums.values()
            changed = np.flatnonzero(differences.any(axis=1)).tolist()
            flipped = {at: flipped_bit(*map(int, differences[at])) for at in changed if same[at]}
            self._write(
                HeldCheck(
                    step=taken.step,
                    good_ns=taken.at_ns,
                    at_ns=ended_ns,
                    cost_ns=ended_ns - begun_ns,
                    layout=taken.layout,
                    changed={at: None if bit is None else bit % bits[at] for at, bit in flipped.items()},
                    explained=tuple(at for at in changed if not same[at]),
                )
            )

        self._later(lambda: now.arrived and taken.sums.arrived, write)

    def _tensors(self, members: Sequence[Any]) -> list[LocalTensor]:
        return [*state_tensors(members, known_parameters(self._roots))]

    def _later(self, arrived: Callable[[], bool], write: Callable[[], None]) -> None:
        self._under_way.append((arrived, write))
        self._write_arrived()

    def _write_arrived(self) -> None:
        """Write what has arrived, in order. During a capture nothing is queried: that would break the capture."""
        while self._under_way and not is_capturing() and self._under_way[0][0]():
            _, write = self._under_way.popleft()
            write()

    def _write(self, check: StateCheck | HeldCheck) -> None:
        if self._file is not None:
            self._file.write(check)
