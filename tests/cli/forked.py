"""The command line in processes of its own, forked from one that has imported it: their starts take no second each."""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping

STARTING_SECONDS = 250.0
MESSAGE_BYTES = 1 << 20
READY = b"ready"


class Server:
    """The process that has imported the command line, started when first needed."""

    _process: "subprocess.Popen[bytes] | None" = None
    _connection: socket.socket

    def run(
        self, words: tuple[str, ...], environment: Mapping[str, str], *, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        connection = self._started()
        connection.settimeout(timeout)
        request = json.dumps({"words": words, "environment": dict(environment), "directory": os.getcwd()})
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            socket.send_fds(connection, [request.encode()], [out.fileno(), err.fileno()])
            child = int(connection.recv(MESSAGE_BYTES))
            try:
                code = int(connection.recv(MESSAGE_BYTES))
            except TimeoutError:
                os.kill(child, signal.SIGKILL)
                connection.recv(MESSAGE_BYTES)
                raise subprocess.TimeoutExpired(words, timeout) from None
            printed = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode() for file in (out, err)]
        return subprocess.CompletedProcess(words, code, *printed)

    def stop(self) -> None:
        if self._process is not None:
            self._connection.close()
            self._process.wait()
            self._process = None

    def _started(self) -> socket.socket:
        if self._process is None:
            self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                command = [sys.executable, "-m", "tests.cli.forked", str(theirs.fileno())]
                self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
            self._connection.settimeout(STARTING_SECONDS)
            assert self._connection.recv(MESSAGE_BYTES) == READY
        return self._connection


SERVER = Server()


def traincope(
    *words: str, environment: Mapping[str, str] | None = None, timeout: float = 150.0
) -> subprocess.CompletedProcess[str]:
    """Run a command line with this environment (of this process, if None) until it ends."""
    return SERVER.run(words, os.environ if environment is None else environment, timeout=timeout)


def _serve(connection: socket.socket) -> None:
    """Fork a process per request. It leaves through the end of this module, as the command line does."""
    from traincope.cli.main import COMMANDS, load_command, main

    for name in COMMANDS:
        load_command(name)
    gc.collect()
    gc.freeze()
    connection.send(READY)
    while (received := socket.recv_fds(connection, MESSAGE_BYTES, 2))[0]:
        request, (out, err) = json.loads(received[0]), received[1]
        if (child := os.fork()) == 0:
            connection.close()
            os.dup2(out, 1)
            os.dup2(err, 2)
            os.closerange(3, max(out, err) + 1)
            os.chdir(request["directory"])
            os.environ.clear()
            os.environ.update(request["environment"])
            main(request["words"])
        os.close(out)
        os.close(err)
        connection.send(str(child).encode())
        connection.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
