"""The timeline's figure of a hand-made picture."""

import struct
import zlib
from base64 import b64decode

import numpy as np

from traincope.figures.run.arrangement import Arrangement, arranged
from traincope.figures.run.timeline import Mark, Part, Picture, blended, class_colour, stacked, timeline
from traincope.palette import colour
from traincope.tiles.storage import Header, Row
from traincope.tiles.zoom import Bars, Raster

CLASSES = ("unattributed", "forward", "exposed_wait[fsdp]", "overlapped[fsdp]")


def arrangement(lines: int = 2) -> Arrangement:
    rows = [
        Row(
            rank=rank,
            lane="activity",
            lines=1,
            first_span=0,
            num_spans=0,
            first_piece=0,
            num_pieces=0,
            first_channel=0,
            classes=(1, 2),
        )
        for rank in range(lines)
    ]
    return arranged(Header(origin_ns=0, length_ns=100, rows=tuple(rows)))


def bars(*rows: tuple[int, int, int, int]) -> Bars:
    """(line, start, end, class)."""
    line, start, end, class_number = (np.array(column) for column in zip(*rows, strict=True))
    return Bars(
        line=line.astype(np.int32),
        depth=np.zeros(len(rows), dtype=np.int32),
        start_ns=start.astype(np.int64),
        end_ns=end.astype(np.int64),
        class_number=class_number.astype(np.uint8),
        span=np.arange(len(rows), dtype=np.int32),
    )


def test_bars_have_the_position_and_colour_of_their_spans() -> None:
    drawn = bars((0, 0, 40, 1), (1, 10, 60, 1), (0, 40, 60, 2))
    texts = {"picks": ["a", "b", "c"], "hovers": ["x\ny", "", ""], "labels": ["F", "", ""]}
    shown = Picture(arrangement=arrangement(), drawn=drawn, begin_ns=0, end_ns=100, classes=CLASSES, **texts)
    forward, wait = timeline(shown).data
    assert (forward.base.tolist(), forward.x.tolist()) == ([0, 10], [40, 50])
    assert (wait.base.tolist(), wait.x.tolist()) == ([40], [20])
    assert forward.marker.color == colour("forward")
    assert wait.marker.color == colour("exposed_wait[fsdp]")
    assert list(forward.customdata[0]) == ["a", "x<br>y"]


def test_a_bar_and_its_label_are_cut_at_the_window() -> None:
    texts = {"picks": ["a", "b"], "hovers": ["", ""], "labels": ["forward", "F"]}
    drawn = bars((0, 0, 90, 1), (1, 60, 90, 1))
    (forward,) = timeline(
        Picture(arrangement=arrangement(), drawn=drawn, begin_ns=50, end_ns=80, classes=CLASSES, **texts)
    ).data
    assert (forward.base.tolist(), forward.x.tolist()) == ([50, 60], [40, 30])


def test_names_from_a_run_are_text_in_every_place() -> None:
    hostile = "<img src=x onerror=alert(1)>"
    shown = Picture(
        arrangement=arrangement(1),
        drawn=bars((0, 0, 90, 1)),
        begin_ns=0,
        end_ns=100,
        classes=CLASSES,
        picks=["p"],
        hovers=[hostile],
        labels=[hostile],
        marks=[Mark(at_ns=5, text=hostile, severe=True)],
    )
    bar, marks = timeline(shown).data
    escaped = "&lt;img src=x onerror=alert(1)&gt;"
    assert (bar.customdata[0][1], bar.text[0], marks.customdata[0][1]) == (escaped, escaped, escaped)


def test_a_raster_is_an_image_with_gaps_transparent() -> None:
    shares = np.zeros((2, 2, 4), dtype=np.float32)
    shares[0, 0, :] = 1.0
    shares[1, 1, :2] = 1.0
    drawn = Raster(begin_ns=0, width_ns=25, classes=(1, 2), shares=shares)
    shown = Picture(arrangement=arrangement(), drawn=drawn, begin_ns=0, end_ns=100, classes=CLASSES)
    (image,) = timeline(shown).layout.images
    pixels = decoded(image.source)
    assert set(pixels[1].tolist()) == {1}
    assert pixels[len(pixels) // 2 + 1].tolist() == [2, 2, 0, 0]
    assert (image.x, image.sizex, image.y) == (0, 100, 0)
    assert image.sizey == shown.arrangement.height


def decoded(address: str) -> np.ndarray:
    """Palette numbers of a PNG that `figures.png` wrote."""
    raw = b64decode(address.removeprefix("data:image/png;base64,"))
    width, height = struct.unpack(">II", raw[16:24])
    at = raw.index(b"IDAT")
    (length,) = struct.unpack(">I", raw[at - 4 : at])
    lines = np.frombuffer(zlib.decompress(raw[at + 4 : at + 4 + length]), dtype=np.uint8)
    return lines.reshape(height, width + 1)[:, 1:]


def test_each_class_gets_pixels_by_its_share() -> None:
    picked = stacked(np.array([[0.5], [0.25]], dtype=np.float32), rows=8)
    assert picked[:, 0].tolist() == [1, 1, 1, 1, 2, 2, 0, 0]


def test_thin_lines_show_the_mean_colour_with_coverage_as_opacity() -> None:
    shares = np.array([[[0.5, 0.5], [0.5, 0.0]]], dtype=np.float32)
    colours = blended(shares, ["#FF0000", "#0000FF"])
    assert colours.tolist() == [[[128, 0, 128, 255], [255, 0, 0, 128]]]


def test_the_parts_of_a_picked_collective_are_linked_with_their_clock_bound() -> None:
    parts = [
        Part(line=0, start_ns=10, end_ns=50, bound_ns=0, text="rank 0"),
        Part(line=1, start_ns=30, end_ns=52, bound_ns=4, text="rank 1"),
    ]
    shown = Picture(
        arrangement=arrangement(),
        drawn=bars((0, 10, 50, 3), (1, 30, 52, 3)),
        begin_ns=0,
        end_ns=100,
        classes=CLASSES,
        picks=["a", "b"],
        hovers=["", ""],
        labels=["", ""],
        parts=parts,
    )
    _, begins, ends = timeline(shown).data
    assert (list(begins.x), list(ends.x)) == ([10, 30], [50, 52])
    assert list(begins.error_x.array) == [0, 4]
    assert begins.error_x.visible


def test_overlapped_time_is_a_paler_tint_of_exposed_transfer() -> None:
    assert class_colour("overlapped[fsdp]") != colour("exposed_transfer[fsdp]")
    assert class_colour("forward") == colour("forward")
