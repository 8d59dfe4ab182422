"""The configurations of docs/operate/prometheus.md, in a real Prometheus that scrapes a real server."""

import re
import subprocess
from pathlib import Path

import yaml

from tests.certificate import make_certificate
from tests.debian import need
from tests.exporters.everything import everything
from tests.exporters.prometheus.prometheus_server import prometheus
from tests.live.processes import until
from traincope.access import Access
from traincope_exporters.prometheus.server import serve
from traincope_exporters.prometheus.settings import Serving

PAGE = (Path(__file__).parents[3] / "docs" / "operate" / "prometheus.md").read_text()
BLOCKS = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)]


def block(word: str) -> dict[str, object]:
    """The only block with this word."""
    (found,) = [each for each in BLOCKS if word in yaml.safe_dump(each)]
    return dict(found)


def test_prometheus_scrapes_with_the_certificate_and_the_password_as_documented(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    (tmp_path / "ca.pem").write_text(certificate.read_text())
    (tmp_path / "password").write_text("a word\n")
    users = {"prometheus": "a word"}
    server = serve(everything, Serving(port=0, access=Access(certificate=certificate, key=key, users=users)))
    (job,) = yaml.safe_load(yaml.safe_dump(block("static_configs")["scrape_configs"]))
    job["static_configs"] = [{"targets": [f"127.0.0.1:{server.port}"]}]
    job["scrape_interval"] = "1s"
    with prometheus(tmp_path, targets=tmp_path, scrape=[job]) as scraping:
        until(lambda: bool(scraping.query("traincope_steps_total")), "a scrape")
        assert set(scraping.query("up").values()) == {1.0}
    server.stop()


def test_target_files_are_read_from_the_directory_of_one_user() -> None:
    (job,) = block("file_sd_configs")["scrape_configs"]  # type: ignore[misc]
    (discovery,) = job["file_sd_configs"]
    assert discovery["files"] == ["/dev/shm/traincope-1000/*.json"]


def test_prometheus_accepts_the_configuration_that_closes_itself(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    (tmp_path / "web.yml").write_text(yaml.safe_dump(block("basic_auth_users")))
    promtool = need("promtool", package="prometheus")
    command = [promtool, "check", "web-config", "web.yml"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
