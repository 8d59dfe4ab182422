"""Run a command as a child so that neither the command nor those above this process see a difference.

- The child is the command's process: the same group, terminal, descriptors, limits, ignored and blocked signals.
- A signal that reaches only this process goes on to the child (`Sentinel`). The child's stops stop this process too.
- This process keeps no descriptor that the command could want to be the only one to hold, except standard error.
- If this process is killed, so is the child.
- This process ends as the child did: by its exit code, or by its signal.
"""

import errno
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import NoReturn, Self

from traincope.cli.launch.hang_exit import HangExit
from traincope.cli.launch.parent_death import PR_SET_DUMPABLE, control, end_with_parent
from traincope.cli.launch.sentinel import Sentinel
from traincope.errors import CommandError

OWN = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
"""Signals of a fault of this process itself. A handler of Python would repeat the fault for ever."""
HANDLED = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP} - OWN
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that ask a process to end."""
SUSPENDING = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
HARMLESS = (signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH)
"""Signals that by default do nothing to a running process."""
OF_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that every Python ignores. What they were before is not known, so the child has the default."""
KILLED = 128
"""A shell's exit code after a signal is 128 + the signal's number."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""A shell's exit codes for commands that cannot be started."""
SHELL = "/bin/sh"
LATE_SECONDS = 0.01
"""A signal that goes to several processes one by one reaches the sentinel this late."""
PID_SUFFIX = "PID"
"""End of the names of variables that hold the command's process id, e.g. LISTEN_PID, WATCHDOG_PID, SLURM_TASK_PID."""
PROCESS_VARIABLE = "LISTEN_PIDFDID"
"""systemd's other name of the process that LISTEN_PID names. Without it, LISTEN_PID alone counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a command."""

    pid: int
    exit_code: int
    """Negative: the signal that ended it."""
    stop_signal: signal.Signals | None
    """The first signal that asked for an end: one that this process received, or its own to a job that hung."""


class Child:
    """A running command. In the block, this process's signals belong to it."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str]) -> None:
        """Start it. Raises CommandError if it cannot be started, OSError if no process can be."""
        _fill_standard_descriptors()
        self._inherited = _inherited_descriptors()
        self._signals = _Signals()
        self._received: list[signal.Signals] = []
        self._suspended_by: int | None = None
        self._is_stopped = False
        self._exit_code: int | None = None
        self._sentinel = Sentinel()
        try:
            self.pid = _fork(command, environment=environment, signals=self._signals)
        except BaseException:
            self._close()
            raise
        self._signals.unblock()

    def __enter__(self) -> Self:
        _let_go(self._inherited)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._close()

    def run(self, hang_exit: HangExit | None = None) -> Ended:
        """Wait for the command's end, or end it if its job hangs."""
        code = self.wait() if hang_exit is None else hang_exit.wait(self)
        self._sentinel.end()
        received = [*self._received, *map(signal.Signals, filter(_is_named, self._signals.arrived(0)))]
        if hang_exit is not None and hang_exit.notice is not None:
            received.append(signal.SIGTERM)
        stops = (number for number in received if number in STOPPING and not self._signals.was_ignored(number))
        return Ended(pid=self.pid, exit_code=code, stop_signal=next(stops, None))

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises TimeoutExpired."""
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self._look()) is None:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            for number in self._signals.arrived(left):
                self._receive(number)
        return code

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def afterwards(self, work: Callable[[], object]) -> None:
        """Do the work, which a signal that asks for an end interrupts: the command has ended already."""
        with suppress(KeyboardInterrupt), self._signals.interrupting():
            work()

    def _look(self) -> int | None:
        """Return the exit code after the child's end. Stop with it if the terminal asked for that."""
        while self._exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if not pid:
                break
            if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                self._is_stopped = os.WIFSTOPPED(status)
            else:
                self._exit_code = os.waitstatus_to_exitcode(status)
        if self._is_stopped and self._suspended_by is not None:
            number, self._suspended_by = self._suspended_by, None
            self._signals.stop(number)
        return self._exit_code

    def _receive(self, number: int) -> None:
        if number == signal.SIGCHLD:
            return
        if _is_named(number):
            self._received.append(signal.Signals(number))
        if number in SUSPENDING:
            self._suspended_by = number
        elif number == signal.SIGCONT:
            self._suspended_by = None
        if self._sentinel.has_seen(number):
            return
        time.sleep(LATE_SECONDS)
        if not self._sentinel.has_seen(number):
            self._send(number)

    def _send(self, number: int) -> None:
        if self._exit_code is None:
            with suppress(OSError):  # of a command with the rights of another user
                os.kill(self.pid, number)

    def _close(self) -> None:
        self._sentinel.end()
        self._signals.close()


