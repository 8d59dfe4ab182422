"""Servers that other machines reach: only with TLS and a password."""

import argparse
import socket
import ssl
import threading
from base64 import b64encode
from http.client import HTTPSConnection
from pathlib import Path

import dash
import pytest

from tests.certificate import make_certificate
from traincope.access import Access
from traincope.cli.served import access_of, add_server_arguments
from traincope.errors import ConfigError
from traincope.viewer.serving import address_of, listening
from traincope_exporters.prometheus.settings import Serving, from_environment

CERTIFICATE = Path("tls.crt")
WHOLE = Access(certificate=CERTIFICATE, key=Path("tls.key"), users={"a": "b"})


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.7", "node-7"])
@pytest.mark.parametrize("missing", ["certificate", "users", "both"])
def test_an_address_of_other_machines_needs_a_certificate_and_a_password(address: str, missing: str) -> None:
    access = {
        "certificate": Access(users={"a": "b"}),
        "users": Access(certificate=CERTIFICATE, key=CERTIFICATE),
        "both": Access(),
    }[missing]
    with pytest.raises(ConfigError, match=f"^{address} can be reached from other machines, so it needs a certificate"):
        access.check(address, remedy="--key")
    WHOLE.check(address, remedy="--key")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_neither(address: str) -> None:
    Access().check(address, remedy="--key")


def test_half_of_a_tls_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="HTTPS needs both a certificate and its key; set --key"):
        Access(certificate=CERTIFICATE).check("127.0.0.1", remedy="--key")


def test_the_metrics_server_names_its_variables() -> None:
    with pytest.raises(ConfigError, match="set TRAINCOPE_METRICS_CERTIFICATE, TRAINCOPE_METRICS_KEY and TRAINCOPE_MET"):
        from_environment({"TRAINCOPE_METRICS": "0.0.0.0:9400"})


def test_the_metrics_server_takes_its_access_from_files(tmp_path: Path) -> None:
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).touch()
    (tmp_path / "users").write_text("prometheus:word\n")
    variables = {
        "TRAINCOPE_METRICS": "0.0.0.0:9400",
        "TRAINCOPE_METRICS_CERTIFICATE": str(tmp_path / "tls.crt"),
        "TRAINCOPE_METRICS_KEY": str(tmp_path / "tls.key"),
        "TRAINCOPE_METRICS_PASSWORD_FILE": str(tmp_path / "users"),
    }
    access = Access(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key", users={"prometheus": "word"})
    assert from_environment(variables) == Serving(address="0.0.0.0", port=9400, access=access)


def test_pages_for_other_machines_need_tls_and_the_password(tmp_path: Path) -> None:
    """The server of `traincope view` and `traincope live`, on all interfaces."""
    certificate, key = make_certificate(tmp_path)
    (tmp_path / "users").write_text("ann:a word\n")
    parser = argparse.ArgumentParser()
    add_server_arguments(parser)
    files = ["--certificate", str(certificate), "--key", str(key), "--password-file", str(tmp_path / "users")]
    access = access_of(parser.parse_args(["--host", "0.0.0.0", *files]))
    page = dash.Dash("page")
    page.layout = dash.html.Div("a page")
    with pytest.raises(ConfigError, match="set --certificate, --key and --password-file, or"):
        listening(page, port=0, host="0.0.0.0")
    with listening(page, port=0, host="0.0.0.0", access=access) as server:
        assert address_of(server, host="0.0.0.0", access=access).startswith("https://")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        trusted = ssl.create_default_context(cafile=str(certificate))
        # This client never begins the handshake. The others are served.
        silent = socket.create_connection(("127.0.0.1", server.server_port))
        statuses = []
        for words in (None, "ann:another", "ann:a word"):
            connection = HTTPSConnection("127.0.0.1", server.server_port, timeout=90, context=trusted)
            header = {} if words is None else {"Authorization": f"Basic {b64encode(words.encode()).decode()}"}
            connection.request("GET", "/", headers=header)
            statuses.append(connection.getresponse().status)
            connection.close()
        silent.close()
        server.shutdown()
        thread.join()
    assert statuses == [401, 401, 200]
