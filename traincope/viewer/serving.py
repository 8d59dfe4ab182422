"""The server: on the loopback device unless told otherwise, quiet, stopped by Ctrl-C."""

import errno
import socket
from collections.abc import Callable, Sequence

import dash
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from traincope.errors import UsageError
from traincope.viewer.app import LOOPBACK, make_app
from traincope.viewer.library import Library

LOCALHOST = "127.0.0.1"
PORT, MOST_PORTS = 8050, 20
"""The first that is tried where none is asked for, and how many."""
REFUSED = (errno.EADDRINUSE, errno.EACCES)
"""Another port may be had."""


class _Quiet(WSGIRequestHandler):
    """Says nothing of requests."""

    protocol_version = "HTTP/1.1"

    def log_request(self, *_told: object) -> None:
        return


def serve(library: Library, *, started: Callable[[str], None], port: int | None = None, host: str = LOCALHOST) -> None:
    """Until interrupted; `started` is called with the address. Raises UsageError where the port cannot be had."""
    server = bound(library, port=port, host=host)
    library.refresh()
    started(address_of(server, host=host))
    try:
        server.serve_forever()
    finally:
        library.close()
        server.server_close()


def address_of(server: BaseWSGIServer, *, host: str) -> str:
    """Where a browser finds it."""
    return f"http://{host if host != '0.0.0.0' else socket.gethostname()}:{server.server_port}/"


def bound(library: Library, *, port: int | None = None, host: str = LOCALHOST) -> BaseWSGIServer:
    """A server that does not serve yet. Raises UsageError where the port cannot be had."""
    return listening(make_app(library, hosts=known_hosts(host)), port=port, host=host)


def known_hosts(host: str) -> Sequence[str]:
    """Names under which a server that listens on `host` may be asked; none: under any."""
    return LOOPBACK if host in LOOPBACK else ()


def listening(app: dash.Dash, *, port: int | None = None, host: str = LOCALHOST) -> BaseWSGIServer:
    """Raises UsageError where the port cannot be had."""
    try:
        number = _port(host, port)
        return make_server(host, number, app.server, threaded=True, request_handler=_Quiet)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}: {error.strerror}; give an address of this machine") from error


def _port(host: str, wanted: int | None) -> int:
    """The one asked for, else the first that is free. Raises UsageError."""
    candidates = range(PORT, PORT + MOST_PORTS) if wanted is None else (wanted,)
    for number in candidates:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, number))
            except OverflowError as error:
                raise UsageError(f"{number} is no port: they go from 0, any that is free, to 65535") from error
            except OSError as error:
                if error.errno not in REFUSED:
                    raise
                continue
            return number
    if wanted is None:
        raise UsageError(f"ports {PORT} to {PORT + MOST_PORTS - 1} of {host} are taken; name one with --port")
    raise UsageError(f"port {wanted} of {host} cannot be had: something listens there, or it is not yours to take")
