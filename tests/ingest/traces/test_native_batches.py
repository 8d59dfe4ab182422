"""The native decoder gives what the plain one gives, of sound text and of any other."""

import gzip
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ingest.traces.decoders import contents, needs_decoder, read_by, read_by_both
from tests.ingest.writing import LAYOUTS, MARK, complete, kineto
from traincope.errors import DataError
from traincope.ingest.traces.batches import PlainDecoder
from traincope.ingest.traces.kineto import read_kineto
from traincope.ingest.traces.native_batches import NativeDecoder
from traincope.native.cached import Use

pytestmark = needs_decoder

TRACES = Path(__file__).parents[4] / "shared" / "traces"
ALLREDUCE = {"Collective name": "allreduce", "In msg nelems": 20, "dtype": "Float", "Process Group Name": "0"}
SHAPES = {"Input Dims": [[4, 8], [8, 2], []], "Input type": ["float", "float", ""]}
STRIDES = {**SHAPES, "Input Strides": [[8, 1], [2, 1], []], "Concrete Inputs": ["", "", "1"]}
EVENTS = (
    MARK,
    complete("aten::mm", "10.5", "3.25", cat="cpu_op", pid=41, tid=42, **STRIDES),
    complete("aten::mm", "1762180953123456.789", "3.2545", cat="cpu_op", pid=41, tid="42", **SHAPES),
    complete("MmBackward0", "12", "0.0005", cat="cpu_op", **{"Sequence number": 7, "Fwd thread id": 1}),
    complete("cudaLaunchKernel", "11.0", "1", cat="cuda_runtime", pid=41, tid=42, correlation=9),
    {"ph": "s", "id": 9, "pid": 41, "tid": 42, "ts": 11, "cat": "ac2g", "name": "ac2g"},
    complete("gemm<1, 2>", "20.001", "5.999", correlation=9, grid=[4, 1, 1], block=[128, 1, 1], stream=7),
    complete("ncclDevKernel_AllReduce", "21", "5", **ALLREDUCE),
    complete("nccl:all_reduce", "21", "5", cat="user_annotation", **SHAPES),
    complete("Memcpy DtoH", "22", "1", cat="gpu_memcpy", bytes=1024, correlation=10),
    complete('say "hi" \\ {}', "30", "0.5", tid=20),
    complete("train.py(3): step", "1", "90", cat="python_function", pid=41, tid=42),
    complete("<built-in function collect>", "2", "1", cat="python_function", pid=41, tid=42),
    {"ph": "X", "name": "no duration", "ts": 1},
)
SOUND = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 5, "args": {"correlation": 3}}'


@pytest.fixture
def plain_texts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """The pieces that the plain decoder decodes, without what remains at last."""
    texts: list[bytes] = []
    decode = PlainDecoder.decode

    def recorded(self: PlainDecoder, text: bytes, *, last: bool = False) -> object:
        if not last:
            texts.append(text)
        return decode(self, text, last=last)

    monkeypatch.setattr(PlainDecoder, "decode", recorded)
    return texts


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [1, 300, 1 << 20])
def test_events_of_every_layout(
    layout: Callable[..., str], size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for decoder in (PlainDecoder, NativeDecoder):
        monkeypatch.setattr(decoder, "piece", size)
    (tmp_path / "trace.json").write_text(layout(EVENTS))
    plain, native = read_by_both(tmp_path / "trace.json")
    assert contents(native) == contents(plain)
    assert (len(native), native.info.num_read) == (10, len(EVENTS))


def test_text_as_torch_writes_it_needs_no_other_decoder(tmp_path: Path, plain_texts: list[bytes]) -> None:
    (tmp_path / "trace.json").write_text(kineto(EVENTS))
    read_kineto(tmp_path / "trace.json")
    assert plain_texts == []


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"the public traces are not in {TRACES}")
@pytest.mark.parametrize("name", [str(path.relative_to(TRACES)) for path in sorted(TRACES.rglob("*.json.gz"))])
def test_public_traces(name: str, plain_texts: list[bytes]) -> None:
    read_kineto(TRACES / name)
    assert plain_texts == []
    plain, native = read_by_both(TRACES / name)
    assert contents(native) == contents(plain)


