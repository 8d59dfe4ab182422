"""`make truth` passes only if every row is judged and holds."""

from collections.abc import Iterator

import pytest

from benchmarks.judging import NOT_SHOWN_EXIT
from evaluation.truth import __main__ as command
from evaluation.truth.rows import Row


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([(True, True)], 0),
        ([(True, True), (True, False)], 1),
        ([(True, True), (False, True)], NOT_SHOWN_EXIT),
        ([(False, True), (True, False)], 1),
        ([], 1),
    ],
    ids=["holds", "missed", "a noisy machine", "missed on a noisy machine", "no row"],
)
def test_rows_that_noise_hides_do_not_pass(
    rows: list[tuple[bool, bool]], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def part() -> Iterator[Row]:
        for weighed, holds in rows:
            yield Row(part="a", case="b", quantity="c", truth="1", measured="1", weighed=weighed, holds=holds)

    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which the command sets for good
    monkeypatch.setattr(command, "PARTS", {"a": part})
    assert command.main([]) == code
    assert capsys.readouterr().out.strip().endswith(f"{sum(not holds for _, holds in rows)} missed")
