"""The text of an injection, and the delays of a slow rank."""

from pathlib import Path

import pytest

from traincope.cli.main import main
from traincope.errors import UsageError
from traincope.inject import FAULTS, Injection, parse_injections
from traincope.inject.injection import Moment, Shape
from traincope.inject.kinds.slowness import delay_seconds


def test_a_fault_has_defaults_and_settings() -> None:
    assert parse_injections("sleep", known=FAULTS) == (Injection(name="sleep"),)
    assert parse_injections(
        "slow@rank=3,step=20,phase=backward,seconds=0.5,shape=growing + sigkill@rank=0", known=FAULTS
    ) == (
        Injection(name="slow", rank=3, step=20, phase=Moment.BACKWARD, seconds=0.5, shape=Shape.GROWING),
        Injection(name="sigkill", rank=0),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slowly", "unknown fault 'slowly'; known are agent_killed, "),
        ("slow@who=3", "unknown setting 'who' of a fault; known are rank, step, phase, seconds, shape"),
        ("slow@rank=one", "rank=one of the fault slow is not valid"),
        ("slow@phase=lunch", "phase=lunch of the fault slow is not valid"),
        ("slow@step=0", "needs a rank from 0, a step from 1"),
        ("slow+", "unknown fault ''"),
    ],
)
def test_a_wrong_text_is_refused_in_words(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        parse_injections(text, known=FAULTS)


def test_the_command_line_refuses_it_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--out", str(tmp_path / "run"), "--fault", "slowly", "--", "true"])
    assert "unknown fault 'slowly'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("shape", "delays"),
    [
        (Shape.CONSTANT, [0, 0, 1, 1, 1, 1, 1, 1]),
        (Shape.GROWING, [0, 0, 1, 1.1, 1.2, 1.3, 1.4, 1.5]),
        (Shape.PERIODIC, [0, 0, 1, 0, 0, 0, 0, 1]),
        (Shape.ONCE, [0, 0, 1, 0, 0, 0, 0, 0]),
    ],
)
def test_delays_by_step(shape: Shape, delays: list[float]) -> None:
    injection = Injection(name="slow", step=2, seconds=1.0, shape=shape)
    assert [delay_seconds(injection, step) for step in range(8)] == pytest.approx(delays)
