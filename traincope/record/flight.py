"""torch's flight recorder on request: the latest collectives of all groups, also in steps without detail.

A thread waits for a message on a UNIX socket, in a system call without Python's lock, and then writes what torch holds.
The node's agent asks while the job stands still. A run that ends by an exception writes it too. The thread needs the
lock for its answer: a rank that hangs in C with the lock held gives none.
"""

import json
import os
import socket
import struct
import threading
import time
from pathlib import Path

from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.torch_private import flight_recorder, group_ranks
from traincope.record.session.recorder import Recorder
from traincope.store.job.flight import STOP, flight_address
from traincope.store.job.process import Process
from traincope.store.layout import FLIGHT_FILE

JOIN_SECONDS = 1.0
CREDENTIALS = struct.Struct("3i")
"""Process, user and group of a sender, as the kernel vouches for them (unix(7))."""
ROOT = 0

_installed: "set[FlightRecorder]" = set()


class FlightRecorder:
    """Hook that answers requests for the flight recorder."""

    name = "flight_recorder"
    level = 0

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._pid = 0

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

    def _serve(self) -> None:
        write = guard(self._write)
        while True:
            message, ancillary, *_ = self._socket.recvmsg(1, socket.CMSG_SPACE(CREDENTIALS.size))
            if not _is_allowed(ancillary):
                continue
            if message == STOP:
                return
            write(self._recorder.directory)

    def _write(self, directory: Path) -> None:
        """Replace the file as a whole. torch's text is not parsed: new objects might start a garbage collection."""
        head = json.dumps({"at_ns": time.monotonic_ns(), "groups": group_ranks()})
        new = directory / f"{FLIGHT_FILE}.new"
        new.write_bytes(head.encode().removesuffix(b"}") + b', "trace": ' + self._dump() + b"}")
        new.replace(directory / FLIGHT_FILE)


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
