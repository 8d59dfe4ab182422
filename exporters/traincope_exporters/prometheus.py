"""The numbers of this node for a Prometheus to scrape, by HTTP or HTTPS."""

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
from traincope_exporters.live import Origin, Source
from traincope_exporters.settings import ADDRESS_VARIABLE, Serving, from_environment

logger = logging.getLogger(__name__)

PORTS_TRIED = 100
"""Several jobs on one node take ports after each other."""
REQUEST_SECONDS = 10.0
"""A client that says nothing for so long is hung up on."""

OPENMETRICS = "application/openmetrics-text;"
GZIP_LEVEL = 3
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Served:
    """A server at work, on a thread of its own and one a request."""

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
    """Serve until stopped; None where the environment says off. Every sample says its `origin` itself.

    Raises ConfigError for an address, certificate or password file that cannot be used, or where no port is free,
    and MissingDependencyError where prometheus_client is not installed.
    """
    serving = from_environment(environment)
    if serving is None:
        return None
    logger.debug("serving %s of %s", origin.run, origin.host)
    return serve(source, serving)


def serve(source: Source, serving: Serving) -> Served:
    """As `start`."""
    answering = application(source)
    if serving.users is not None:
        answering = only_for(serving.users, answering)
    server = _listen(serving, answering)
    if serving.certificate is None or serving.key is None:
        return Served(server, scheme="http")
    try:
        server.socket = _encrypted(serving).wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )  # the handshake is then the request's thread's: who connects and says nothing keeps nobody waiting
    except (OSError, ssl.SSLError) as error:
        server.server_close()
        raise ConfigError(
            f"{serving.certificate} and {serving.key} are no certificate and its key: {error}; metrics are not served"
        ) from error
    return Served(server, scheme="https")


def application(source: Source) -> Application:
    """Answers with what `source` says by then. Raises MissingDependencyError without prometheus_client."""
    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app

        from traincope_exporters.exposition import Exposition
    except ImportError as error:
        raise MissingDependencyError(
            "prometheus_client is not installed: pip install 'traincope[prometheus]'"
        ) from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Exposition(source))
    made: Application = make_wsgi_app(registry, disable_compression=True)
    return _at_little_cost(made)


def _at_little_cost(made: Application) -> Application:
    """The same answers at half of what they cost.

    No name of the catalogue needs escaping, which prometheus_client looks for letter by letter, and it compresses as
    hard as can be.
    """

    def answer(request: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
        accepted, said = str(request.get("HTTP_ACCEPT", "")), Headers()
        if "escaping=" not in accepted:
            accepted = accepted.replace(OPENMETRICS, f"{OPENMETRICS}escaping=allow-utf-8;")
        text = b"".join(made({**request, "HTTP_ACCEPT": accepted}, said.take))
        if text and "gzip" in request.get("HTTP_ACCEPT_ENCODING", ""):
            text, said.headers = gzip.compress(text, GZIP_LEVEL), [*said.headers, ("Content-Encoding", "gzip")]
        respond(said.status, said.headers)
        return [text]

    return answer


@dataclass(slots=True)
class Headers:
    """What an application begins its answer with."""

    status: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)

    def take(self, status: str, headers: list[tuple[str, str]]) -> None:
        self.status, self.headers = status, headers


def only_for(users: Mapping[str, str], answering: Application) -> Application:
    """Basic authentication (RFC 7617) in front of an application."""

    def guarded(request: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
        if _known(request.get("HTTP_AUTHORIZATION", ""), users):
            return answering(request, respond)
        respond("401 Unauthorized", [("WWW-Authenticate", 'Basic realm="traincope", charset="UTF-8"')])
        return [b"say who you are, by basic authentication\n"]

    return guarded


def _known(header: str, users: Mapping[str, str]) -> bool:
    scheme, _, encoded = header.partition(" ")
    try:
        user, _, password = b64decode(encoded, validate=True).partition(b":")
    except ValueError:  # no base64, or not even ASCII
        return False
    expected = users.get(user.decode(errors="replace"), "")
    return scheme.lower() == "basic" and bool(expected) and compare_digest(expected.encode(), password)


def _listen(serving: Serving, answering: Application) -> WSGIServer:
    """On the port asked for, or the next one that is free."""
    last = serving.port + (PORTS_TRIED if serving.port else 1)
    for port in range(serving.port, min(last, 65536)):
        try:
            server = make_server(serving.address, port, answering, _server_class(serving.address), _Handler)
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
            """Who hangs up, or speaks HTTP to HTTPS, is not worth a traceback on the job's screen."""
            logger.debug("a request of %s failed: %s", client_address, request, exc_info=True)

    return Server


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing a request."""

    def address_string(self) -> str:
        """Without asking a name server, which may take seconds."""
        return str(self.client_address[0])


def _encrypted(serving: Serving) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certfile=str(serving.certificate), keyfile=str(serving.key))
    return context


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
