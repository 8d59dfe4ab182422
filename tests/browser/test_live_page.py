"""`traincope live` with real ranks in their own processes, in a real browser."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.browser import PATIENCE_MS, Visit
from tests.live.processes import start_rank, until
from traincope.store.job.requests import Cause, read_requests
from traincope.store.layout import COMPACTED, ROWS_FILE, rank_directory

LIVE = [sys.executable, "-m", "traincope.cli.main", "live", "--no-browser", "--port", "0"]
RANKS = 2
RUNNING = re.compile(r"^Running, step [\d,]+, last record .* ago, 2 ranks\.$")
LAST_STEP = "tr:has(td:text-is('alive')) td:nth-child(3)"
Go = Callable[..., Visit]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Two ranks that train until `stop` exists, without an agent, so that only the page could write files."""

    run: Path
    stop: Path
    ranks: tuple[subprocess.Popen[bytes], ...]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    run, stop = tmp_path / "my-job", tmp_path / "stop"
    ranks = [start_rank(run, stop, rank=rank, ranks=RANKS, TRAINCOPE_AGENT="off") for rank in range(RANKS)]
    try:
        cards = [rank_directory(run, attempt=0, rank=rank) / "rank.json" for rank in range(RANKS)]
        until(lambda: all(card.exists() for card in cards), "both ranks")
        yield Job(run=run, stop=stop, ranks=tuple(ranks))
    finally:
        stop.touch()
        for rank in ranks:
            rank.communicate()


def test_the_page_follows_the_job_requests_a_window_and_shows_a_lost_rank(job: Job, visit: Go) -> None:
    with subprocess.Popen([*LIVE, str(job.run)], stdout=subprocess.PIPE, text=True) as live:
        try:
            assert live.stdout is not None
            address = live.stdout.readline().split()[0]
            assert address.startswith("http://127.0.0.1:")
            snapshot = visit(address)
            page = snapshot.page
            expect(page.locator("main .js-plotly-plot")).to_have_count(2, timeout=PATIENCE_MS)
            expect(page.locator("[role=status]")).to_have_text(RUNNING, timeout=PATIENCE_MS)
            shown = page.locator(LAST_STEP).first.inner_text()
            expect(page.locator(LAST_STEP).first).not_to_have_text(shown, timeout=PATIENCE_MS)
            assert rows(page.inner_text("main")) == [("rank 0", "alive"), ("rank 1", "alive")]
            page.get_by_role("button", name="record 20 steps in detail").click()
            answer = page.get_by_text("All ranks record steps")
            expect(answer).to_be_visible(timeout=PATIENCE_MS)
            (request,) = read_requests(job.run, attempt=0)
            assert request.cause is Cause.VIEWER
            assert f"steps {request.first_step + 1} to {request.first_step + 20} in detail." in answer.inner_text()
            os.kill(job.ranks[1].pid, signal.SIGKILL)
            expect(page.get_by_role("cell", name="gone", exact=True)).to_be_visible(timeout=PATIENCE_MS)
            expect(page.get_by_role("cell", name="killed", exact=True)).to_be_visible(timeout=PATIENCE_MS)
            job.stop.touch()
            expect(page.locator("[role=status]")).to_contain_text("have ended", timeout=PATIENCE_MS)
            assert (snapshot.complaints, snapshot.went_to(besides=address)) == ([], [])
        finally:
            live.terminate()
    assert live.returncode == 0
    for theirs in (ROWS_FILE, f"*{COMPACTED}", "metrics-*.json"):
        assert not list(job.run.rglob(theirs)), "what is an agent's to write"


def rows(text: str) -> list[tuple[str, str]]:
    """Ranks in the table, with their states."""
    cells = (line.split("\t") for line in text.splitlines())
    return [(line[0], line[1]) for line in cells if line[0].startswith("rank ") and len(line) == 5]


def test_without_a_running_job_it_says_so(job: Job) -> None:
    job.stop.touch()
    for rank in job.ranks:
        rank.wait()
    done = subprocess.run([*LIVE, str(job.run)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == (
        f"traincope live: {job.run} is not running: its ranks on this host have ended; `traincope view` shows the run\n"
    )
