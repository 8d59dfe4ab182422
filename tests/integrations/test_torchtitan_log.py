"""The handler of torchtitan's structured log, given records as torchtitan writes them."""

import logging
from pathlib import Path
from threading import Thread

import traincope
from traincope import open_run
from traincope.events import Kind
from traincope.integrations.torchtitan_log import SpanHandler


def record(kind: str, *, task: str | None = None, **fields: object) -> logging.LogRecord:
    return logging.makeLogRecord({"log_type_name": kind, "task_name": task, **fields})


def test_only_open_spans_are_kept(tmp_path: Path) -> None:
    """Equal names nest, and spans of tasks and threads overlap. An end without a begin is left out."""
    handler = SpanHandler()
    with traincope.run(tmp_path / "run", agent=False, budget=None):
        for number in range(3):
            for kind in ("eval_start", "eval_start", "eval_end", "eval_end", "eval_end", "training_end"):
                handler.handle(record(kind, task=f"task-{number}"))
        other = Thread(target=lambda: handler.handle(record("save_start")))
        other.start()
        other.join()
        assert [spans for spans in handler._open.values() if not spans] == []
        assert [name for _, _, name in handler._open] == ["save"]
    (rank,) = open_run(tmp_path / "run").ranks
    assert [rank.name(int(number)) for number in rank.of_kind(Kind.SPAN)["name"]] == ["eval"] * 6


def test_a_value_may_have_any_name(tmp_path: Path) -> None:
    handler = SpanHandler()
    with traincope.run(tmp_path / "run", agent=False, budget=None) as run:
        for name in ("self", "name", "values"):
            handler.handle(record("metric_value", event_name=name, value=2.0))
        run.step()
    (rank,) = open_run(tmp_path / "run").ranks
    scalars = rank.of_kind(Kind.SCALAR)
    assert {rank.name(int(number)) for number in scalars["name"]} >= {"self", "name", "values"}
