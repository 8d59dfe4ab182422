"""The tree of communication: axis, operation, call site, and its wait, exposed and hidden transfer."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from traincope.analysis import CallSite
from traincope.analysis.attribution.terms import exposed_transfer, exposed_wait
from traincope.analysis.communication.call_sites import NO_PLACE
from traincope.figures.drawing.labels import label
from traincope.figures.run.timeline import class_colour
from traincope.palette import GREY, colour, tint
from traincope.topology import axis_order

MAX_PLACES = 16
"""Call sites of an operation: the longest ones; the rest share a box."""
ALL = "communication"
WAIT, EXPOSED, HIDDEN = "wait", "exposed transfer", "hidden transfer"

Path = tuple[str, ...]
Times = dict[Path, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A node of the tree."""

    key: str
    parent: str
    name: str
    ns: tuple[int, ...]
    """Time per rank and step on each side; whole numbers, so children sum exactly to their parent."""
    colour: str

    @property
    def mean_ns(self) -> float:
        return sum(self.ns) / len(self.ns)


def boxes(*sides: Sequence[CallSite], rank_steps: Sequence[int]) -> list[Box]:
    """Parents before children, longest first; `rank_steps` (at least 1) is the rank-steps in each side's sums."""
    sums: dict[Path, list[int]] = defaultdict(lambda: [0] * len(sides))
    times = _times(sides)
    place, leaves = _few_places(times), set()
    for call, at in sorted(((call, at) for at, side in enumerate(sides) for call in side), key=_order(times)):
        for part, ns in _parts(call):
            path = (ALL, call.axis, call.operation, *place(call), part)
            leaves.add(path)
            for depth in range(len(path)):
                sums[path[: depth + 1]][at] += round(ns / rank_steps[at])
    shown = {path: ns for path, ns in sums.items() if any(ns)}
    keys = {path: str(number) for number, path in enumerate(shown)}
    return [
        Box(
            key=keys[path],
            parent=keys.get(path[:-1], ""),
            name=label(path[-1] or NO_PLACE),
            ns=tuple(ns),
            colour=_part_colour(path) if path in leaves else _colour(path),
        )
        for path, ns in shown.items()
    ]


def _times(sides: Sequence[Sequence[CallSite]]) -> Times:
    """Time of every operation and of every call site."""
    times: Times = defaultdict(int)
    for call in (call for side in sides for call in side):
        whole = sum(ns for _, ns in _parts(call))
        times[call[:2]] += whole
        times[call[:3]] += whole
    return times


def _order(times: Times) -> Callable[[tuple[CallSite, int]], tuple[object, ...]]:
    """Order axes as in tables, then by time, longest first."""
    return lambda call: (axis_order(call[0].axis), -times[call[0][:2]], call[0].operation, -times[call[0][:3]])


def _few_places(times: Times) -> Callable[[CallSite], Path]:
    """The call site in the tree for each call; empty where no call site is known."""
    sites: dict[Path, Path] = {}
    places = [path for path in times if len(path) == 3]
    known = any(path[2] for path in places)
    for operation in {path[:2]: None for path in places}:
        longest = sorted((path for path in places if path[:2] == operation), key=lambda path: -times[path])
        more = f"{len(longest) - MAX_PLACES} more call sites"
        for at, path in enumerate(longest):
            sites[path] = (path[2] if at < MAX_PLACES else more,) if known else ()
    return lambda call: sites[call[:3]]


def _parts(call: CallSite) -> Iterator[tuple[str, int]]:
    """Wait, exposed and hidden transfer of a call; no thread stalls for the hidden part."""
    exposed_ns = max(call.exposed_ns - call.wait_ns, 0)
    yield WAIT, call.wait_ns
    yield EXPOSED, exposed_ns
    yield HIDDEN, max(call.transfer_ns - exposed_ns, 0)


def _colour(path: Path) -> str:
    """The axis' colour, lighter for inner boxes."""
    if len(path) == 1:
        return tint(GREY, 0.5)
    return tint(colour(exposed_transfer(path[1])), (0.3, 0.45, 0.52)[len(path) - 2])


def _part_colour(path: Path) -> str:
    sent = colour(exposed_transfer(path[1]))
    return {WAIT: class_colour(exposed_wait(path[1])), EXPOSED: sent, HIDDEN: tint(sent, 0.6)}[path[-1]]
