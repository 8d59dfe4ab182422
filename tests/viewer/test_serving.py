"""The server: accepted hosts, and errors if it cannot listen."""

import socket
from pathlib import Path

import pytest
from dash import Dash

from traincope.access import Access
from traincope.errors import UsageError
from traincope.viewer.app import make_app
from traincope.viewer.library.library import Library
from traincope.viewer.serving import bound, listening

SAMPLE = Path(__file__).parents[2] / "sample_runs" / "demo"


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot use port {port} of 127.0.0.1"):
            bound(Library([SAMPLE], cache=tmp_path), port=port)


PROTECTED = Access(certificate=Path("tls.crt"), key=Path("tls.key"), users={"ann": "a word"})


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("127.0.0.1", 70_000, "70000 is not a port"),
        ("127.0.0.1", -1, "-1 is not a port"),
        ("192.0.2.1", None, "cannot listen on 192.0.2.1: Cannot assign requested address"),
    ],
)
def test_an_invalid_address_is_refused_in_one_sentence(host: str, port: int | None, message: str) -> None:
    """192.0.2.1 is reserved for documentation (RFC 5737)."""
    with pytest.raises(UsageError, match=message):
        listening(Dash(), port=port, host=host, access=PROTECTED)


def test_the_default_is_the_next_free_port(tmp_path: Path) -> None:
    first, second = (bound(Library([SAMPLE], cache=tmp_path)) for _ in range(2))
    ports = first.server_port, second.server_port
    first.server_close()
    second.server_close()
    assert ports[0] < ports[1]
    assert first.server_address[0] == "127.0.0.1"


def test_other_host_names_are_refused(tmp_path: Path) -> None:
    library = Library([SAMPLE], cache=tmp_path)
    client = make_app(library).server.test_client()
    library.close()
    assert client.get("/", headers={"Host": "127.0.0.1:8050"}).status_code == 200
    assert client.get("/", headers={"Host": "localhost"}).status_code == 200
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 403


def test_pages_may_not_load_external_resources(tmp_path: Path) -> None:
    library = Library([SAMPLE], cache=tmp_path)
    answer = make_app(library).server.test_client().get("/", headers={"Host": "localhost"})
    library.close()
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "http" not in answer.headers["Content-Security-Policy"]