@pytest.mark.parametrize(
    "event",
    [
        *(SOUND.replace('"ts": 1', f'"ts": {time}') for time in ("-1", "1e3", '"1"', "null", "NaN", "1.", "01")),
        *(SOUND.replace('"ts": 1', f'"ts": {time}') for time in ("9223372036854775.806", "9223372036854775.808")),
        SOUND.replace("}}", '}, "args": null}'),
        *(SOUND.replace('"dur": 5', f'"dur": {time}') for time in ("0.0004", "0.0005", "12345678901234567890", "-3")),
        *(
            SOUND.replace('"k"', name)
            for name in ('"\\ud83d"', '"\\u00e9"', '"é"', '"a\tb"', "1.0", "[1]", "true", "null")
        ),
        *(
            SOUND.replace('"pid": 0', f'"pid": {pid}')
            for pid in ("0.0", '"0"', "-1", "99999999999999999999999", "1e400")
        ),
        *(
            SOUND.replace('"kernel"', category)
            for category in ("null", '""', "0", "false", '"Kernel"', '"ker\\u006eel"')
        ),
        *(
            SOUND.replace("3}", f"{value}}}")
            for value in (
                "-3",
                "1.5",
                '"3"',
                '"-3"',
                '"03"',
                '""',
                '"-"',
                '"3 "',
                "null",
                "true",
                "9" * 19,
                "1e400",
                "[3]",
            )
        ),
        *(SOUND.replace('{"correlation": 3}', arguments) for arguments in ("null", "[]", '"x"', "true", "3", "{}")),
        SOUND.replace("3}", '3, "correlation": 4}'),
        SOUND.replace('"correlation"', '"corr\\u0065lation"'),
        SOUND.replace('"dur": 5', '"dur": 5, "dur": 6'),
        SOUND.replace('"ph": "X"', '"ph": "X", "ph": "X"'),
        SOUND.replace('"ph": "X"', '"ph": "unknown"'),
        SOUND.replace('"ph": "X", ', ""),
        SOUND.replace("3}", '3, "grid": null, "block": [1]}'),
        SOUND.replace("3}", f'3, "deep": {"[" * 70}{"]" * 70}}}'),
        SOUND.replace("3}", '3, "Input Dims": [ ], "Collective name": null}'),
        "null",
        "{}",
        SOUND + ",",
    ],
)
def test_an_unusual_event_among_others(event: str, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(
        f'{{"traceEvents": [{SOUND}, {event}, {SOUND}], "distributedInfo": {{"rank": 1}}}}'
    )
    plain, native = read_by_both(tmp_path / "trace.json")
    assert contents(native) == contents(plain)
    assert len(native) >= 1


def contents_or_error(file: Path, use: Use) -> dict[str, Any] | str:
    try:
        return contents(read_by(file, use))
    except DataError as error:
        return str(error)


def test_damaged_texts(tmp_path: Path) -> None:
    """Bytes that are changed, left out or doubled at random."""
    rng, sound, file = random.Random(41), kineto(EVENTS).encode(), tmp_path / "trace.json"
    results: set[object] = set()
    for _ in range(300):
        text = bytearray(sound)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(sound.index(b"["), len(text))
            text[at : at + rng.randint(0, 2)] = rng.choice(
                [b"", b'"', b"\\", b"{", b"}", b"]", b",", b"\xe9", b"\0", b"9", b"-"]
            )
        file.write_bytes(text)
        plain, native = (contents_or_error(file, use) for use in (Use.OFF, Use.AUTO))
        assert native == plain, bytes(text)
        results.add(native if isinstance(native, str) else len(native["start_ns"]))
    assert len(results) > 5


def test_a_packed_trace_of_many_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_texts: list[bytes]
) -> None:
    """Texts keep their numbers from piece to piece."""
    monkeypatch.setattr(NativeDecoder, "piece", 10_000)
    events = [
        complete(f"kernel_{at % 300}", f"{at}.5", "0.25", correlation=at, grid=[at % 7], block=[1])
        for at in range(2_000)
    ]
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress(kineto(events).encode()))
    trace = read_kineto(tmp_path / "trace.json.gz")
    assert plain_texts == []
    assert trace.names == tuple(f"kernel_{at}" for at in range(300))
    assert trace.name.tolist() == [at % 300 for at in range(2_000)]
    assert trace.launch.tolist() == [at % 7 for at in range(2_000)]
