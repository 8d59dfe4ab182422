from collections import Counter
from collections.abc import Iterator

import pytest

from tests.dashboards.fake_grafana import TOKEN, FakeGrafana, serving
from tests.ports import free_port
from traincope.errors import ServerError, UsageError
from traincope_dashboards.grafana import Grafana
from traincope_dashboards.panels.board import Look
from traincope_dashboards.push import push

LOOK = Look()


@pytest.fixture
def fake() -> FakeGrafana:
    return FakeGrafana()


@pytest.fixture
def grafana(fake: FakeGrafana) -> Iterator[Grafana]:
    with serving(fake.handle) as url:
        yield Grafana(url, token=TOKEN)


def outcomes(grafana: Grafana, **options: object) -> Counter[str]:
    return Counter(done.change for done in push(grafana, **{"look": LOOK, **options}))


def test_a_first_push_creates_all_and_a_second_push_writes_nothing(fake: FakeGrafana, grafana: Grafana) -> None:
    assert outcomes(grafana, prometheus="http://127.0.0.1:9090") == {"created": 41}
    assert fake.folders == {"traincope": "traincope", "traincope-runbook": "traincope runbooks"}
    assert Counter(fake.placed.values()) == {"traincope": 8, "traincope-runbook": 30}
    assert fake.placed["traincope-overview"] == "traincope"
    assert fake.datasources["traincope-prometheus"]["url"] == "http://127.0.0.1:9090"
    fake.writes.clear()
    assert outcomes(grafana, prometheus="http://127.0.0.1:9090") == {"unchanged": 41}
    assert fake.writes == []


def test_only_changed_dashboards_are_updated(fake: FakeGrafana, grafana: Grafana) -> None:
    outcomes(grafana, prometheus="http://127.0.0.1:9090")
    viewer = Look(viewer="https://view.example")
    # The eight dashboards contain the viewer's address, and so does the data source, for its exemplars.
    changed = outcomes(grafana, look=viewer, prometheus="http://127.0.0.1:9090")
    assert changed == {"unchanged": 2 + 30, "updated": 8 + 1}
    (link,) = fake.datasources["traincope-prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert link["url"] == "https://view.example/timeline?step=${__value.raw}"
    assert fake.dashboards["traincope-overview"]["version"] == 2


def test_without_a_prometheus_no_data_source_is_changed(fake: FakeGrafana, grafana: Grafana) -> None:
    assert outcomes(grafana) == {"created": 40}
    assert fake.datasources == {}


def test_an_edit_in_grafana_is_overwritten_only_on_request(fake: FakeGrafana, grafana: Grafana) -> None:
    outcomes(grafana)
    fake.edit("traincope-ledger", "My ledger")
    with pytest.raises(ServerError, match=r"MFU ledger was edited in Grafana by admin \(version 2\)"):
        outcomes(grafana)
    assert fake.dashboards["traincope-ledger"]["title"] == "My ledger"
    assert outcomes(grafana, overwrite=True) == {"unchanged": 39, "updated": 1}
    assert fake.dashboards["traincope-ledger"]["title"] == "traincope / MFU ledger"


def test_a_moved_dashboard_returns_to_its_folder(fake: FakeGrafana, grafana: Grafana) -> None:
    outcomes(grafana)
    fake.placed["traincope-ledger"] = "elsewhere"
    assert outcomes(grafana) == {"unchanged": 39, "updated": 1}
    assert fake.placed["traincope-ledger"] == "traincope"


def test_a_folder_of_the_same_name_is_a_conflict(fake: FakeGrafana, grafana: Grafana) -> None:
    fake.folders["somebodys"] = "traincope"
    with pytest.raises(ServerError, match=r"has a different object there \(a folder with the same name already exists"):
        outcomes(grafana)


def test_an_invalid_token_gets_advice(fake: FakeGrafana) -> None:
    with serving(fake.handle) as url, pytest.raises(ServerError, match=r"does not know the token \(Invalid API key\)"):
        outcomes(Grafana(url, token="glsa_wrong"))


def test_a_token_without_permission_gets_the_required_role(fake: FakeGrafana, grafana: Grafana) -> None:
    fake.forbidden = "/api/datasources"
    with pytest.raises(ServerError, match=r"denies permission .* for a data source Admin"):
        outcomes(grafana, prometheus="http://127.0.0.1:9090")


def test_a_closed_port_is_unreachable() -> None:
    with pytest.raises(ServerError, match=r"http://127\.0\.0\.1:\d+ cannot be reached: .*[Rr]efused"):
        Grafana(f"http://127.0.0.1:{free_port()}", token=TOKEN).version()


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("answer", ["<html>Welcome</html>", {"hello": "world"}], ids=["page", "json"])
def test_another_server_is_not_a_grafana(status: int, answer: object) -> None:
    with serving(lambda *_, **__: (status, answer)) as url, pytest.raises(ServerError, match="is not a Grafana"):
        Grafana(url, token=TOKEN).version()


def test_a_failing_server_is_reported() -> None:
    broken = serving(lambda *_, **__: (500, {"message": "database is locked"}))
    with broken as url, pytest.raises(ServerError, match="failed: Server Error 500: database is locked"):
        Grafana(url, token=TOKEN).version()


NO_URLS = [
    "grafana:3000",
    "127.0.0.1:3000",
    "",
    "ftp://grafana",
    "http://",
    "http://[::1",
    "http://a:b",
    "http://a:70000",
]


@pytest.mark.parametrize("url", NO_URLS)
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not the URL of a Grafana"):
        Grafana(url, token=TOKEN)


def test_a_grafana_below_a_path_works_with_and_without_a_slash() -> None:
    with serving(FakeGrafana(prefix="/grafana").handle) as url:
        for written in (f"{url}/grafana", f"{url}/grafana/"):
            assert Grafana(written, token=TOKEN).version() == "11.6.0"
