"""A real network file system: sshfs, from an sshd on loopback with keys of its own."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_port

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
CONFIGURATION = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {base}/host
AuthorizedKeysFile {base}/key.pub
StrictModes no
UsePAM no
PermitRootLogin yes
PidFile none
Subsystem sftp internal-sftp
"""


def why_not() -> str:
    """Why no network file system can be mounted here; empty if one can."""
    tools = all(shutil.which(tool) for tool in ("sshfs", "ssh", "ssh-keygen", "fusermount3"))
    if os.geteuid() != 0 or not tools or SSHD is None or not os.access("/dev/fuse", os.W_OK):
        return "a network file system is mounted as root, with sshfs and openssh-server, where /dev/fuse exists"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounted:
    """The file system and its server."""

    path: Path
    server: "subprocess.Popen[bytes]"

    def stall(self) -> None:
        """Stop the server's processes, as a network that loses all packets."""
        self._signal(signal.SIGSTOP)

    def answer(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in _descendants(self.server.pid):
            os.kill(process, number)


@contextmanager
def mounted(base: Path) -> Iterator[Mounted]:
    """Mount a directory of this machine through the network. `base`: a new directory."""
    base.mkdir()
    path, there, port = base / "mount", base / "there", free_port()
    path.mkdir()
    there.mkdir()
    for key in ("key", "host"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", base / key], check=True)
    (base / "sshd_config").write_text(CONFIGURATION.format(port=port, base=base))
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd gives up its rights there
    options = f"IdentityFile={base}/key,StrictHostKeyChecking=no,UserKnownHostsFile=/dev/null"
    command = ["sshfs", "-p", str(port), "-o", options, f"root@127.0.0.1:{there}", path]
    with (
        (base / "log").open("wb") as log,
        subprocess.Popen([str(SSHD), "-D", "-e", "-f", base / "sshd_config"], stderr=log) as server,
    ):
        result = Mounted(path=path, server=server)
        try:
            while "Server listening" not in (base / "log").read_text():
                assert server.poll() is None, (base / "log").read_text()
                time.sleep(0.05)
            subprocess.run(command, check=True)
            yield result
        finally:
            result.answer()
            subprocess.run(["fusermount3", "-u", "-z", path], check=False)
            server.terminate()


def _descendants(process: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = [process]
    for each in found:
        found += children.get(each, [])
    return found
