"""Damaged runs: opening and reporting one ends in a report or in a traincope error.

A small real run (two stages, two shards) is damaged as a disk, a copy or a person may do it: bits flipped, bytes cut
out or inserted, tails cut off, numbers made absurd, files swapped, emptied, removed. `TRAINCOPE_FUZZ=20000` sets the
number of cases.
"""

import json
import os
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.seeds import examples, seeds
from traincope.analysis import analyze
from traincope.errors import TraincopeError
from traincope.events import RECORD_BYTES
from traincope.report.document.document import to_document, to_json
from traincope.report.text.text import render
from traincope.store import read_run
from traincope.store.segments.segments import HEADER_BYTES
from traincope.timeline import build_timeline

SAMPLE = Path(__file__).parents[2] / "sample_runs" / "demo"
RECORDS = 600
"""Records kept of each rank: about six steps."""
DAMAGES = int(os.environ.get("TRAINCOPE_FUZZ", examples(100)))
A_BATCH = 20
GIGABYTE = 1 << 30
ABSURD = (0, -1, 1, 127, 255, 256, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, -(2**63))


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(SAMPLE, path, ignore=shutil.ignore_patterns("expected.json", "MADE_BY"))
    for segment in path.rglob("*.seg"):
        segment.write_bytes(segment.read_bytes()[: HEADER_BYTES + RECORDS * RECORD_BYTES])
    return path


@contextmanager
def little_memory() -> Iterator[None]:
    """Limit memory to 1 GB more than now, so that larger requests raise MemoryError."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + GIGABYTE, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def report(path: Path) -> str:
    """Read and report a run; a traincope error is a valid result too."""
    try:
        with little_memory():
            analysis = analyze(build_timeline(read_run(path)))
            console = Console(file=StringIO(), width=100)
            render(analysis, console)
            return str(console.file.getvalue()) + to_json(to_document(analysis))  # type: ignore[attr-defined]
    except TraincopeError as error:
        return str(error)


def flip(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut_off(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data) + 1) :]


def cut_out(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data) + 1)
    del data[start : start + rng.choice((1, 7, RECORD_BYTES, 1000))]


def put_in(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data) + 1)
    data[start:start] = rng.randbytes(rng.choice((1, 8, RECORD_BYTES, 300)))


def repeat(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data) + 1)
    data[start:start] = data[start : start + rng.choice((3, RECORD_BYTES, 10 * RECORD_BYTES))]


def make_absurd(data: bytearray, rng: random.Random) -> None:
    """Replace numbers by absurd ones: binary in segments, decimal in text files."""
    if data[:1] in (b"{", b"["):
        digits = [at for at, byte in enumerate(data) if chr(byte).isdigit()]
        if digits:
            at = rng.choice(digits)
            data[at : at + 1] = rng.choice(
                [str(number).encode() for number in ABSURD] + [b"null", b'"x"', b"1e999", b"[]"]
            )
        return
    for _ in range(rng.choice((1, 3, 30))):
        width = rng.choice((1, 2, 4, 8))
        records = max((len(data) - HEADER_BYTES) // 8, 1)
        at = HEADER_BYTES + 8 * rng.randrange(records) + rng.randrange(0, 8, width)
        number = rng.choice(ABSURD) % (1 << 8 * width)
        data[at : at + width] = number.to_bytes(width, "little")


DAMAGE: tuple[Callable[[bytearray, random.Random], None], ...] = (
    flip,
    cut_off,
    cut_out,
    put_in,
    repeat,
    make_absurd,
    make_absurd,
    make_absurd,
)


def damaged(whole: Path, path: Path, rng: random.Random) -> None:
    """A copy of the run with one damage."""
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(whole, path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        file, other = rng.choice(files), rng.choice(files)
        match rng.randrange(16):
            case 0:
                file.unlink(missing_ok=True)
            case 1:
                file.write_bytes(other.read_bytes() if other.exists() else b"")
            case 2:
                file.with_name(rng.choice(("main-00001.seg", "main-99999999999999999999.seg", "x.seg"))).write_bytes(
                    file.read_bytes() if file.exists() else b""
                )
            case _:
                data = bytearray(file.read_bytes() if file.exists() else b"")
                rng.choice(DAMAGE)(data, rng)
                file.write_bytes(data)


def test_an_undamaged_run_is_reported(small_run: Path) -> None:
    text = report(small_run)
    assert "VERDICT" in text
    assert "PIPELINE BUBBLE" in text


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize("batch", range(-(-DAMAGES // A_BATCH)))
def test_a_damaged_run_is_reported_or_refused(small_run: Path, tmp_path: Path, batch: int) -> None:
    for seed in seeds(DAMAGES)[batch * A_BATCH : (batch + 1) * A_BATCH]:
        damaged(small_run, tmp_path / "run", random.Random(seed))
        try:
            assert report(tmp_path / "run")
        except BaseException as error:
            error.add_note(f"the damage was that of seed {seed}")
            raise


@pytest.mark.slow
@given(
    content=st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        ).map(lambda value: json.dumps(value).encode()),
    ),
    name=st.sampled_from(
        ["run.json", "rank.json", "names.jsonl", "groups.jsonl", "details.jsonl", "main-00000.seg", "level"]
    ),
)
@settings(
    max_examples=max(DAMAGES // 4, 20),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_file_with_other_content_is_reported_or_refused(
    small_run: Path, tmp_path: Path, content: bytes, name: str
) -> None:
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    shutil.copytree(small_run, tmp_path / "run")
    folder = tmp_path / "run" if name in ("run.json", "level") else tmp_path / "run" / "attempt-000" / "rank-00001"
    (folder / name).write_bytes(content)
    assert report(tmp_path / "run")
