"""HTTP or HTTPS server from which Prometheus scrapes this node's metrics."""

import errno
import gzip
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from socketserver import TCPServer
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from traincope.access import Application
from traincope.errors import ConfigError, MissingDependencyError
from traincope.live.serve.exporters import Origin, Source
from traincope_exporters.prometheus.settings import ADDRESS_VARIABLE, Serving, from_environment

logger = logging.getLogger(__name__)

MAX_PORTS = 100
"""Number of ports to try. Several jobs on one node use successive ports."""
REQUEST_SECONDS = 10.0
"""Timeout of a silent connection."""

OPENMETRICS = "application/openmetrics-text;"
GZIP_LEVEL = 3


class Served:
    """Running server, with one thread per request."""

    def __init__(self, server: WSGIServer, *, scheme: str) -> None:
        self._server = server
        self.address, self.port = str(server.server_address[0]), int(server.server_address[1])
        self.where = f"{scheme}://{_host(self.address)}:{self.port}/metrics"
        self._thread = threading.Thread(target=server.serve_forever, name="traincope-metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def start(source: Source, *, origin: Origin, environment: Mapping[str, str]) -> Served | None:
    """Serve until stopped; None if the environment disables it. `origin` is only logged: every sample carries it.

    Raises ConfigError for an unusable address, certificate or password file, or if no port is free, and
    MissingDependencyError if prometheus_client is not installed.
    """
    serving = from_environment(environment)
    if serving is None:
        return None
    logger.debug("serving %s of %s", origin.run, origin.host)
    return serve(source, serving)


def serve(source: Source, serving: Serving) -> Served:
    """Serve `source`. Raises as `start`."""
    tls = serving.access.tls()
    server = _listen(serving, serving.access.guarded(application(source)))
    if tls is not None:
        # The request's thread does the handshake, so a silent client does not block others.
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return Served(server, scheme=serving.access.scheme)


def application(source: Source) -> Application:
    """WSGI application that returns the current samples. Raises MissingDependencyError without prometheus_client."""
    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app

        from traincope_exporters.prometheus.exposition import Exposition
    except ImportError as error:
        raise MissingDependencyError(
            "prometheus_client is not installed: pip install 'traincope[prometheus]'"
        ) from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Exposition(source))
    wsgi_app: Application = make_wsgi_app(registry, disable_compression=True)
    return _with_cheap_encoding(wsgi_app)


def _with_cheap_encoding(wsgi_app: Application) -> Application:
    """Wrap an application to halve its cost. The answers are equal.

    prometheus_client checks every name for escaping, but no name of the catalogue needs it. It also uses the highest
    compression level.
    """

    def answer(request: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
        accepted, headers = str(request.get("HTTP_ACCEPT", "")), Headers()
        if "escaping=" not in accepted:
            accepted = accepted.replace(OPENMETRICS, f"{OPENMETRICS}escaping=allow-utf-8;")
        text = b"".join(wsgi_app({**request, "HTTP_ACCEPT": accepted}, headers.take))
        if text and "gzip" in request.get("HTTP_ACCEPT_ENCODING", ""):
            text, headers.headers = gzip.compress(text, GZIP_LEVEL), [*headers.headers, ("Content-Encoding", "gzip")]
        respond(headers.status, headers.headers)
        return [text]

    return answer


@dataclass(slots=True)
class Headers:
    """Status and headers with which an application starts its answer."""

    status: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)

    def take(self, status: str, headers: list[tuple[str, str]]) -> None:
        self.status, self.headers = status, headers


def _listen(serving: Serving, wsgi_application: Application) -> WSGIServer:
    """Listen on the configured port or the next free one."""
    last = serving.port + (MAX_PORTS if serving.port else 1)
    for port in range(serving.port, min(last, 65536)):
        try:
            server = make_server(serving.address, port, wsgi_application, _server_class(serving.address), _Handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(
                    f"{serving.address}:{port} cannot be served: {error.strerror}; set {ADDRESS_VARIABLE}"
                ) from error
            continue
        if port not in (serving.port, 0):
            logger.warning("port %d is taken: metrics are served on port %d", serving.port, port)
        return server
    raise ConfigError(
        f"ports {serving.port} to {last - 1} of {serving.address} are all taken; set {ADDRESS_VARIABLE} to another one"
    )


def _server_class(address: str) -> type[WSGIServer]:
    import socket

    from prometheus_client.exposition import ThreadingWSGIServer

    class Server(ThreadingWSGIServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

        def server_bind(self) -> None:
            """Bind without looking up the address's name, which may ask a name server."""
            TCPServer.server_bind(self)
            self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
            self.setup_environ()

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Log at debug level.

            A closed connection or plain HTTP on an HTTPS port needs no traceback on the job's screen.
            """
            logger.debug("a request of %s failed: %s", client_address, request, exc_info=True)

    return Server


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing per request."""

    def address_string(self) -> str:
        """Address without a name lookup, which may take seconds."""
        return str(self.client_address[0])


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
