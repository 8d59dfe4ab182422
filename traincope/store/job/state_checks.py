"""Checks of a rank's parameters and optimizer state: checksums after an optimizer's step, and before its next one.

A rank writes them to `state-checks.jsonl`, in numbered lines of three forms:

    {"layout": 3, "optimizer": 0, "replicas": [[0, 1]], "tensors": [["0.weight", null, "float32", 4096, 0, 1], ...]}
    {"step": 100, "layout": 3, "at_ns": ..., "cost_ns": ..., "sums": "00f1..."}
    {"held": 100, "layout": 3, "good_ns": ..., "at_ns": ..., "cost_ns": ..., "changed": [[4, 30]], "explained": [7]}

A layout lists the tensors: parameter, state of the optimizer or null, dtype, bytes on this rank, the position of its
ranks in `replicas` or null, and whether it is checked. `sums` are 8 bytes for each, little-endian, in hexadecimal.
`held` compares the state at the begin of the next optimizer step with that after step 100: nothing may change it in
between. `changed` has the tensors with other bytes, with the flipped bit if it was exactly one. `explained` has those
that the program itself replaced or changed.

A file that reaches `MAX_FILE_BYTES` becomes the older one, in place of the one before. Each file has its own layouts.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from traincope.arrays import Ints
from traincope.store.layout import OLD_STATE_CHECKS_FILE, STATE_CHECKS_FILE
from traincope.store.lines import parse_numbered

MAX_FILE_BYTES = 4 << 20
WORD_BITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTensor:
    """One tensor of a rank's state."""

    parameter: str
    state: str | None
    """Name in the optimizer's state; None: the parameter itself."""
    dtype: str
    num_bytes: int
    """Size of this rank's part."""
    replicas: tuple[int, ...] = ()
    """Ranks that hold the same bytes, as far as this rank knows; empty: unknown."""
    checked: bool = True

    @property
    def key(self) -> tuple[str, str | None]:
        """The same on all its replicas."""
        return self.parameter, self.state

    @property
    def name(self) -> str:
        return self.parameter if self.state is None else f"{self.state} of {self.parameter}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The tensors of one optimizer on one rank."""

    optimizer: int
    """Its number, in the order in which the optimizers first stepped."""
    tensors: tuple[StateTensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCheck:
    """Checksums right after an optimizer's step."""

    step: int
    at_ns: int
    """Time on the rank's own clock."""
    cost_ns: int
    """Time of the host."""
    layout: Layout
    sums: Ints
    """One per tensor of the layout; 0 for those that are not checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCheck:
    """Comparison of the state at the begin of the next optimizer step with that after this step."""

    step: int
    good_ns: int
    """Time of the check after this step, on the rank's own clock."""
    at_ns: int
    """Time of this comparison."""
    cost_ns: int
    layout: Layout
    changed: Mapping[int, int | None]
    """Position of a tensor with other bytes -> the flipped bit of an element, or None if it was not exactly one.

    The program did not replace such a tensor, and changed it in no way that torch counts.
    """
    explained: tuple[int, ...] = ()
    """Positions of tensors that the program itself replaced or changed."""


def flipped_bit(weighted: int, plain: int) -> int | None:
    """Bit of a word that flipped, from the changes of the two sums modulo 2^64; None if it was not exactly one.

    One flipped bit changes the plain sum by a power of two, and the weighted sum by this times an odd number. Other
    changes do both with a probability of about 2^-57.
    """
    plain %= 1 << WORD_BITS
    bit = _lowest_bit(plain)
    is_power = plain in (1 << bit, (1 << WORD_BITS) - (1 << bit)) if plain else False
    return bit if is_power and _lowest_bit(weighted % (1 << WORD_BITS)) == bit else None


def _lowest_bit(value: int) -> int:
    return (value & -value).bit_length() - 1


@dataclass(slots=True)
class StateCheckTail:
    """The checks of a rank's directory, in order. Each `read` returns the new ones."""

    directory: Path
    _offsets: dict[int, int] = field(default_factory=dict)
    """Inode -> bytes that were read. A file keeps its inode when it becomes the older one."""
    _layouts: dict[int, dict[int, Layout]] = field(default_factory=dict)
    """Inode -> the file's layouts."""

    def read(self) -> Iterator[StateCheck | HeldCheck]:
        """Yield the checks that were added. A line that is cut off is read once it is complete."""
        added: dict[int, bytes] = {}
        for name in (STATE_CHECKS_FILE, OLD_STATE_CHECKS_FILE):  # in this order, so that none is missed in a rotation
            try:
                with (self.directory / name).open("rb") as file:
                    inode = os.fstat(file.fileno()).st_ino
                    if os.fstat(file.fileno()).st_size < self._offsets.get(inode, 0):
                        del self._offsets[inode], self._layouts[inode]  # a new file has the inode of a removed one
                    file.seek(self._offsets.get(inode, 0))
                    added.setdefault(inode, file.read())
            except OSError:
                continue
        for inode, text in reversed(added.items()):
            complete = text[: text.rfind(b"\n") + 1]
            self._offsets[inode] = self._offsets.get(inode, 0) + len(complete)
            yield from self._checks(complete, self._layouts.setdefault(inode, {}))
        for inode in self._offsets.keys() - added.keys():
            del self._offsets[inode], self._layouts[inode]

    def _checks(self, text: bytes, layouts: dict[int, Layout]) -> Iterator[StateCheck | HeldCheck]:
        for line in parse_numbered(text.decode(errors="replace").split("\n")).values():
            try:
                check = _decoded(line, layouts)
            except (LookupError, TypeError, ValueError):
                continue  # damaged
            if check is not None:
                yield check


@dataclass(frozen=True, slots=True)
class StateCheckFile:
    """The checks of a rank, read on demand."""

    directory: Path

    def read(self) -> tuple[StateCheck | HeldCheck, ...]:
        """All checks, in order; empty if the rank made none."""
        return tuple(StateCheckTail(self.directory).read())


def _decoded(line: Mapping[str, Any], layouts: dict[int, Layout]) -> StateCheck | HeldCheck | None:
    if "tensors" in line:
        layouts[int(line["layout"])] = _layout(line)
        return None
    layout = layouts[line["layout"]]
    if "held" in line:
        return HeldCheck(
            step=int(line["held"]),
            good_ns=int(line["good_ns"]),
            at_ns=int(line["at_ns"]),
            cost_ns=int(line["cost_ns"]),
            layout=layout,
            changed={int(at): None if bit is None else int(bit) for at, bit in line["changed"]},
            explained=tuple(map(int, line["explained"])),
        )
    sums = np.frombuffer(bytes.fromhex(line["sums"]), dtype="<i8")
    if len(sums) != len(layout.tensors):
        raise ValueError("a checksum is missing")
    return StateCheck(
        step=int(line["step"]), at_ns=int(line["at_ns"]), cost_ns=int(line["cost_ns"]), layout=layout, sums=sums
    )


def _layout(line: Mapping[str, Any]) -> Layout:
    replicas = [tuple(map(int, ranks)) for ranks in line["replicas"]]
    return Layout(
        optimizer=int(line["optimizer"]),
        tensors=tuple(
            StateTensor(
                parameter=str(parameter),
                state=None if state is None else str(state),
                dtype=str(dtype),
                num_bytes=int(num_bytes),
                replicas=() if at is None else replicas[at],
                checked=bool(checked),
            )
            for parameter, state, dtype, num_bytes, at, checked in line["tensors"]
        ),
    )


def layout_line(number: int, layout: Layout) -> dict[str, Any]:
    """The line that describes a layout."""
    groups = sorted({tensor.replicas for tensor in layout.tensors} - {()})
    return {
        "layout": number,
        "optimizer": layout.optimizer,
        "replicas": groups,
        "tensors": [
            [
                *(tensor.parameter, tensor.state, tensor.dtype, tensor.num_bytes),
                *(groups.index(tensor.replicas) if tensor.replicas else None, int(tensor.checked)),
            ]
            for tensor in layout.tensors
        ],
    }


def check_line(number: int, check: StateCheck) -> dict[str, Any]:
    """The line of a check. `number`: of its layout."""
    sums = check.sums.astype("<i8").tobytes().hex()
    return {"step": check.step, "layout": number, "at_ns": check.at_ns, "cost_ns": check.cost_ns, "sums": sums}


def held_line(number: int, check: HeldCheck) -> dict[str, Any]:
    """The line of a comparison. `number`: of its layout."""
    return {
        "held": check.step,
        "layout": number,
        "good_ns": check.good_ns,
        "at_ns": check.at_ns,
        "cost_ns": check.cost_ns,
        "changed": [[at, bit] for at, bit in check.changed.items()],
        "explained": check.explained,
    }
