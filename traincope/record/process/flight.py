"""Stacks and torch's flight recorder on request: the latest collectives of all groups, also in steps without detail.

A thread waits for a message on a UNIX socket, in a system call without Python's lock. Then it writes the stacks of all
threads and what torch holds. The node's agent asks while the job stands still. A run that ends by an exception writes
the flight recorder too. The thread needs the lock for its answer: a rank that hangs in C with the lock held gives none.
With the lock, no thread changes its frames while they are read.

The thread also writes it once another rank of its launcher dies: a rank that aborts leaves none, and the launcher will
end the others within a fraction of a second, while they wait for it.

At the end of the run, torch's count of each group is recorded.
"""

import faulthandler
import json
import os
import select
import socket
import struct
import threading
import time
from pathlib import Path

from traincope.private_files import private
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.torch_private import flight_recorder, group_ranks
from traincope.record.session.recorder import Recorder
from traincope.store.job.flight import STOP, flight_address
from traincope.store.job.process import Process
from traincope.store.layout import FLIGHT_FILE, STACKS_FILE

JOIN_SECONDS = 1.0
CREDENTIALS = struct.Struct("3i")
"""Process, user and group of a sender, as the kernel vouches for them (unix(7))."""
ROOT = 0
SEARCH_SECONDS = (0.0, 10.0, 20.0, 40.0)
"""Pauses before each search for the launcher's other ranks. They may start later than this one."""
MAX_SIBLINGS = 64
JOB_VARIABLES = ("RANK", "MASTER_PORT")

_installed: "set[FlightRecorder]" = set()


class FlightRecorder:
    """Hook that answers requests for the flight recorder."""

    name = "flight_recorder"
    level = 0

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._writing = threading.Lock()
        """A rank's death ends runs of others by an exception, and both write the file."""

    def install(self, recorder: Recorder) -> None:
        """Raises OSError on systems without such sockets, AttributeError if this torch has no flight recorder."""
        process = Process.this()
        if process is None:
            raise OSError("this system has no /proc")
        self._recorder, self._dump, self._pid = recorder, flight_recorder(), process.pid
        self._address = flight_address(process)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._socket.bind(self._address)
        except OSError:
            self._socket.close()
            raise
        _installed.add(self)
        self._thread = threading.Thread(target=self._serve, name="traincope-flight", daemon=True)
        self._thread.start()

    def remove(self) -> None:
        """End the thread. A forked child has none."""
        _installed.discard(self)
        if self._thread is None or os.getpid() != self._pid:
            return
        guard(self._note_counts)()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
            asking.setblocking(False)
            asking.sendto(STOP, self._address)
        self._thread.join(JOIN_SECONDS)
        self._socket.close()
        self._thread = None

    def close(self) -> None:
        """Close the socket in a forked child: the address would outlive the parent's run."""
        self._socket.close()

    def write(self) -> None:
        """Write the file, as on request."""
        if os.getpid() == self._pid:
            guard(self._write)(self._recorder.directory)

    def _note_counts(self) -> None:
        """Record how many collectives the rank issued on each group: one that left one out ends before the others."""
        entries = json.loads(self._dump()).get("entries", ())
        counts = {
            str(entry["process_group"][0]): int(entry["collective_seq_id"])
            for entry in entries
            if not entry.get("is_p2p")
        }
        self._recorder.issued_collectives = counts

    def _serve(self) -> None:
        write, answer, siblings = guard(self._write), guard(self._answer), _Siblings()
        try:
            while True:
                if siblings.one_died_before(self._socket):
                    write(self._recorder.directory)
                    continue
                message, ancillary, *_ = self._socket.recvmsg(1, socket.CMSG_SPACE(CREDENTIALS.size))
                if not _is_allowed(ancillary):
                    continue
                if message == STOP:
                    return
                answer(self._recorder.directory)
        finally:
            siblings.close()

    def _answer(self, directory: Path) -> None:
        """Append the stacks to their file, then replace the flight recorder's: a new one shows that both are there."""
        with open(directory / STACKS_FILE, "ab", buffering=0, opener=private) as file:
            faulthandler.dump_traceback(file.fileno(), all_threads=True)
        self._write(directory)

    def _write(self, directory: Path) -> None:
        """Replace the file as a whole. torch's text is not parsed: new objects might start a garbage collection."""
        head = json.dumps({"at_ns": time.monotonic_ns(), "groups": group_ranks()})
        new = directory / f"{FLIGHT_FILE}.new"
        with self._writing:
            with open(new, "wb", opener=private) as file:
                file.write(head.encode().removesuffix(b"}") + b', "trace": ' + self._dump() + b"}")
            new.replace(directory / FLIGHT_FILE)


class _Siblings:
    """The other ranks of this rank's launcher, until the first of them dies."""

    def __init__(self) -> None:
        has_launcher = hasattr(os, "pidfd_open") and all(name in os.environ for name in JOB_VARIABLES)
        self._searches = list(SEARCH_SECONDS) if has_launcher else []
        self._known: dict[int, int] = {}
        """Process -> descriptor that becomes readable when it ends (pidfd_open(2))."""

    def one_died_before(self, server: socket.socket) -> bool:
        """Wait for a message or for the first death. Returns whether it was a death."""
        while True:
            waiting = select.poll()
            for descriptor in (server.fileno(), *self._known.values()):
                waiting.register(descriptor, select.POLLIN)
            ready = waiting.poll(self._searches[0] * 1e3 if self._searches else None)
            if ready:
                died = server.fileno() not in {descriptor for descriptor, _ in ready}
                if died:
                    self.close()
                return died
            self._searches.pop(0)
            guard(self._search)()

    def close(self) -> None:
        self._searches.clear()
        while self._known:
            os.close(self._known.popitem()[1])

    def _search(self) -> None:
        launcher, own = os.getppid(), _job(os.getpid())
        for path in Path(f"/proc/{launcher}/task").glob("*/children"):
            for pid in map(int, path.read_text().split()):
                is_new = pid != os.getpid() and pid not in self._known and len(self._known) < MAX_SIBLINGS
                if is_new and own and _job(pid) == own:
                    self._known[pid] = os.pidfd_open(pid)


def _job(pid: int) -> bytes:
    """The port of the job whose rank a process was started as; empty if it is none, or may not be read.

    It makes few objects: many might start a garbage collection on this thread.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = b"\0" + file.read()
    except OSError:
        return b""
    _, is_rank, _ = environment.partition(b"\0RANK=")
    return environment.partition(b"\0MASTER_PORT=")[2].partition(b"\0")[0] if is_rank else b""


def write_last() -> None:
    """Write the flight recorder of a run that ends by an error: its last collectives may differ from the others'."""
    for hook in tuple(_installed):
        hook.write()


def _is_allowed(ancillary: list[tuple[int, int, bytes]]) -> bool:
    """True if the sender is this user or root."""
    users = [CREDENTIALS.unpack(data)[1] for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS]
    return bool(users) and users[0] in (ROOT, os.getuid())


def _forked() -> None:
    for hook in _installed:
        hook.close()
    _installed.clear()


os.register_at_fork(after_in_child=_forked)
