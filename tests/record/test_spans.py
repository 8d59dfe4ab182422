from pathlib import Path

import traincope
from traincope.events import Kind
from traincope.store import read_run


def test_a_span_reused_after_the_run_changes_no_record(tmp_path: Path) -> None:
    """The record's memory lives as long as the span, also after the run."""
    again = traincope.span("work")
    with traincope.run(tmp_path / "run") as run:
        run.step()
        with again:
            pass
    before = recorded_spans(tmp_path / "run")
    with again:
        pass
    assert recorded_spans(tmp_path / "run") == before
    assert len(before) == 1


def recorded_spans(path: Path) -> list[tuple[int, int]]:
    """Starts and ends in ns."""
    main = read_run(path).ranks[0].thread("main")
    spans = main[main["kind"] == Kind.SPAN]
    return [(int(start), int(end)) for start, end in zip(spans["start_ns"], spans["end_ns"], strict=True)]
