"""Measured peaks are found again for the same host, processor and threads only."""

from pathlib import Path

import pytest

from traincope.plan.measured_peaks import MeasuredPeak, cache_file, keep_peak, measured_flops, read_peaks

ONE = MeasuredPeak(host="node-1", device="Some CPU", threads=1, flops={"float32": 3e10, "bfloat16": 6e10})
TWO = MeasuredPeak(host="node-1", device="Some CPU", threads=2, flops={"float32": 5e10})


@pytest.mark.parametrize(
    ("environment", "path"),
    [
        ({"XDG_CACHE_HOME": "/cache", "HOME": "/home/me"}, Path("/cache/traincope/peaks.json")),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/me"}, Path("/home/me/.cache/traincope/peaks.json")),
        ({"HOME": "/home/me"}, Path("/home/me/.cache/traincope/peaks.json")),
        ({"HOME": ""}, None),
        ({}, None),
    ],
)
def test_the_cache_is_where_the_xdg_specification_says(environment: dict[str, str], path: Path | None) -> None:
    assert cache_file(environment) == path


def test_an_entry_replaces_the_earlier_one_of_the_same_threads(tmp_path: Path) -> None:
    path = tmp_path / "new" / "peaks.json"
    for peak in (ONE, TWO, MeasuredPeak(host="node-1", device="Some CPU", threads=2, flops={"float32": 4e10})):
        keep_peak(path, peak)
    assert {(peak.threads, peak.flops["float32"]) for peak in read_peaks(path)} == {(1, 3e10), (2, 4e10)}


def test_only_the_same_host_processor_and_threads_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for peak in (ONE, TWO):
        keep_peak(tmp_path / "traincope" / "peaks.json", peak)
    device = {"name": "Some CPU", "threads": 1}
    assert measured_flops("node-1", device) == ONE.flops
    assert measured_flops("node-1", {**device, "threads": 2}) == TWO.flops
    assert measured_flops("node-2", device) is None
    assert measured_flops("node-1", {**device, "name": "Another CPU"}) is None
    assert measured_flops("node-1", {"name": "Some CPU"}) is None
    assert measured_flops("node-1", {**device, "threads": 4}) is None


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '[{"host": "a"}]', '[{"host":"a","device":"b","threads":1,"flops":{"float32":0}}]']
)
def test_a_damaged_file_has_no_entry_and_is_replaced(tmp_path: Path, text: str) -> None:
    path = tmp_path / "peaks.json"
    path.write_text(text)
    assert read_peaks(path) == ()
    keep_peak(path, ONE)
    assert read_peaks(path) == (ONE,)