class _Signals:
    """Receives all signals of this process. They are blocked until `unblock()`."""

    def __init__(self) -> None:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            self._reading, self._writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            raise
        self._before = {number: signal.signal(number, _nothing) for number in HANDLED}
        self._wakeup = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(self._reading, select.POLLIN)

    def unblock(self) -> None:
        """Receive signals. Those that this process was started with as blocked, only the child blocks."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)

    def arrived(self, seconds: float | None) -> bytes:
        """Wait for signals, at most so long. Returns their numbers."""
        if self._poll.poll(None if seconds is None else max(seconds, 0) * 1000):
            with suppress(BlockingIOError):
                return os.read(self._reading, 4096)
        return b""

    def was_ignored(self, number: int) -> bool:
        return self._before[signal.Signals(number)] is signal.SIG_IGN

    def stop(self, number: int) -> None:
        """Stop this process as a terminal does, until it is continued."""
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, _nothing)

    def interrupting(self) -> "_Interrupting":
        signal.set_wakeup_fd(self._wakeup)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        return _Interrupting()

    def give_back(self) -> None:
        """Make signals those of a program that starts, in a process that becomes one."""
        for number, handler in self._before.items():
            keeps = handler is signal.SIG_IGN and number not in OF_PYTHON
            signal.signal(number, signal.SIG_IGN if keeps else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def close(self) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        os.close(self._reading)
        os.close(self._writing)


class _Interrupting:
    """Context in which the first signal that asks for an end raises KeyboardInterrupt. Later ones do nothing."""

    def __init__(self) -> None:
        self._is_over = False

    def __enter__(self) -> None:
        for number in HANDLED:
            default = number in SUSPENDING or number in HARMLESS
            signal.signal(number, signal.SIG_DFL if default else self._interrupt)

    def __exit__(self, *error: object) -> None:
        self._is_over = True

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if not self._is_over:
            self._is_over = True
            raise KeyboardInterrupt


def run_here(command: Sequence[str], *, environment: Mapping[str, str]) -> NoReturn:
    """Become the command. Raises CommandError if it cannot be started."""
    for number in OF_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    try:
        _become(command, environment)
    except OSError as error:
        raise _refusal(command, error.errno) from error


def end_as(ended: Ended) -> int:
    """End this process by the signal that ended the command, without a core file. Otherwise return the exit code."""
    if ended.exit_code >= 0:
        return ended.exit_code
    number = -ended.exit_code
    control(PR_SET_DUMPABLE, 0)
    with suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return KILLED + number  # the first process of a container survives its own signals


def _fork(command: Sequence[str], *, environment: Mapping[str, str], signals: _Signals) -> int:
    parent = os.getpid()
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
        if pid == 0:
            _run_in_child(command, environment, signals, parent=parent, failures=writing)
    finally:
        os.close(writing)
    with open(reading, "rb") as pipe:
        failure = pipe.read()
    if failure:
        os.waitpid(pid, 0)
        raise _refusal(command, int(failure))
    return pid


def _run_in_child(
    command: Sequence[str], environment: Mapping[str, str], signals: _Signals, *, parent: int, failures: int
) -> NoReturn:
    code = 0
    try:
        end_with_parent(signal.SIGKILL, parent=parent)
        signals.give_back()
        _become(command, _with_own_pid(environment, instead_of=parent))
    except OSError as error:
        code = error.errno or errno.EINVAL
    finally:  # also after an unforeseen error: this process must not go on as the parent does
        os.write(failures, str(code or errno.EINVAL).encode())
        os._exit(NOT_FOUND)


def _become(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Run the command in this process, a script without `#!` by the shell, as execvp(3) does. Raises OSError."""
    try:
        os.execvpe(command[0], list(command), environment)
    except OSError as error:
        if error.errno != errno.ENOEXEC or not error.filename:
            raise
        script = error.filename
    os.execve(SHELL, [SHELL, script, *command[1:]], environment)


def _with_own_pid(environment: Mapping[str, str], *, instead_of: int) -> dict[str, str]:
    """The environment, with this process's id where a variable named that of the parent."""
    return {
        name: str(os.getpid()) if name.endswith(PID_SUFFIX) and value == str(instead_of) else value
        for name, value in environment.items()
        if name != PROCESS_VARIABLE
    }


def _refusal(command: Sequence[str], number: int | None) -> CommandError:
    code = NOT_FOUND if number in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE
    return CommandError(f"cannot start {command[0]}: {os.strerror(number or 0)}", exit_code=code)


def _fill_standard_descriptors() -> None:
    """Open the closed ones of input, output and error: otherwise a file of ours would get the number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # not inherited, so closed in the child
        pass
    os.close(descriptor)


def _inherited_descriptors() -> tuple[int, ...]:
    """Descriptors from above this process, except the standard ones. Python opens none that a child would inherit."""
    inherited = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if int(name) > 2 and os.get_inheritable(int(name)):
                inherited.append(int(name))
    return tuple(inherited)


def _let_go(inherited: Sequence[int]) -> None:
    """Leave the command alone with what it reads, writes and holds: another holder would delay a pipe's end."""
    for descriptor in inherited:
        os.close(descriptor)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor, inheritable=False)
    os.close(null)


def _is_named(number: int) -> bool:
    """False for real-time signals, most of which have no name."""
    return number in signal.Signals.__members__.values()


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Python writes the number to the wakeup descriptor."""
