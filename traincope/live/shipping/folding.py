"""Choice of the archives whose live bytes move into the next one, so that a node leaves few archives per hour."""

from collections.abc import Mapping

from traincope.store.places.archives import Archive

MAX_PER_HOUR = 4
"""Archives of one hour that are not full."""
FULL_BYTES = 32 << 20
"""A larger archive counts as full: it is not written again while at least half of it is live."""
USED_SHARE = 2
"""An old or full archive is written again once less than one in so many of its bytes is live."""


def folded(
    archives: Mapping[int, Archive], live: Mapping[int, int], *, new_bytes: int, hour: int
) -> tuple[list[int], int]:
    """Return the numbers of archives that the next one takes over, and the hour that it counts to.

    `live`: bytes of each archive that its index still needs; archives without any are not in it. `new_bytes` are those
    of the next archive, `hour` is its hour. While an hour lasts, an archive is taken over once those after it have as
    many bytes, so a byte is written again about as often as the number of archives doubles. The first archive of an
    hour takes over those of the hour before, and counts to it.
    """
    partial = [number for number in sorted(live, reverse=True) if live[number] < FULL_BYTES]
    newest_hour = max((archives[number].hour for number in partial), default=hour)
    same = [number for number in partial if archives[number].hour == newest_hour]
    taken = _within(same, live) if len(same) > 1 else []
    if newest_hour == hour:
        taken = _taken(same, live, new_bytes=new_bytes)
    wasted = _wasted(archives, live, hour=hour, taken=taken)
    return [*taken, *wasted], newest_hour if taken and not wasted else hour


def _within(same: list[int], live: Mapping[int, int]) -> list[int]:
    """As many of the newest archives as one archive may take over. Others become old ones, with little waste."""
    total = 0
    for number, archive in enumerate(same):
        total += live[archive]
        if total > 2 * FULL_BYTES:
            return same[:number] if number > 1 else []
    return same


def _taken(same: list[int], live: Mapping[int, int], *, new_bytes: int) -> list[int]:
    """The newest archives of the hour that are taken over."""
    size = new_bytes
    for number, archive in enumerate(same):
        rest = len(same) - number
        if size >= FULL_BYTES or (live[archive] > size and rest < MAX_PER_HOUR):
            return same[:number]
        size += live[archive]
    return same


def _wasted(archives: Mapping[int, Archive], live: Mapping[int, int], *, hour: int, taken: list[int]) -> list[int]:
    """The oldest archive that is neither of this hour nor taken and has few live bytes; at most one. Its rest moves to
    this hour: next to records that the next round replaces, it would soon be wasted again.
    """
    old = (n for n in sorted(live) if n not in taken and (archives[n].hour < hour or live[n] >= FULL_BYTES))
    return next(([n] for n in old if live[n] * USED_SHARE < archives[n].size), [])
