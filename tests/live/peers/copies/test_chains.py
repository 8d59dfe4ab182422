"""A witness' chain of copies and the rank's own records of the last round add up to what the rank had recorded."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from traincope.events import OPEN, Kind
from traincope.live.peers.copies import chains
from traincope.live.peers.copies.chains import MAX_COPIES, Chain
from traincope.live.peers.copies.copying import RankCopy
from traincope.store.layout import NAMES_FILE, segment_path
from traincope.store.segments.joining import KEPT_NS, MAX_RECORDS, NUM_FIRST, continued, held_since_ns, in_one
from traincope.store.segments.segments import (
    RECORD_DTYPE,
    SegmentRecords,
    last_instant_ns,
    read_segment,
    segment_content,
)

S = 1_000_000_000
LENGTH_S = 40
THREADS = ("main", "thread-1")


def truth(thread: str) -> NDArray[np.void]:
    """Spans of 0.1 to 7 s of one thread, several of which are open at a time."""
    count = 300 if thread == "main" else 60
    rng = np.random.default_rng(len(thread))
    records = np.zeros(count, dtype=RECORD_DTYPE)
    records["kind"] = Kind.SPAN
    records["start_ns"] = np.sort(rng.choice(LENGTH_S * 1_000, count, replace=False)) * 1_000_000
    records["end_ns"] = records["start_ns"] + rng.integers(S // 10, 7 * S, count)
    records["name"] = np.arange(count)
    return records


TRUTH = {thread: truth(thread) for thread in THREADS}


def as_of(now_ns: int) -> dict[str, NDArray[np.void]]:
    """What the rank had recorded at this time."""
    recorded = {thread: records[records["start_ns"] <= now_ns].copy() for thread, records in TRUTH.items()}
    for records in recorded.values():
        records["end_ns"][records["end_ns"] > now_ns] = OPEN
    return recorded


def segments_of(recorded: dict[str, NDArray[np.void]]) -> tuple[SegmentRecords, ...]:
    return tuple(
        SegmentRecords(thread=thread, index=0, records=records, lost_bytes=0) for thread, records in recorded.items()
    )


def copy_at(now_ns: int) -> RankCopy:
    """The rank's copy, as its agent makes it."""
    recorded = as_of(now_ns)
    since_ns = max(map(last_instant_ns, recorded.values())) - KEPT_NS
    kept = {
        thread: records[(records["start_ns"] >= since_ns) | (records["end_ns"] >= since_ns)]
        for thread, records in recorded.items()
    }
    numbers = np.unique(np.concatenate([records["name"] for records in kept.values()])).tolist()
    names = b"".join(json.dumps([number, f"span {number}"]).encode() + b"\n" for number in numbers)
    content = {segment_path(Path(), thread=thread, index=0).name: segment_content(kept[thread]) for thread in kept}
    return RankCopy(rank=0, files={"rank.json": b"{}", NAMES_FILE: names, **content})


def chain_of(directory: Path, times_ns: list[int]) -> list[SegmentRecords]:
    """The copies that the witness has at the end."""
    chain = Chain()
    for now_ns in times_ns:
        chain.write(copy_at(now_ns), directory)
    return [read_segment(path) for path in sorted(directory.glob("*.seg"))]


@settings(max_examples=20, deadline=None)
@given(
    rounds_s=st.floats(1, 20),
    pauses=st.lists(st.floats(0.5, 3.9), min_size=1, max_size=12),
)
def test_own_records_and_the_chain_are_all_up_to_the_last_copy(
    tmp_path_factory: pytest.TempPathFactory, rounds_s: float, pauses: list[float]
) -> None:
    """The host ships once, and copies at any pauses below 5 s begin before; then it is lost."""
    times_ns = [round((rounds_s + sum(pauses[:at])) * S) for at in range(len(pauses) + 1)]
    kept = chain_of(tmp_path_factory.mktemp("witness"), times_ns)
    own, last = segments_of(as_of(times_ns[0])), as_of(times_ns[-1])
    whole = continued(own, kept)
    if max(map(last_instant_ns, last.values())) == max(last_instant_ns(each.records) for each in own):
        assert whole is None
        return
    assert whole is not None
    assert whole.holes == ()
    for thread in THREADS:
        parts = [each.records for each in whole.segments if each.thread == thread]
        assert np.concatenate(parts).tobytes() == last[thread].tobytes()


