"""What was sent as a tree: axis, operation, where it was called, and of that waiting, exposed and hidden transfer."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from traincope.analysis import AxisOperation, Called
from traincope.analysis.terms import exposed_transfer, exposed_wait
from traincope.figures.labels import label
from traincope.figures.timeline import class_colour
from traincope.palette import GREY, colour, tint
from traincope.topology import axis_order

MOST_PLACES = 16
"""Of one operation: those where it took longest; the rest is one."""
ALL = "communication"
WAIT, EXPOSED, HIDDEN = "wait", "exposed transfer", "hidden transfer"
NO_PLACE = "nothing recorded around it"

Path = tuple[str, ...]
Times = dict[Path, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One place in the tree."""

    key: str
    parent: str
    name: str
    ns: tuple[int, ...]
    """Of one rank in one step, on each side. Whole, so that a box is exactly as long as what it holds."""
    colour: str

    @property
    def mean_ns(self) -> float:
        return sum(self.ns) / len(self.ns)


def without_places(operations: Sequence[AxisOperation]) -> list[Called]:
    """Where nothing is known of who called them."""
    return [Called(one.axis, one.operation, "", one.transfer_ns, one.wait_ns, one.exposed_ns) for one in operations]


def boxes(*sides: Sequence[Called], rank_steps: Sequence[int]) -> list[Box]:
    """Outer before inner, longest first; `rank_steps` is what the sums of each side hold, at least 1."""
    sums: dict[Path, list[int]] = defaultdict(lambda: [0] * len(sides))
    times = _times(sides)
    place, leaves = _few_places(times), set()
    for one, at in sorted(((one, at) for at, side in enumerate(sides) for one in side), key=_order(times)):
        for part, ns in _parts(one):
            path = (ALL, one.axis, one.operation, *place(one), part)
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


def _times(sides: Sequence[Sequence[Called]]) -> Times:
    """Of every operation, and of every place it was called from."""
    times: Times = defaultdict(int)
    for one in (one for side in sides for one in side):
        whole = sum(ns for _, ns in _parts(one))
        times[one[:2]] += whole
        times[one[:3]] += whole
    return times


def _order(times: Times) -> Callable[[tuple[Called, int]], tuple[object, ...]]:
    """Axes as in tables, then the longest first."""
    return lambda told: (axis_order(told[0].axis), -times[told[0][:2]], told[0].operation, -times[told[0][:3]])


def _few_places(times: Times) -> Callable[[Called], Path]:
    """Of a call its place, for most of many; none where no place of any is known."""
    found: dict[Path, Path] = {}
    places = [path for path in times if len(path) == 3]
    known = any(path[2] for path in places)
    for operation in {path[:2]: None for path in places}:
        own = sorted((path for path in places if path[:2] == operation), key=lambda path: -times[path])
        more = f"{len(own) - MOST_PLACES} places more"
        for at, path in enumerate(own):
            found[path] = (path[2] if at < MOST_PLACES else more,) if known else ()
    return lambda one: found[one[:3]]


def _parts(one: Called) -> Iterator[tuple[str, int]]:
    """Hidden is, of its transfers, what no thread stood still for."""
    exposed_ns = max(one.exposed_ns - one.wait_ns, 0)
    yield WAIT, one.wait_ns
    yield EXPOSED, exposed_ns
    yield HIDDEN, max(one.transfer_ns - exposed_ns, 0)


def _colour(path: Path) -> str:
    """The axis', lighter inside."""
    if len(path) == 1:
        return tint(GREY, 0.5)
    return tint(colour(exposed_transfer(path[1])), (0.3, 0.45, 0.52)[len(path) - 2])


def _part_colour(path: Path) -> str:
    sent = colour(exposed_transfer(path[1]))
    return {WAIT: class_colour(exposed_wait(path[1])), EXPOSED: sent, HIDDEN: tint(sent, 0.6)}[path[-1]]
