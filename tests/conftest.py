"""Fixtures for every test: pools of worker processes."""

import fcntl
import gc
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path

import pytest

from tests import leftovers
from tests.cli.forked import SERVER
from tests.distributed.ranks.pool import Pool
from tests.faults.victims.victims import Victims
from tests.processes import starts_processes
from tests.seeds import VARIABLE

HERE = Path(__file__).parent
LAST = HERE / "virtual_gpu"
"""The folder whose tests are imported last."""
AFTER_MULTIPROCESSING = -200
"""Priority at the exit: multiprocessing deletes its own temporary files at -100, in this folder."""

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TRAINCOPE_METRICS"] = "off"  # agents started by tests use no port, unless a test asks for one
os.environ["TRAINCOPE_BUDGET"] = "none"  # sampling depends on the machine's speed; its own tests switch it on
os.environ["TRAINCOPE_AGENT"] = "off"  # one more process for each short run; tests of the agent start it themselves

if importlib.util.find_spec("hypothesis"):  # `make test-gpu` runs without it
    from hypothesis import HealthCheck, settings

    busy = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine all is slow
    settings.register_profile("fixed", busy, derandomize=True)
    settings.register_profile("fuzz", busy, derandomize=False, database=None, print_blob=True)
    settings.load_profile("fuzz" if VARIABLE in os.environ else "fixed")


POOLS, VICTIMS = "pools", "victims"
"""All tests with a pool of ranks, and all others with victims. One worker runs a whole group, because each worker would
start ranks, or a server of victims, of its own.
"""


@cache
def group(file: Path) -> str:
    """The tests that one worker runs: a folder, or all with a pool or with victims."""
    text, folder = file.read_text(), str(file.parent.relative_to(HERE))
    return POOLS if "import Pool" in text else VICTIMS if "import Victims" in text else folder


if importlib.util.find_spec("xdist"):
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        """Gives a whole group to one worker.

        The mark `xdist_group` would do for the pools, but pytest-xdist 3.8 ignores it under pytest 9.2.
        """

        def _split_scope(self, nodeid: str) -> str:
            return group(self.config.rootpath / nodeid.partition("::")[0])

    def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Groups:
        return Groups(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the pools, because pytest-xdist distributes groups in this order, and none takes longer.

    The folders at the end of the alphabet take a few seconds each: all workers end together.
    """
    if config.getoption("fast"):
        items[:] = [item for item in items if item.get_closest_marker("slow") is None]
    items.sort(key=lambda item: group(item.path) != POOLS)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the ranks after the last test with a pool: threads of their groups would take a tenth of a core."""
    if group(item.path) == POOLS and nextitem is not None and group(nextitem.path) != POOLS:
        for pool in _pools.values():
            pool.stop()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast", action="store_true", help="leave out slow tests, and the files whose tests start processes"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    left_out = config.getoption("fast") and collection_path.name.startswith("test_")
    return True if left_out and starts_processes(collection_path) else None


def pytest_configure(config: pytest.Config) -> None:
    """Give all processes of the tests one directory for their temporary files: killed ones leave theirs behind."""
    if not hasattr(config, "workerinput"):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # `tmp_path` of failed tests stays
        tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="tests-")
        os.chmod(tempfile.tempdir, 0o1777)  # like /tmp: some tests are those of an ordinary user
        options = {"ignore_errors": True}
        Finalize(None, shutil.rmtree, (tempfile.tempdir,), options, exitpriority=AFTER_MULTIPROCESSING)


@contextmanager
def _after_the_first(config: pytest.Config) -> Iterator[None]:
    """On a new machine, let one worker compile all tests, and the others wait for its files: each would take 16 s."""
    if not hasattr(config, "workerinput") or sys.dont_write_bytecode or any(LAST.glob("__pycache__/test_*")):
        yield
        return
    with (Path(tempfile.gettempdir()) / "compiling").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Switch the collector off while tests are imported: it would search a million modules' objects again and again.

    They live until the end, so it never looks at them later either.
    """
    gc.disable()
    try:
        with _after_the_first(session.config):
            return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Let the collector run between tests only, and give this process back its umask.

    The collector runs on any thread, pytest-xdist's included, and a test that records would find its records there.
    A command narrows the umask as if the process were its own; a later test could not share files with another user.
    """
    gc.disable()
    os.umask(umask := os.umask(0o77))
    try:
        return (yield)
    finally:
        os.umask(umask)
        gc.enable()


@pytest.fixture(autouse=True)
def _nothing_stays_compiled() -> Iterator[None]:
    """Reset compiled code; otherwise later tests of this process could not count FLOPs."""
    yield
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None and dynamo.counters["stats"]["unique_graphs"]:
        sys.modules["torch._dynamo"].reset()
        dynamo.counters.clear()


@pytest.fixture(scope="session", autouse=True)
def _no_process_stays() -> Iterator[None]:
    """A process that outlives its test would slow all others, and stay after them."""
    os.environ[leftovers.VARIABLE] = str(os.getpid())
    yield
    SERVER.stop()
    left = leftovers.end_all(os.environ.pop(leftovers.VARIABLE))
    assert not left, f"tests left processes: {left}"


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Pool]:
    """Two processes in one gloo group."""
    yield from _pool(2)


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[Pool]:
    """Four processes in one gloo group."""
    yield from _pool(4)


_pools: dict[int, Pool] = {}


def _pool(size: int) -> Iterator[Pool]:
    pool = _pools[size] = Pool(size)
    yield pool
    pool.stop()


@pytest.fixture(scope="session")
def victims() -> Iterator[Victims]:
    """A starter of processes that suffer a fault, or need an interpreter of their own."""
    started = Victims()
    yield started
    started.stop()
