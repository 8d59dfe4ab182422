"""A redacted run says the same in numbers and nothing in names."""

from pathlib import Path

import pytest

import traincope
from traincope.errors import UsageError
from traincope.report import to_document
from traincope.store.redaction import redact

SAMPLES = sorted((Path(__file__).parents[2] / "sample_runs").iterdir())
SECRET = "planted-secret"


def record(path: Path) -> None:
    with traincope.run(path) as run:
        run.describe(project=SECRET, tokens_per_step=64, nested={"customer": [SECRET]})
        for step in range(3):
            run.step()
            with traincope.span(SECRET):
                traincope.event(f"{SECRET} event", why=SECRET, step=step)
            run.log(**{SECRET: 1.0})


def test_no_name_is_left(tmp_path: Path) -> None:
    record(tmp_path / "run")
    redact(tmp_path / "run", tmp_path / "shown")
    host = Path("/proc/sys/kernel/hostname").read_text().strip()
    cards = [path.read_bytes() for path in (tmp_path / "shown").rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in content for content in cards)
    assert not any(f'"{host}"'.encode() in content for content in cards)
    assert any(SECRET.encode() in path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_every_number_stays(tmp_path: Path, sample: Path) -> None:
    redact(sample, tmp_path / "shown")
    before = to_document(traincope.analyze(traincope.open_run(sample)))
    after = to_document(traincope.analyze(traincope.open_run(tmp_path / "shown")))
    for key in ("ledger", "comm", "bubble", "stragglers", "utilization", "faults", "memory", "goodput"):
        assert after[key] == before[key], key  # type: ignore[literal-required]
    assert [finding["kind"] for finding in after["verdict"]] == [finding["kind"] for finding in before["verdict"]]


def test_what_experts_got_stays(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run") as run:
        run.log(**{"expert_tokens[2.1]": 30, "expert_tokens[2.0]": 10, "expert_padding": 8, "expert_dropped": 4})
        run.step()
    redact(tmp_path / "run", tmp_path / "shown")
    loads = traincope.analyze(traincope.open_run(tmp_path / "shown")).experts
    assert loads is not None
    assert (loads.layers[0].tokens, loads.padding, loads.dropped) == ((10, 30), 8, 4)


def test_what_the_recorder_says_of_an_end_stays(tmp_path: Path) -> None:
    def fail() -> None:
        with traincope.run(tmp_path / "run") as run:
            run.step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    redact(tmp_path / "run", tmp_path / "shown")
    (fault,) = to_document(traincope.analyze(traincope.open_run(tmp_path / "shown")))["faults"]
    assert fault["kind"] == "exception"
    assert "ZeroDivisionError" in fault["what"]
    assert "test_redaction" not in str(fault)


def test_a_place_that_is_taken_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "run")
    with pytest.raises(UsageError, match="is there already"):
        redact(tmp_path / "run", tmp_path)
