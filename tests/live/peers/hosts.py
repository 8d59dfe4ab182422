"""Hosts made of namespaces: each has its own network, name, processes and mounts, its own /dev/shm, and a link.

They share the kernel, so their boot id is the same. Making them needs root.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("unshare", "nsenter", "ip", "mount", "hostname")
LINK = "eth0"
ADDRESSES = {"a": "10.77.0.1", "b": "10.77.0.2"}
SETUP = """
set -e
hostname "$1"
mount -t tmpfs tmpfs /dev/shm
mkdir /dev/shm/etc
printf '127.0.0.1 localhost\\n127.0.1.1 %s\\n10.77.0.1 a\\n10.77.0.2 b\\n' "$1" > /dev/shm/etc/hosts
: > /dev/shm/etc/resolv.conf
for file in hosts resolv.conf; do mount --bind /dev/shm/etc/$file /etc/$file; done
ip link set lo up
echo ready
exec sleep infinity
"""
"""A host knows the names of both, its own on loopback as Debian does, and no name server: torch looks names up."""


def why_not() -> str:
    """Why this machine cannot make hosts; empty if it can."""
    if os.geteuid():
        return "making hosts of namespaces needs root"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"making hosts of namespaces needs {', '.join(missing)}"
    tried = subprocess.run(["unshare", "--net", "--uts", "--pid", "--mount", "--fork", "true"], capture_output=True)
    return "" if not tried.returncode else f"this kernel makes no namespaces: {tried.stderr.decode().strip()}"


class MadeHost:
    """One host. Its first process keeps it alive; with it all its processes end."""

    def __init__(self, name: str) -> None:
        self.name, self.address = name, ADDRESSES[name]
        self._holder = subprocess.Popen(
            [
                *("unshare", "--net", "--uts", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"),
                *("sh", "-c", SETUP, "sh", name),
            ],
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n"
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
        self.first_pid = int(children[0])

    def command(self, *words: object) -> list[str]:
        namespaces = ("--net", "--uts", "--pid", "--mount")
        return ["nsenter", "--target", str(self.first_pid), *namespaces, "--", *map(str, words)]

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

    def wait_for_link(self) -> None:
        """Wait until the link is up: the kernel notices its other end some milliseconds later."""
        while b"state UP" not in subprocess.run(self.command("ip", "link", "show", LINK), capture_output=True).stdout:
            time.sleep(0.01)

    def unplug(self) -> None:
        """Take the link down: nothing reaches or leaves the host any more."""
        self.run("ip", "link", "set", LINK, "down")

    def has(self, pid: int) -> bool:
        """Return whether this process runs on the host."""
        own = Path(f"/proc/{self.first_pid}/ns/pid").stat().st_ino
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino == own

    def kill(self) -> None:
        """Kill all processes of the host at once."""
        os.kill(self.first_pid, signal.SIGKILL)
        self._holder.wait()

    def close(self) -> None:
        if self._holder.poll() is None:
            self.kill()
        if self._holder.stdout is not None:
            self._holder.stdout.close()


@contextmanager
def two_hosts() -> Iterator[tuple[MadeHost, MadeHost]]:
    """The hosts `a` and `b`, with a link between them."""
    first = MadeHost("a")
    try:
        second = MadeHost("b")
        try:
            add = ("ip", "link", "add", LINK, "type", "veth", "peer", "name", LINK, "netns", str(second.first_pid))
            subprocess.run(["nsenter", "--target", str(first.first_pid), "--net", *add], check=True)
            for host in (first, second):
                host.run("ip", "address", "add", f"{host.address}/24", "dev", LINK)
                host.run("ip", "link", "set", LINK, "up")
                host.run("ip", "route", "add", "default", "dev", LINK)
            for host in (first, second):
                host.wait_for_link()
            yield first, second
        finally:
            second.close()
    finally:
        first.close()
