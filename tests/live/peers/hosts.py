"""Hosts made of namespaces: each has its own network, name, processes and mounts, its own /dev/shm, boot id and
monotonic clock, and a link to a switch. They share the wall clock. Making them needs root.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

PROGRAMS = ("unshare", "nsenter", "ip", "mount", "hostname")
LINK = "eth0"
NAMESPACES = ("--net", "--uts", "--pid", "--mount", "--time")
ADDRESSES = {name: f"10.77.0.{number}" for number, name in enumerate("abcdef", start=1)}
CLOCK_SECONDS = {name: 1_000 * number for number, name in enumerate(ADDRESSES, start=1)}
"""Each host's monotonic clock is ahead of that of the machine by this much."""
SETUP = """
set -e
hostname "$1"
mount -t tmpfs tmpfs /dev/shm
mkdir /dev/shm/etc
printf '127.0.0.1 localhost\\n127.0.1.1 %s\\n' "$1" > /dev/shm/etc/hosts
printf '%s' "$2" >> /dev/shm/etc/hosts
: > /dev/shm/etc/resolv.conf
echo "00000000-0000-0000-0000-00000000000$1" > /dev/shm/etc/boot_id
mount --bind /dev/shm/etc/boot_id /proc/sys/kernel/random/boot_id
for file in hosts resolv.conf; do mount --bind /dev/shm/etc/$file /etc/$file; done
ip link set lo up
echo ready
exec sleep infinity
"""
"""A host knows all names, its own on loopback as Debian does, and no name server: torch looks names up."""
SWITCH = "ip link add switch type bridge && ip link set switch up && echo ready && exec sleep infinity"


@cache
def why_not() -> str:
    """Why this machine cannot make hosts; empty if it can."""
    if os.geteuid():
        return "making hosts of namespaces needs root"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"making hosts of namespaces needs {', '.join(missing)}"
    tried = subprocess.run(["unshare", *NAMESPACES, "--fork", "true"], capture_output=True)
    return "" if not tried.returncode else f"this kernel makes no namespaces: {tried.stderr.decode().strip()}"


class MadeHost:
    """One host. Its first process keeps it alive; with it all its processes end."""

    def __init__(self, name: str, *, clock_seconds: int) -> None:
        self.name, self.address = name, ADDRESSES[name]
        known = "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
        self._holder = subprocess.Popen(
            [
                *("unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc"),
                *("--monotonic", str(clock_seconds)),
                *("sh", "-c", SETUP, "sh", name, known),
            ],
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n"
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
        self.first_pid = int(children[0])

    def command(self, *words: object) -> list[str]:
        return ["nsenter", "--target", str(self.first_pid), *NAMESPACES, "--", *map(str, words)]

    def run(self, *words: object) -> None:
        subprocess.run(self.command(*words), check=True, capture_output=True)

    def start(self, words: Sequence[object], *, log: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            return subprocess.Popen(
                self.command(*words), env={**os.environ, **variables}, stdout=file, stderr=subprocess.STDOUT
            )

    def mount(self, directory: Path, at: Path) -> None:
        """Let the host see `directory` at `at`, as its local disk, or as one that hosts share."""
        directory.mkdir(parents=True, exist_ok=True)
        self.run("mount", "--bind", directory, at)

    def plug_in(self, switch: int) -> None:
        """Connect the host with the switch, which this process holds."""
        cable = ("add", LINK, "type", "veth", "peer", "name", self.name, "netns", switch)
        port = ("set", "dev", self.name, "master", "switch", "up")
        for end, change in ((self.first_pid, cable), (switch, port)):
            words = ("nsenter", "--target", end, "--net", "ip", "link", *change)
            subprocess.run(list(map(str, words)), check=True)
        self.run("ip", "address", "add", f"{self.address}/24", "dev", LINK)
        self.run("ip", "link", "set", LINK, "up")
        self.run("ip", "route", "add", "default", "dev", LINK)

    def wait_for_link(self) -> None:
        """Wait until the link is up: the kernel notices its other end some milliseconds later."""
        while b"state UP" not in subprocess.run(self.command("ip", "link", "show", LINK), capture_output=True).stdout:
            time.sleep(0.01)

    def unplug(self) -> None:
        """Take the link down: nothing reaches or leaves the host any more."""
        self.run("ip", "link", "set", LINK, "down")

    def plug_in_again(self) -> None:
        self.run("ip", "link", "set", LINK, "up")
        self.run("ip", "route", "add", "default", "dev", LINK)
        self.wait_for_link()

    def slow_down(self, *, mbit_per_second: float) -> None:
        """Limit what the host sends."""
        limit = ("rate", f"{mbit_per_second:g}mbit", "burst", "32k", "latency", "400ms")
        self.run("tc", "qdisc", "replace", "dev", LINK, "root", "tbf", *limit)

    def has(self, pid: int) -> bool:
        """Return whether this process runs on the host."""
        own = Path(f"/proc/{self.first_pid}/ns/pid").stat().st_ino
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino == own

    def cpu_seconds(self) -> float:
        """CPU time that the host's processes took so far, with that of those that ended. 0 if it was killed."""
        return sum(map(_cpu_seconds, Path(f"/proc/{self.first_pid}/root/proc").glob("[0-9]*/stat")))

    def kill(self) -> None:
        """Kill all processes of the host at once."""
        os.kill(self.first_pid, signal.SIGKILL)
        self._holder.wait()

    def close(self) -> None:
        if self._holder.poll() is None:
            self.kill()
        if self._holder.stdout is not None:
            self._holder.stdout.close()


def _cpu_seconds(stat: Path) -> float:
    """CPU time of a process and of its children that it waited for (proc_pid_stat(5)). 0 if it has just ended."""
    with suppress(OSError):
        fields = stat.read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


@contextmanager
def hosts(*names: str, clock_seconds: Mapping[str, int] = CLOCK_SECONDS) -> Iterator[tuple[MadeHost, ...]]:
    """Hosts with these names, with links to one switch. `clock_seconds`: name -> lead of its monotonic clock."""
    with ExitStack() as made:
        switch = subprocess.Popen(["unshare", "--net", "sh", "-c", SWITCH], stdout=subprocess.PIPE)
        made.enter_context(switch)
        made.callback(switch.kill)
        assert switch.stdout is not None
        assert switch.stdout.readline() == b"ready\n"
        result = []
        for name in names:
            host = MadeHost(name, clock_seconds=clock_seconds[name])
            made.callback(host.close)
            host.plug_in(switch.pid)
            result.append(host)
        for host in result:
            host.wait_for_link()
        yield tuple(result)
