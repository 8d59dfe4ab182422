"""Workers run each test once, show what a failed one printed, and go on after a test that ends its worker."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENDED = "a worker ended"
CONFTEST = """
import pytest
from pathlib import Path
from tests.forks import Workers

NOTES = Path(__file__).parent / "notes"

def note(text):
    with NOTES.open("a") as notes:
        notes.write(f"{text}\\n")

def pytest_runtestloop(session):
    files = [[test for test in session.items if test.path.stem == stem] for stem in ("test_a", "test_b")]
    Workers(session, files).run(2)
    return True

@pytest.fixture(scope="session", autouse=True)
def session_of_a_worker():
    yield
    note("a worker ended")

@pytest.fixture(autouse=True)
def each(request):
    note(request.node.name)
"""
TEST_A = """
import os

def test_first(): pass
def test_that_ends_its_worker(): os._exit(3)
def test_after_it(tmp_path): pass
def test_last(): pass
"""
TEST_B = """
def test_that_fails():
    print("what it printed")
    assert [1] == [2]
def test_other(capfd):
    print("what it printed")
    assert capfd.readouterr().out == "what it printed\\n"
"""


def test_each_test_runs_once_and_one_that_ends_its_worker_fails_alone(tmp_path: Path) -> None:
    files = {"conftest.py": CONFTEST, "test_a.py": TEST_A, "test_b.py": TEST_B, "pytest.ini": "[pytest]"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", "--basetemp", tmp_path / "temporary"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "2 failed, 4 passed" in ended.stdout
    assert "FAILED test_a.py::test_that_ends_its_worker - the test ended its worker (exit" in ended.stdout
    assert "FAILED test_b.py::test_that_fails - assert [1] == [2]" in ended.stdout
    assert ended.stdout.count("what it printed") == 2, "in the source and in its output"
    notes = (tmp_path / "notes").read_text().splitlines()
    tests = ("test_first", "test_that_ends_its_worker", "test_after_it", "test_last", "test_that_fails", "test_other")
    assert sorted(note for note in notes if note != ENDED) == sorted(tests)
    assert ENDED in notes
