"""The last rounds of an agent, to directories."""

import json
import shutil
from pathlib import Path

import pytest

from traincope.live.shipping.agent_shipping import AgentShipping
from traincope.live.shipping.limits import ShipSettings
from traincope.live.shipping.loop import ShippingLoop
from traincope.live.shipping.shipper import Shipper
from traincope.live.shipping.targets import Directory
from traincope.record.session.identity import this_host
from traincope.store.lines import read_object
from traincope.store.places.ship_notes import is_shipped, left_notes

DEMO = Path(__file__).parents[3] / "sample_runs" / "demo"
HERE = this_host()


class Absent(Directory):
    """A directory that comes back after some failures."""

    def __init__(self, root: Path, *, failures: int) -> None:
        super().__init__(root)
        self.failures = failures

    def write(self, name: str, content: bytes) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(5, "Input/output error")
        super().write(name, content)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The demo's run, as if its ranks had been on this host."""
    run = tmp_path / "local"
    shutil.copytree(DEMO, run, ignore=shutil.ignore_patterns("MADE_BY", "expected.json"))
    for manifest in run.glob("attempt-000/rank-*/rank.json"):
        change(manifest, host=HERE.name, boot_id=HERE.boot_id)
    return run


def change(manifest: Path, **values: object) -> None:
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **values}))


def shipping(run: Path, target: Directory) -> AgentShipping:
    settings = ShipSettings(interval_seconds=0.1)
    loop = ShippingLoop(run, attempt=0, host=HERE, targets=[target], settings=settings, named=Path(target.place))
    loop.start()
    return AgentShipping(run=run, attempt=0, named=Path(target.place), loop=loop)


def is_complete(there: Path) -> object:
    (note,) = there.glob("attempt-000/shipped-*.json")
    return read_object(note)["complete"]


def test_a_stopped_agent_does_not_end_the_records_of_ranks_that_run(run: Path, tmp_path: Path) -> None:
    change(run / "attempt-000" / "rank-00000" / "rank.json", ending=None)
    there = tmp_path / "there"
    assert shipping(run, Directory(there)).finish(is_stopping=lambda: True) is None
    assert (there / "attempt-000" / "rank-00000" / "main-00000.seg").exists()
    assert is_complete(there) is False


def test_a_destination_that_failed_at_the_end_is_tried_again(run: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    assert shipping(run, Absent(there, failures=2)).finish(is_stopping=lambda: False) == there
    assert is_complete(there) is True
    assert not run.exists()


def test_a_signal_ends_the_tries(run: Path, tmp_path: Path) -> None:
    answers = iter([False])
    ending = shipping(run, Absent(tmp_path / "there", failures=1 << 30))
    assert ending.finish(is_stopping=lambda: next(answers, True)) is None
    assert run.exists()


def test_records_of_a_host_that_shares_the_place_stay(run: Path, tmp_path: Path) -> None:
    change(run / "attempt-000" / "rank-00003" / "rank.json", host="another-container")
    assert shipping(run, Directory(tmp_path / "there")).finish(is_stopping=lambda: False) is None
    assert (run / "attempt-000" / "rank-00003" / "main-00000.seg").exists()


def test_a_run_is_not_shipped_before_its_last_destination_has_begun(run: Path, tmp_path: Path) -> None:
    targets = [Directory(tmp_path / name) for name in ("first", "second")]
    loop = ShippingLoop(run, attempt=0, host=HERE, targets=targets, settings=ShipSettings(), named=None)
    loop.start()
    loop.finish(within_seconds=0.0)  # the thread ends before its first round
    assert all(note.left_files > 0 and not note.complete for note in left_notes(run))
    assert len(left_notes(run)) == len(targets)
    shipped = []
    for target in targets:
        Shipper(run, attempt=0, host=HERE, target=target).round(last=True)
        shipped.append(is_shipped(run, attempt=0, host=HERE))
    assert shipped == [False, True]
