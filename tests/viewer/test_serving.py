"""The server: whom it answers, and what it says where it cannot listen."""

import socket
from pathlib import Path

import pytest
from dash import Dash

from traincope.errors import UsageError
from traincope.viewer.app import make_app
from traincope.viewer.library import Library
from traincope.viewer.serving import bound, listening

SAMPLE = Path(__file__).parents[2] / "sample_runs" / "demo"


def test_a_port_that_is_taken_is_refused_in_words(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} of 127.0.0.1 cannot be had"):
            bound(Library([SAMPLE], cache=tmp_path), port=port)


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [
        ("127.0.0.1", 70_000, "70000 is no port"),
        ("127.0.0.1", -1, "-1 is no port"),
        ("192.0.2.1", None, "cannot listen on 192.0.2.1: Cannot assign requested address"),
    ],
)
def test_what_cannot_be_listened_on_is_said_in_a_sentence(host: str, port: int | None, said: str) -> None:
    """192.0.2.1 is nobody's address (RFC 5737)."""
    with pytest.raises(UsageError, match=said):
        listening(Dash(), port=port, host=host)


def test_where_none_is_asked_for_the_next_free_port_is_taken(tmp_path: Path) -> None:
    first, second = (bound(Library([SAMPLE], cache=tmp_path)) for _ in range(2))
    ports = first.server_port, second.server_port
    first.server_close()
    second.server_close()
    assert ports[0] < ports[1]
    assert first.server_address[0] == "127.0.0.1"


def test_pages_elsewhere_that_resolve_to_this_machine_are_turned_away(tmp_path: Path) -> None:
    library = Library([SAMPLE], cache=tmp_path)
    client = make_app(library).server.test_client()
    library.close()
    assert client.get("/", headers={"Host": "127.0.0.1:8050"}).status_code == 200
    assert client.get("/", headers={"Host": "localhost"}).status_code == 200
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 403


def test_no_page_may_load_anything_from_elsewhere(tmp_path: Path) -> None:
    library = Library([SAMPLE], cache=tmp_path)
    answer = make_app(library).server.test_client().get("/", headers={"Host": "localhost"})
    library.close()
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "http" not in answer.headers["Content-Security-Policy"]
