"""Speedscope file: rules of its format, times of the events."""

import json
from typing import Any

import pytest

from tests.exporters.runs import two_ranks
from tests.timeline.build import Row, phase
from traincope import open_run
from traincope.events import Kind, Phase
from traincope.timeline import Timeline
from traincope_exporters.traces.speedscope import speedscope


def file_of(timeline: Timeline) -> dict[str, Any]:
    return dict(json.loads("".join(speedscope(timeline))))


def follow_the_rules(file: dict[str, Any]) -> None:
    """Check the rules of speedscope's file-format-spec.ts, and those of its importer."""
    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = file["shared"]["frames"]
    assert all(isinstance(frame["name"], str) for frame in frames)
    assert 0 <= file["activeProfileIndex"] < len(file["profiles"])
    for profile in file["profiles"]:
        assert (profile["type"], profile["unit"]) == ("evented", "nanoseconds")
        stack, before = [], profile["startValue"]
        for event in profile["events"]:
            assert before <= event["at"] <= profile["endValue"]
            assert 0 <= event["frame"] < len(frames)
            before = event["at"]
            if event["type"] == "O":
                stack.append(event["frame"])
            else:
                assert (event["type"], stack.pop()) == ("C", event["frame"])
        assert stack == []


def test_a_rank_is_a_profile_of_its_intervals() -> None:
    file = file_of(two_ranks())
    follow_the_rules(file)
    names = [frame["name"] for frame in file["shared"]["frames"]]
    assert names == ["step", "forward GPT", "wait for all_gather [tp]"]
    first, second = file["profiles"]
    assert (first["name"], second["name"]) == ("rank 0", "rank 1")
    assert [(event["type"], names[event["frame"]], event["at"]) for event in first["events"]][2:8] == [
        ("O", "step", 1000),
        ("O", "forward GPT", 1100),
        ("C", "forward GPT", 1400),
        ("O", "wait for all_gather [tp]", 1400),
        ("C", "wait for all_gather [tp]", 1700),
        ("C", "step", 2000),
    ]


def test_another_thread_is_a_profile_of_its_own() -> None:
    saving = phase(Phase.CHECKPOINT_STALL, 500, 900, thread="thread-1")
    file = file_of(two_ranks(saving))
    follow_the_rules(file)
    assert [profile["name"] for profile in file["profiles"]] == ["rank 0", "rank 0, thread-1", "rank 1"]
    assert [event["at"] for event in file["profiles"][1]["events"]] == [500, 900]


def test_a_crossing_interval_keeps_its_time() -> None:
    crossing = Row(kind=Kind.SPAN, start_ns=1600, end_ns=1800, name="mine", step=1)
    file = file_of(two_ranks(crossing))
    follow_the_rules(file)
    frame_number = [frame["name"] for frame in file["shared"]["frames"]].index("mine")
    at = [(event["type"], event["at"]) for event in file["profiles"][0]["events"] if event["frame"] == frame_number]
    assert at == [("O", 1600), ("C", 1700), ("O", 1700), ("C", 1800)]


@pytest.mark.parametrize("name", ["demo", "demo-3d"])
def test_a_recorded_run_follows_the_rules(name: str) -> None:
    timeline = open_run(f"sample_runs/{name}")
    file = file_of(timeline)
    follow_the_rules(file)
    assert len(file["profiles"]) == timeline.run.info.world_size
