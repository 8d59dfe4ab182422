"""A child behaves as without traincope: real children, real signals, a real terminal."""

import fcntl
import os
import pty
import resource
import select
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from tests.live.processes import until

AROUND = """
import os, sys
from traincope.cli.launch.child import Child, end_as
from traincope.errors import CommandError
try:
    with Child(sys.argv[1:], environment=os.environ) as child:
        ended = child.run()
        print(ended.stop_signal, file=sys.stderr)
        sys.exit(end_as(ended))
except CommandError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""
WRAPPED = (sys.executable, "-c", AROUND)

COUNTS_SIGNALS = """
import collections, os, signal
seen = collections.Counter()
def count(number, _):
    seen[number] += 1
    print("got", number, flush=True)
for number in {numbers}:
    signal.signal(number, count)
print("ready", os.getpid(), flush=True)
while seen[signal.SIGUSR2] < 2:
    signal.pause()
print(sorted(seen.items()))
"""
LEFT_OUT = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR2),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL),
    *range(signal.SIGRTMIN + 1, signal.SIGRTMAX + 1),
}
COUNTED = (*sorted(signal.valid_signals() - LEFT_OUT), signal.SIGUSR2)
"""Signals that a process may catch; the last one ends the counting."""

JOB_CONTROL = """
import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
pid = os.fork()
if pid == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
print("stopped by", os.WSTOPSIG(os.waitpid(pid, os.WUNTRACED)[1]))
os.killpg(pid, signal.SIGCONT)
print("ended with", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
"""What a shell does with a job in the foreground."""

SHOWS_STATE = """
import os, re, resource
status = open("/proc/self/status").read()
print(re.findall("Sig(?:Blk|Ign):\\t.*", status), os.getpgid(0) == os.getpgid(os.getppid()), os.umask(0), os.nice(0))
print(sorted(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_STACK))
"""


def shell(script: str, **options) -> "subprocess.CompletedProcess[str]":  # type: ignore[no-untyped-def]
    words = (*WRAPPED, "sh", "-c", script)
    return subprocess.run(words, capture_output=True, text=True, timeout=50, check=False, **options)


def started(*command: str, **options) -> "subprocess.Popen[str]":  # type: ignore[no-untyped-def]
    return subprocess.Popen([*WRAPPED, *command], text=True, stdout=subprocess.PIPE, **options)


def python(script: str) -> tuple[str, ...]:
    return (sys.executable, "-uSc", script)


def heed() -> None:
    """Tests in the background of a shell, or under nohup, ignore these signals, and so would all below them."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def dump_cores() -> None:
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9), ("kill -TERM $$", -15)])
def test_this_process_ends_as_its_child(script: str, code: int) -> None:
    ended = shell(script)
    assert (ended.returncode, ended.stderr) == (code, "None\n")


def test_a_core_is_dumped_at_most_once(tmp_path: Path) -> None:
    process = subprocess.Popen([*WRAPPED, "sh", "-c", "kill -ABRT $$"], cwd=tmp_path, preexec_fn=dump_cores)
    status = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert status is not None
    assert (status.si_code, status.si_status) == (os.CLD_KILLED, signal.SIGABRT)
    process.wait()


def test_a_command_that_cannot_start_has_the_codes_of_a_shell(tmp_path: Path) -> None:
    for command, code, why in (
        ("no-such-command", 127, "No such file or directory"),
        (str(tmp_path), 126, "Permission denied"),
    ):
        ended = subprocess.run([*WRAPPED, command], capture_output=True, text=True, timeout=50, check=False)
        assert (ended.returncode, ended.stderr) == (code, f"cannot start {command}: {why}\n")


def test_a_script_without_a_first_line_is_run_by_the_shell(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text('echo "$1"; exit 4\n')
    script.chmod(0o700)
    ended = subprocess.run([*WRAPPED, script, "word"], capture_output=True, text=True, timeout=50, check=False)
    assert (ended.returncode, ended.stdout) == (4, "word\n")


def test_the_child_has_the_same_input_and_output() -> None:
    with started(*python("print(input()[::-1])"), stdin=subprocess.PIPE) as child:
        assert child.communicate("level up\n", timeout=50)[0] == "pu level\n"


def test_a_signal_reaches_the_child_once_whether_it_is_sent_to_this_process_or_to_the_group() -> None:
    script = COUNTS_SIGNALS.format(numbers=[*map(int, COUNTED)])
    with started(*python(script), stderr=subprocess.PIPE, preexec_fn=heed, start_new_session=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("ready ")
        for number in COUNTED:
            for send in (os.kill, os.killpg):
                send(child.pid, number)
                assert child.stdout.readline() == f"got {int(number)}\n"
        assert child.stdout.read() == f"{[(int(number), 2) for number in sorted(COUNTED)]}\n"
        assert child.stderr is not None
        assert child.stderr.read() == f"{signal.SIGHUP}\n"
    assert child.returncode == 0


def test_a_signal_during_the_start_is_forwarded_too() -> None:
    """The scheduler may end a job at once. Without its launcher, the command would go on alone."""
    before = "import os, signal; fork = os.fork; os.fork = lambda: fork() or os.kill(os.getppid(), signal.SIGTERM) or 0"
    words = [sys.executable, "-c", before + AROUND, "sleep", "60"]
    assert subprocess.run(words, stderr=subprocess.DEVNULL, timeout=50, check=False).returncode == -signal.SIGTERM


def test_control_c_reaches_the_child_once_and_control_z_stops_this_process_with_it() -> None:
    """The leader of the terminal's session is a shell: a group without a parent in its session stops by no key."""
    keys, terminal = pty.openpty()

    def own_the_terminal() -> None:
        heed()
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    numbers = (int(signal.SIGINT), int(signal.SIGUSR2))
    command = (*WRAPPED, *python(COUNTS_SIGNALS.format(numbers=numbers)))
    with subprocess.Popen(
        [sys.executable, "-uSc", JOB_CONTROL, *command],
        text=True,
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=own_the_terminal,
    ) as above:
        assert above.stdout is not None
        ready, pid = above.stdout.readline().split()
        assert ready == "ready"
        os.write(keys, b"\x03")
        assert above.stdout.readline() == "got 2\n"
        os.write(keys, b"\x1a")
        assert above.stdout.readline() == "stopped by 20\n"
        for _ in range(2):
            os.kill(int(pid), signal.SIGUSR2)
            assert above.stdout.readline() == "got 12\n"
        assert above.stdout.read() == "[(2, 1), (12, 2)]\nended with 0\n"
    os.close(terminal)
    os.close(keys)


def test_the_child_ends_with_this_process() -> None:
    with started("sh", "-c", "echo $$; exec sleep 60") as child:
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        child.kill()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the child")


def test_the_child_has_the_state_and_the_descriptors_of_this_process() -> None:
    """Ignored and blocked signals, group, umask, nice, limits. Nothing of this process is open in the child."""

    def change() -> None:
        for number in (signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
        os.umask(0o27)
        os.nice(3)
        os.close(0)
        os.dup2(1, 77)

    shown = [
        subprocess.run(
            [*before, *python(SHOWS_STATE)],
            preexec_fn=change,
            close_fds=False,
            capture_output=True,
            text=True,
            timeout=50,
            check=True,
        ).stdout
        for before in ((), WRAPPED)
    ]
    assert shown[0] == shown[1]
    assert "'77'" in shown[0]


def test_an_ignored_end_of_children_does_not_lose_the_exit_code() -> None:
    assert shell("exit 3", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)).returncode == 3


def test_only_the_child_holds_what_it_was_given() -> None:
    """It closes its output and a pipe: their readers see the end while the child still runs."""
    reading, writing = os.pipe()
    script = f"import os, sys; os.close({writing}); os.close(1); input(); os._exit(5)"
    with started(*python(script), stdin=subprocess.PIPE, pass_fds=(writing,)) as child:
        os.close(writing)
        assert child.stdout is not None
        assert child.stdout.read() == ""
        assert os.read(reading, 1) == b""
        assert child.communicate("line\n", timeout=50)[0] == ""
    os.close(reading)
    assert child.returncode == 5


def test_variables_that_name_the_process_name_the_child() -> None:
    """Descriptors of systemd are those of the process that LISTEN_PID names."""
    words = ("sh", "-c", 'echo "$LISTEN_PID $$ $OTHER_PID ${LISTEN_PIDFDID-unset}"')
    around = f"import os; os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_PIDFDID='7', OTHER_PID='1'){AROUND}"
    ended = subprocess.run([sys.executable, "-c", around, *words], capture_output=True, text=True, check=True)
    listen, own, other, pidfd = ended.stdout.split()
    assert (listen, other, pidfd) == (own, "1", "unset")


def test_work_after_the_end_is_interrupted_and_the_exit_code_stays() -> None:
    after = """
def work():
    print("working", flush=True, file=sys.stderr)
    time.sleep(60)
"""
    call = "print(ended.stop_signal, file=sys.stderr)"
    around = AROUND.replace(call, "child.afterwards(work)")
    assert around != AROUND
    words = [sys.executable, "-c", f"import sys, time{after}{around}", "sh", "-c", "exit 3"]
    with subprocess.Popen(words, text=True, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "working\n"
        process.terminate()
        assert process.wait(50) == 3


def test_lines_of_traincope_are_wrapped_to_the_terminal_and_nowhere_else() -> None:
    keys, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    code = "from traincope.cli.launch.outcome import say; say('twelve bytes ' * 20)"
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    subprocess.run(
        [sys.executable, "-c", code], stdin=terminal, stdout=terminal, stderr=terminal, env=environment, check=True
    )
    lines = os.read(keys, 1 << 16).decode().split("\r\n")
    os.close(keys)
    os.close(terminal)
    assert len(lines) > 4
    assert max(map(len, lines)) <= 60
    assert lines[0].startswith("traincope: twelve bytes")
    assert lines[1].startswith(" " * 11 + "bytes twelve")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(ended.stderr.splitlines()) == 1


def test_a_full_pipe_that_nothing_reads_holds_no_command_up() -> None:
    """The rest of the pipe has no room for a line."""
    code = (
        "from traincope.cli.launch import outcome; outcome._patience_seconds = 0.1; outcome.say('a'); outcome.say('b')"
    )
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * select.PIPE_BUF)
    os.set_blocking(writing, True)
    ended = subprocess.run([sys.executable, "-c", code], check=False, stderr=writing, timeout=120)
    os.close(writing)
    os.close(reading)
    assert ended.returncode == 0
