import logging

import pytest

from traincope.record.guard import failures, guard


def test_the_first_error_is_logged_once_and_switches_the_hook_off(caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    @guard
    def hook(value: int) -> int:
        calls.append(value)
        if value < 0:
            raise ValueError("negative")
        return value

    with caplog.at_level(logging.WARNING):
        assert [hook(1), hook(-1), hook(2)] == [1, None, None]
    assert calls == [1, -1]
    assert len(caplog.records) == 1
    assert "training goes on: ValueError: negative" in caplog.text
    assert any(text == "ValueError: negative" for text in failures.values())
    failures.clear()


def test_an_interrupt_of_the_user_passes() -> None:
    @guard
    def hook() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hook()
