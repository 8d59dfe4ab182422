"""A child behaves as without traincope: real children, real signals, a real terminal."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from traincope.cli.launch.child import run_child
from traincope.errors import UsageError

IN_CHILD = """
import sys
from traincope.cli.launch.child import run_child
ended = run_child([sys.executable, "-uSc", sys.argv[1]], environment={})
print(ended.stop_signal, file=sys.stderr)
sys.exit(ended.shell_code)
"""

COUNTS_SIGNALS = """
import signal, time
seen = []
signal.signal(signal.{name}, lambda *_: seen.append(1))
print("ready")
while not seen:
    time.sleep(0.01)
time.sleep(0.2)
print(len(seen), "seen")
"""


def started(script: str, **options) -> "subprocess.Popen[str]":  # type: ignore[no-untyped-def]
    return subprocess.Popen([sys.executable, "-c", IN_CHILD, script], text=True, **options)


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_the_childs_exit_code_is_passed_on(script: str, code: int) -> None:
    ended = run_child(["sh", "-c", script], environment=os.environ)
    assert (ended.shell_code, ended.stop_signal) == (code, None)
    assert ended.exit_code == (128 - code if code > 128 else code)


def test_a_command_that_cannot_start_is_one_sentence(tmp_path: Path) -> None:
    for command, why in (("no-such-command", "No such file or directory"), (str(tmp_path), "Permission denied")):
        with pytest.raises(UsageError, match=f"cannot start {command}: {why}"):
            run_child([command], environment=os.environ)


def test_the_child_has_the_same_input_and_output() -> None:
    with started("print(input()[::-1])", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.communicate("level up\n", timeout=30) == ("pu level\n", None)


@pytest.mark.parametrize(
    ("name", "stop_signal"), [("SIGINT", str(signal.SIGINT)), ("SIGTERM", str(signal.SIGTERM)), ("SIGUSR1", "None")]
)
def test_a_signal_is_forwarded_to_the_child(name: str, stop_signal: str) -> None:
    def heed() -> None:
        """Whoever runs the tests in the background of a shell ignores SIGINT, and so would all below it."""
        signal.signal(getattr(signal, name), signal.SIG_DFL)

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started(COUNTS_SIGNALS.format(name=name), preexec_fn=heed, **pipes) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(getattr(signal, name))
        assert child.communicate(timeout=30) == ("1 seen\n", f"{stop_signal}\n")
    assert child.returncode == 0


def test_a_signal_during_the_start_is_forwarded_too() -> None:
    """The scheduler may end a job at once. Without its launcher, the command would go on alone."""
    script = """
import os, signal, subprocess, sys
from traincope.cli.launch.child import run_child

class Slow(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen = Slow
ended = run_child(["sleep", "60"], environment=os.environ)
print(ended.shell_code, ended.stop_signal)
"""
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout) == (0, f"143 {signal.SIGTERM}\n")


def test_control_c_in_a_terminal_reaches_the_child_once() -> None:
    keys, terminal = pty.openpty()

    def own_the_terminal() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    with started(
        COUNTS_SIGNALS.format(name="SIGINT"), stdin=terminal, stdout=subprocess.PIPE, preexec_fn=own_the_terminal
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        os.write(keys, b"\x03")
        assert child.communicate(timeout=30)[0] == "1 seen\n"
    os.close(terminal)
    os.close(keys)


def test_the_child_ignores_signals_that_the_parent_ignores() -> None:
    def ignore_hangups() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    script = "import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    with started(script, stdout=subprocess.PIPE, preexec_fn=ignore_hangups) as child:
        assert child.communicate(timeout=30)[0] == "True\n"
