"""Server for Prometheus: ports, authentication, encryption, error messages."""

import socket
import ssl
import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path

import pytest

from tests.certificate import make_certificate
from tests.exporters.everything import everything
from traincope.access import Access
from traincope.errors import ConfigError, MissingDependencyError
from traincope.live.serve.exporters import Origin
from traincope.metrics.sample import Sample
from traincope_exporters.prometheus.server import Served, serve, start
from traincope_exporters.prometheus.settings import DEFAULT_PORT, Serving, from_environment

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
ANY = Serving(port=0)
ORIGIN = Origin(run="job-7", host="node-3", began_ns=0)


@pytest.fixture(scope="module")
def samples() -> Sequence[Sample]:
    return everything()


@pytest.fixture
def served(samples: Sequence[Sample]) -> Iterator[Served]:
    running = serve(lambda: samples, ANY)
    yield running
    running.stop()


def ask(where: HTTPConnection, **headers: str) -> tuple[HTTPResponse, str]:
    where.request("GET", "/metrics", headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = where.getresponse()
    text = answer.read().decode()
    where.close()
    return answer, text


def connect(served: Served) -> HTTPConnection:
    return HTTPConnection(served.address, served.port, timeout=90)


def test_a_scraper_gets_the_requested_format(served: Served) -> None:
    answer, text = ask(connect(served))
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert 'traincope_steps_total{host="node-3",rank="0",run="job-7"} 3.0\n' in text
    assert "# EOF" not in text
    answer, text = ask(connect(served), Accept=OPENMETRICS)
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    assert ' # {rank="1",step="2"} 0.1 0.3\n' in text
    assert text.endswith("# EOF\n")


def test_the_default_address_is_loopback(served: Served) -> None:
    assert served.where == f"http://127.0.0.1:{served.port}/metrics"


def test_every_scrape_reads_new_samples() -> None:
    answers: list[Sequence[Sample]] = [[], everything()]
    running = serve(lambda: answers.pop(0), ANY)
    assert ["traincope_steps_total" in ask(connect(running))[1] for _ in range(2)] == [False, True]
    running.stop()


def test_the_next_port_is_used_if_the_first_is_taken(
    samples: Sequence[Sample], caplog: pytest.LogCaptureFixture
) -> None:
    first = serve(lambda: samples, ANY)
    second = serve(list, Serving(port=first.port))
    assert first.port < second.port < first.port + 100
    assert caplog.messages == [f"port {first.port} is taken: metrics are served on port {second.port}"]
    assert "job-7" in ask(connect(first))[1]
    assert ask(connect(second))[1] == ""
    first.stop()
    second.stop()


def test_a_released_port_can_be_used_again(samples: Sequence[Sample]) -> None:
    running = serve(lambda: samples, ANY)
    running.stop()
    again = serve(lambda: samples, Serving(port=running.port))
    assert again.port == running.port
    again.stop()


def test_unknown_users_are_refused(samples: Sequence[Sample], tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text("grafana:correct horse: staple\n\nother:x\n")
    serving = from_environment({"TRAINCOPE_METRICS": "127.0.0.1:0", "TRAINCOPE_METRICS_PASSWORD_FILE": str(passwords)})
    assert serving is not None
    running = serve(lambda: samples, serving)
    answer, text = ask(connect(running))
    assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, 'Basic realm="traincope", charset="UTF-8"')
    assert "traincope_" not in text
    for wrong in ("grafana:wrong", "nobody:", "nobody:x", "grafana"):
        assert ask(connect(running), Authorization=basic(wrong))[0].status == 401
    for nonsense in ("Basic !", "Basic \xe4", "Bearer grafana", "Basic"):
        assert ask(connect(running), Authorization=nonsense)[0].status == 401
    assert "job-7" in ask(connect(running), Authorization=basic("grafana:correct horse: staple"))[1]
    running.stop()


def basic(user_and_password: str) -> str:
    return f"Basic {b64encode(user_and_password.encode()).decode()}"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Certificate of 127.0.0.1, and its key."""
    return make_certificate(tmp_path_factory.mktemp("certificate"))


def test_https_works_while_a_silent_client_is_connected(
    samples: Sequence[Sample], certificate: tuple[Path, Path]
) -> None:
    running = serve(lambda: samples, Serving(port=0, access=Access(certificate=certificate[0], key=certificate[1])))
    assert running.where.startswith("https://")
    silent = socket.create_connection((running.address, running.port))
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    connection = HTTPSConnection(running.address, running.port, timeout=90, context=trusting)
    assert "job-7" in ask(connection)[1]
    with pytest.raises((ConnectionError, OSError)):
        ask(connect(running))
    silent.close()
    running.stop()


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        (
            {"TRAINCOPE_METRICS": "9400x"},
            "TRAINCOPE_METRICS=9400x has no port; set address:port, for example 127.0.0.1:9400, or off",
        ),
        ({"TRAINCOPE_METRICS": "host:70000"}, "has no port"),
        ({"TRAINCOPE_METRICS": "192.0.2.1:9400"}, "192.0.2.1 can be reached from other machines, so it needs a"),
        ({"TRAINCOPE_METRICS": "[::ffff:127.0.0.1]:9400"}, "::ffff:127.0.0.1 can be reached from other machines"),
        (
            {"TRAINCOPE_METRICS_CERTIFICATE": __file__},
            "HTTPS needs both a certificate and its key; set TRAINCOPE_METRICS_CERTIFICATE, TRAINCOPE_METRICS_KEY and",
        ),
        (
            {"TRAINCOPE_METRICS_CERTIFICATE": __file__, "TRAINCOPE_METRICS_KEY": __file__},
            "are not a certificate and its key",
        ),
        ({"TRAINCOPE_METRICS_PASSWORD_FILE": "/no/such/file"}, "/no/such/file cannot be read"),
        ({"TRAINCOPE_METRICS_PASSWORD_FILE": __file__}, "has a line that is not user:password"),
        ({"TRAINCOPE_METRICS_PASSWORD_FILE": "/dev/null"}, "/dev/null cannot be read"),
        ({"TRAINCOPE_METRICS_PASSWORD_FILE": sys.executable}, "is not UTF-8 text"),
    ],
)
def test_invalid_settings_are_one_sentence(environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        start(list, origin=ORIGIN, environment={"TRAINCOPE_METRICS": "127.0.0.1:0", **environment})
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_server_is_on_by_default() -> None:
    assert from_environment({}) == Serving(address="127.0.0.1", port=DEFAULT_PORT)
    assert from_environment({"TRAINCOPE_METRICS": "127.0.0.2:1234"}) == Serving(address="127.0.0.2", port=1234)
    assert from_environment({"TRAINCOPE_METRICS": "[::1]:1234"}) == Serving(address="::1", port=1234)
    for off in ("off", "OFF", "0", "no"):
        assert start(list, origin=ORIGIN, environment={"TRAINCOPE_METRICS": off}) is None


def test_an_address_that_this_machine_lacks_is_one_sentence(certificate: tuple[Path, Path]) -> None:
    access = Access(certificate=certificate[0], key=certificate[1], users={"a": "b"})
    for address, sentence in (
        ("192.0.2.1", "192.0.2.1:9400 cannot be served: Cannot assign requested address; set TRAINCOPE_METRICS"),
        ("no.such.host.invalid", "no.such.host.invalid:9400 cannot be served: "),
    ):
        with pytest.raises(ConfigError, match=f"^{sentence}"):
            serve(list, Serving(address=address, access=access))


def test_without_prometheus_client_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'traincope\[prometheus\]'"):
        serve(list, ANY)
