"""Workers that run tests: forks of the process that has imported and collected them, so no worker imports them again.

A worker asks for a group of tests, runs it, and reports to the process that it was forked from.
"""

import os
import sys
import traceback
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import NoReturn

import pytest

Group = Sequence[pytest.Item]
NEXT, STARTED, REPORT, FINISHED = "next", "started", "report", "finished"
"""What a worker says: it wants a group; a test began, has a report, ended."""


@dataclass(kw_only=True)
class _Worker:
    pid: int
    tests: deque[pytest.Item] = field(default_factory=deque)
    """What it was given and has not finished, in its order."""
    has_started: bool = False
    """The first of its tests runs."""


class Workers:
    """Workers that share the groups of a session, in their order."""

    def __init__(self, session: pytest.Session, groups: Sequence[Group]) -> None:
        self._session = session
        self._groups = list(groups)
        self._waiting = deque(range(len(groups)))
        self._workers: dict[Connection, _Worker] = {}

    def run(self, count: int) -> None:
        """Run all groups with `count` workers."""
        config = self._session.config
        config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # the workers share it
        try:
            for _ in range(min(count, len(self._groups))):
                self._start()
            while self._workers:
                for connection in wait(list(self._workers)):
                    assert isinstance(connection, Connection)
                    self._hear(connection)
                    if self._session.shouldfail:
                        raise self._session.Failed(self._session.shouldfail)
        finally:
            for connection in self._workers:
                connection.close()
            for worker in self._workers.values():
                os.waitpid(worker.pid, 0)
            config.pluginmanager.getplugin("capturemanager").read_global_capture()  # what the workers wrote into it

    def _start(self) -> None:
        ours, theirs = Pipe()
        pid = os.fork()
        if pid == 0:
            for connection in (ours, *self._workers):
                connection.close()
            _serve(self._session, self._groups, theirs)
        theirs.close()
        self._workers[ours] = _Worker(pid=pid)

    def _hear(self, connection: Connection) -> None:
        worker, hook = self._workers[connection], self._session.config.hook
        what, value = None, None
        with suppress(EOFError, ConnectionResetError):
            what, value = connection.recv()
        if what is None:
            del self._workers[connection]
            self._ended(worker)
        elif what == NEXT:
            number = self._waiting.popleft() if self._waiting else None
            worker.tests.extend(() if number is None else self._groups[number])
            connection.send(number)
        elif what == STARTED:
            worker.has_started = True
            hook.pytest_runtest_logstart(nodeid=worker.tests[0].nodeid, location=worker.tests[0].location)
        elif what == REPORT:
            report = hook.pytest_report_from_serializable(config=self._session.config, data=value)
            hook.pytest_runtest_logreport(report=report)
        else:
            assert what == FINISHED
            self._finish(worker)

    def _finish(self, worker: _Worker) -> None:
        test, worker.has_started = worker.tests.popleft(), False
        self._session.config.hook.pytest_runtest_logfinish(nodeid=test.nodeid, location=test.location)

    def _ended(self, worker: _Worker) -> None:
        """If a test ended its worker, the test has failed, and another worker takes the rest of its group."""
        code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if worker.has_started:
            test = worker.tests[0]
            text = f"the test ended its worker (exit code {code})"
            report = pytest.TestReport(test.nodeid, test.location, {}, "failed", text, "call")
            self._session.config.hook.pytest_runtest_logreport(report=report)
            self._finish(worker)
        elif code:
            raise RuntimeError(f"a worker ended between tests (exit code {code})")
        if worker.tests:
            self._waiting.appendleft(len(self._groups))
            self._groups.append(list(worker.tests))
            self._start()


class _Reporter:
    """Sends what a worker's tests report."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config, self._connection = config, connection

    def pytest_runtest_logstart(self) -> None:
        self._connection.send((STARTED, None))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send((REPORT, data))

    def pytest_runtest_logfinish(self) -> None:
        self._connection.send((FINISHED, None))


def _serve(session: pytest.Session, groups: Sequence[Group], connection: Connection) -> NoReturn:
    """Be a worker until there is no group left, or until the process above has ended."""
    plugins, code = session.config.pluginmanager, 1
    capture = plugins.getplugin("capturemanager")
    try:
        plugins.unregister(name="terminalreporter")
        plugins.register(_Reporter(session.config, connection))
        # A capture of its own. The one above stays open, because imported modules keep its files.
        _above, capture._global_capturing = capture._global_capturing, None
        capture.start_global_capturing()
        capture.suspend_global_capture()
        with suppress(EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
            _run_groups(groups, connection)
            code = 0
    finally:
        if sys.exc_info()[0] is not None:
            capture.suspend_global_capture()
            traceback.print_exc()
        os._exit(code)  # nothing that the process above is to do at its exit


def _run_groups(groups: Sequence[Group], connection: Connection) -> None:
    """The next group is asked for before the last test of one: fixtures that both use go on."""

    def following() -> Group:
        connection.send((NEXT, None))
        number: int | None = connection.recv()
        return () if number is None else groups[number]

    group = following()
    while group:
        for test, after in pairwise(group):
            _run(test, after)
        last, group = group[-1], following()
        _run(last, group[0] if group else None)


def _run(test: pytest.Item, after: pytest.Item | None) -> None:
    test.config.hook.pytest_runtest_protocol(item=test, nextitem=after)
