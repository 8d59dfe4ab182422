"""The server: on the loopback device by default, without a request log, stopped by Ctrl-C.

Other machines reach it only with TLS and a password.
"""

import errno
import socket
from collections.abc import Callable, Sequence

import dash
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from traincope.access import OPEN, Access
from traincope.errors import UsageError
from traincope.viewer.app import LOOPBACK, make_app
from traincope.viewer.library.library import Library
from traincope.viewer.planning.searches import Searches

LOCALHOST = "127.0.0.1"
REMEDY = "--certificate, --key and --password-file"
PORT, MAX_PORTS = 8050, 20
"""Default port, and the number of ports tried from it on."""
REFUSED = (errno.EADDRINUSE, errno.EACCES)
"""Errors after which the next port is tried."""


class _Quiet(WSGIRequestHandler):
    """A request handler without a log."""

    protocol_version = "HTTP/1.1"

    def log_request(self, *_words: object) -> None:
        return


def serve(
    library: Library,
    *,
    started: Callable[[str], None],
    port: int | None = None,
    host: str = LOCALHOST,
    access: Access = OPEN,
    searches: Searches | None = None,
) -> None:
    """Serve until interrupted; calls `started` with the address. Raises as `listening`."""
    server = bound(library, port=port, host=host, access=access, searches=searches)
    try:
        library.refresh()
        started(address_of(server, host=host, access=access))
        server.serve_forever()
    finally:
        library.close()
        server.server_close()


def address_of(server: BaseWSGIServer, *, host: str, access: Access = OPEN) -> str:
    """The address to open in a browser."""
    return f"{access.scheme}://{host if host != '0.0.0.0' else socket.gethostname()}:{server.server_port}/"


def bound(
    library: Library,
    *,
    port: int | None = None,
    host: str = LOCALHOST,
    access: Access = OPEN,
    searches: Searches | None = None,
) -> BaseWSGIServer:
    """A bound server that does not serve yet. Raises as `listening`."""
    app = make_app(library, hosts=known_hosts(host), searches=searches)
    return listening(app, port=port, host=host, access=access)


def known_hosts(host: str) -> Sequence[str]:
    """Host names that a server on `host` accepts; empty means any."""
    return LOOPBACK if host in LOOPBACK else ()


def listening(
    app: dash.Dash, *, port: int | None = None, host: str = LOCALHOST, access: Access = OPEN
) -> BaseWSGIServer:
    """A server for `app`.

    Raises UsageError where the port is not available, ConfigError where other machines would reach it without TLS and a
    password.
    """
    access.check(host, remedy=REMEDY)
    try:
        number = _port(host, port)
        tls = access.tls()
        server = make_server(host, number, access.guarded(app.server), threaded=True, request_handler=_Quiet)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}: {error.strerror}; give an address of this machine") from error
    if tls is not None:
        # The request's thread does the handshake, so a silent client does not block others.
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.ssl_context = tls  # werkzeug then names https as the scheme of requests
    return server


def _port(host: str, requested: int | None) -> int:
    """The wanted port, or the first free one. Raises UsageError."""
    candidates = range(PORT, PORT + MAX_PORTS) if requested is None else (requested,)
    for number in candidates:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, number))
            except OverflowError as error:
                raise UsageError(f"{number} is not a port: use 1 to 65535, or 0 for any free port") from error
            except OSError as error:
                if error.errno not in REFUSED:
                    raise
                continue
            return number
    if requested is None:
        raise UsageError(f"ports {PORT} to {PORT + MAX_PORTS - 1} of {host} are in use; choose another with --port")
    raise UsageError(f"cannot use port {requested} of {host}: it is in use or privileged; choose another with --port")