def test_copies_after_a_gap_continue_nothing(tmp_path: Path) -> None:
    """The link was down for 15 s: what the rank did in that time is unknown."""
    kept = chain_of(tmp_path, [round(at * S) for at in (2, 5, 20, 23)])
    assert continued(segments_of(as_of(5 * S)), kept) is None
    (main,) = [each.records for each in in_one(kept) if each.thread == "main"]
    assert main["start_ns"].min() > 6 * S  # of the copies before the gap, only what a later one has too
    assert continued(segments_of(as_of(19 * S)), kept) is not None


def test_a_copy_that_its_bound_cut_off_holds_less() -> None:
    records = np.zeros(MAX_RECORDS, dtype=RECORD_DTYPE)
    records["kind"], records["start_ns"] = Kind.SPAN, 100 * S + np.arange(MAX_RECORDS)
    records["end_ns"] = records["start_ns"] + 1
    whole, cut = segments_of({"main": records[:100]}), segments_of({"main": records})
    assert held_since_ns(whole) == 95 * S + 100
    assert held_since_ns(cut) == 100 * S + NUM_FIRST - 1
    before = segments_of({"main": records[:NUM_FIRST]})
    assert continued(before, cut) is not None
    earlier = records[:1].copy()
    earlier["start_ns"], earlier["end_ns"] = 99 * S, 99 * S + 1
    assert continued(segments_of({"main": earlier}), cut) is None


def test_a_copy_without_the_segment_before_replaces_no_earlier_one(tmp_path: Path) -> None:
    """From 20 s on the copies lack what was before 19.5 s. They must not replace the copy of 19 s."""

    def main(begin_s: float, end_s: float, *, cut: bool) -> RankCopy:
        records = np.zeros(400, dtype=RECORD_DTYPE)
        records["kind"], records["start_ns"] = Kind.SPAN, np.arange(400) * S // 10
        records["end_ns"] = records["start_ns"] + S // 20
        held = records[(records["start_ns"] >= begin_s * S) & (records["start_ns"] < end_s * S)]
        return RankCopy(rank=0, files={"main-00000.seg": segment_content(held, cut=cut)})

    chain = Chain()
    for at in range(10, 20):
        chain.write(main(at - 5, at + 0.5, cut=False), tmp_path)
    for at in range(20, 24):
        chain.write(main(19.5, at, cut=True), tmp_path)
    kept = [read_segment(path) for path in sorted(tmp_path.glob("*.seg"))]
    held = np.unique(np.concatenate([each.records["start_ns"] for each in kept]))
    assert held[-1] == round(22.9 * S)
    assert set(np.diff(held)) == {S // 10}


def test_newer_own_records_stay_as_they_are(tmp_path: Path) -> None:
    kept = chain_of(tmp_path, [10 * S, 12 * S])
    assert continued(segments_of(as_of(13 * S)), kept) is None
    assert continued((), kept) is None


def test_names_of_earlier_copies_stay(tmp_path: Path) -> None:
    chain_of(tmp_path, [round(at * S) for at in (5, 9, 13, 17)])
    records = np.concatenate([read_segment(path).records for path in tmp_path.glob("*.seg")])
    lines = [json.loads(line) for line in (tmp_path / NAMES_FILE).read_text().splitlines()]
    assert {number for number, _ in lines} >= {*records["name"].tolist()}


def test_a_chain_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times_ns = [at * S // 2 for at in range(2, 2 * LENGTH_S)]
    chain_of(tmp_path / "long", times_ns)
    files = sorted((tmp_path / "long").glob("main-*.seg"))
    assert 2 < len(files) <= MAX_COPIES
    size = max(path.stat().st_size for path in files)
    monkeypatch.setattr(chains, "MAX_BYTES", 4 * size)
    (main,) = [each for each in in_one(chain_of(tmp_path / "short", times_ns)) if each.thread == "main"]
    paths = list((tmp_path / "short").glob("*.seg"))
    assert sum(path.stat().st_size for path in paths) <= 4 * size
    assert last_instant_ns(main.records) == last_instant_ns(as_of(times_ns[-1])["main"])


def test_another_agent_of_the_witness_begins_a_new_chain(tmp_path: Path) -> None:
    chain_of(tmp_path, [round(at * S) for at in (5, 9, 13, 17)])
    assert len(list(tmp_path.glob("main-*.seg"))) > 1
    chain_of(tmp_path, [20 * S])
    assert [path.name for path in tmp_path.glob("main-*.seg")] == ["main-00000.seg"]
