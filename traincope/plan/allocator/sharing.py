"""Parameters and gradients that a rank holds: whole ones, DDP's buckets, or FSDP's units."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from traincope.plan.allocator.tape import Storage, Tape

ROOT = "root"
"""FSDP's unit of everything outside the blocks."""


class Sharing(Protocol):
    """Moments of a unit in forward and backward at which storage is taken or freed."""

    @property
    def held_bytes(self) -> int:
        """Bytes from step to step: parameters, AdamW's two numbers per parameter, and buckets of gradients."""

    def before_forward(self, unit: str) -> None: ...
    def after_forward(self, unit: str) -> None: ...
    def before_backward(self, unit: str) -> None: ...
    def after_backward(self, unit: str) -> None: ...

    def receive(self, unit: str, gradient: Storage) -> None:
        """Take over the gradient of a parameter of a unit."""

    def begin(self, *, first: bool, last: bool) -> None:
        """Begin a microbatch."""


def greedy_shares(sizes: Sequence[int], *, ranks: int) -> list[int]:
    """Bytes of each rank's parameters under torch's ZeroRedundancyOptimizer.

    It gives each parameter, the largest first, to the rank that has least (`_partition_parameters`).
    """
    shares = [0] * ranks
    for size in sorted(sizes, reverse=True):
        shares[shares.index(min(shares))] += size
    return shares


@dataclass(slots=True, kw_only=True)
class Whole:
    """Whole parameters. Gradients are kept from microbatch to microbatch, or copied into DDP's buckets."""

    tape: Tape
    parameters: Sequence[int]
    bucketed: bool = False
    optimizer_ranks: int = 1
    """Ranks that share the optimizer state (ZeRO stage 1)."""
    _first: bool = True

    @property
    def held_bytes(self) -> int:
        states = 2 * max(greedy_shares(self.parameters, ranks=self.optimizer_ranks))
        return sum(self.parameters) * (2 if self.bucketed else 1) + states

    def before_forward(self, unit: str) -> None: ...
    def after_forward(self, unit: str) -> None: ...
    def before_backward(self, unit: str) -> None: ...
    def after_backward(self, unit: str) -> None: ...

    def receive(self, unit: str, gradient: Storage) -> None:  # noqa: ARG002 - all units alike
        """torch keeps the first gradient as it is, and adds later ones to it. In a bucket it is copied at once."""
        if self.bucketed or not self._first:
            self.tape.drop(gradient)

    def begin(self, *, first: bool, last: bool) -> None:  # noqa: ARG002
        self._first = first


@dataclass(slots=True, kw_only=True)
class Unit:
    """Parameters that FSDP gathers together, and the ranks that share them."""

    num_bytes: int
    ranks: int


@dataclass(slots=True, kw_only=True)
class Units:
    """FSDP2. A unit is gathered into a buffer and copied from there into its parameters.

    In forward the buffer lives until the next unit has been gathered. In backward it is freed after the copy, and the
    unit before is gathered ahead. Gradients are whole until a unit's backward is complete. Then they are copied into
    the input of a reduce-scatter, which lives until the next unit's. gloo has a copy of what it gathers, and of what it
    reduces.
    """

    tape: Tape
    units: Mapping[str, Unit]
    """In the order of forward, the root first."""
    reshards: bool
    """Stage 3: parameters are freed after forward, and gathered again for backward."""
    reduces_each: bool
    """Stage 2: gradients are reduced after each microbatch."""
    _buffer: Storage | None = None
    _ahead: dict[str, Storage] = field(default_factory=dict)
    _gathered: dict[str, Storage] = field(default_factory=dict)
    _gradients: dict[str, list[Storage]] = field(default_factory=dict)
    _accumulated: set[str] = field(default_factory=set)
    _shards: dict[str, Storage] = field(default_factory=dict)
    _reduced: Storage | None = None
    _passed: list[str] = field(default_factory=list)
    _first: bool = True
    _last: bool = True

    @property
    def held_bytes(self) -> int:
        return 3 * sum(-(-unit.num_bytes // unit.ranks) for unit in self.units.values())

    def begin(self, *, first: bool, last: bool) -> None:
        self._first, self._last = first, last

    def before_forward(self, unit: str) -> None:
        if unit in self._gathered:
            return
        arriving = self._gather(unit)
        if self._buffer is not None:
            self.tape.drop(self._buffer)
        self._buffer = arriving
        self._gathered[unit] = self.tape.take(self.units[unit].num_bytes)

    def after_forward(self, unit: str) -> None:
        if unit == ROOT and self._buffer is not None:
            self.tape.drop(self._buffer)
            self._buffer = None
        self._passed.append(unit)
        if self.reshards:
            self._free(unit)

    def before_backward(self, unit: str) -> None:
        if unit not in self._gathered:
            arrived = self._ahead.pop(unit, None) or self._gather(unit)
            self._gathered[unit] = self.tape.take(self.units[unit].num_bytes)
            self.tape.drop(arrived)
        if unit in self._passed:
            self._passed.remove(unit)
        before = self._passed[-1] if self._passed else None
        if before is not None and before not in self._gathered and before not in self._ahead:
            self._ahead[before] = self._gather(before)

    def after_backward(self, unit: str) -> None:
        if self.reshards or self._last:
            self._free(unit)
        gradients = self._gradients.get(unit, [])
        if not (self._last or self.reduces_each):
            self._accumulated.add(unit)
            return
        size, ranks = self.units[unit].num_bytes, self.units[unit].ranks
        self.finish()
        reduced = self.tape.take(size)
        self.tape.drop(*gradients)
        self._gradients[unit] = []
        part = self.tape.take(-(-size // ranks))
        if ranks > 1:
            self.tape.touch(size)
        if unit in self._shards:
            self.tape.drop(part)
        else:
            self._shards[unit] = part
        self._reduced = reduced

    def finish(self) -> None:
        """After the last unit's backward."""
        if self._reduced is not None:
            self.tape.drop(self._reduced)
            self._reduced = None

    def receive(self, unit: str, gradient: Storage) -> None:
        if unit in self._accumulated:
            self.tape.drop(gradient)
        else:
            self._gradients.setdefault(unit, []).append(gradient)

    def _gather(self, unit: str) -> Storage:
        """Take the buffer of a unit. A rank that shares with no other copies its shards without one."""
        size = self.units[unit].num_bytes if self.units[unit].ranks > 1 else 0
        buffer = self.tape.take(size)
        self.tape.touch(size)
        return buffer

    def _free(self, unit: str) -> None:
        gathered = self._gathered.pop(unit, None)
        if gathered is not None:
            self.tape.drop(gathered)
