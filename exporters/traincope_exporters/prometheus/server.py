"""HTTP or HTTPS server from which Prometheus scrapes this node's metrics."""

import errno
import gzip
import logging
import ssl
import threading
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

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
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


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
    wsgi_application = application(source)
    if serving.users is not None:
        wsgi_application = with_basic_auth(serving.users, wsgi_application)
    server = _listen(serving, wsgi_application)
    if serving.certificate is None or serving.key is None:
        return Served(server, scheme="http")
    try:
        server.socket = _encrypted(serving).wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )  # the request's thread does the handshake, so a silent client does not block others
    except (OSError, ssl.SSLError) as error:
        server.server_close()
        raise ConfigError(
            f"{serving.certificate} and {serving.key} are not a certificate and its key: {error}; "
            "metrics are not served"
        ) from error
    return Served(server, scheme="https")


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


def with_basic_auth(users: Mapping[str, str], wsgi_application: Application) -> Application:
    """Add basic authentication (RFC 7617) to an application."""

    def guarded(request: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
        if _is_authorized(request.get("HTTP_AUTHORIZATION", ""), users):
            return wsgi_application(request, respond)
        respond("401 Unauthorized", [("WWW-Authenticate", 'Basic realm="traincope", charset="UTF-8"')])
        return [b"basic authentication is required\n"]

    return guarded


def _is_authorized(header: str, users: Mapping[str, str]) -> bool:
    scheme, _, encoded = header.partition(" ")
    try:
        user, _, password = b64decode(encoded, validate=True).partition(b":")
    except ValueError:  # neither base64 nor ASCII
        return False
    expected = users.get(user.decode(errors="replace"), "")
    return scheme.lower() == "basic" and bool(expected) and compare_digest(expected.encode(), password)


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


def _encrypted(serving: Serving) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certfile=str(serving.certificate), keyfile=str(serving.key))
    return context


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
