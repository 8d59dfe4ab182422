"""The tail of a rank's state checks yields each check once, also if the files change places while it opens them."""

from pathlib import Path
from typing import Any

import pytest

from traincope.record.state import check_file
from traincope.record.state.check_file import CheckFile
from traincope.store.job.state_checks import HeldCheck, Layout, StateCheck, StateCheckTail
from traincope.store.layout import OLD_STATE_CHECKS_FILE, STATE_CHECKS_FILE

LAYOUT = Layout(optimizer=0, tensors=())
CHECKS = 60


def held(step: int) -> HeldCheck:
    return HeldCheck(step=step, good_ns=1, at_ns=2, cost_ns=3, layout=LAYOUT, changed={})


def read(tail: StateCheckTail) -> list[int]:
    return [check.step for check in tail.read() if not isinstance(check, StateCheck)]


@pytest.mark.parametrize("before", [STATE_CHECKS_FILE, OLD_STATE_CHECKS_FILE])
def test_a_rotation_between_two_opens_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """A check is written right before one of the two files is opened. After every third one the files change."""
    monkeypatch.setattr(check_file, "MAX_FILE_BYTES", 250)
    writer, tail, opened = CheckFile(lambda: tmp_path), StateCheckTail(tmp_path), Path.open
    written = 0

    def open_after_a_check(path: Path, *arguments: Any, **options: Any) -> Any:
        nonlocal written
        if path.name == before and arguments == ("rb",) and written < CHECKS:
            writer.write(held(written))
            written += 1
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", open_after_a_check)
    steps = [step for _ in range(CHECKS) for step in read(tail)] + read(tail)
    writer.close()
    assert steps == list(range(CHECKS))
    assert (tmp_path / OLD_STATE_CHECKS_FILE).exists()
