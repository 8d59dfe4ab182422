"""Each extra alone: what it adds works with the base install and its own packages."""

import re
import signal
import tomllib
import urllib.request
from pathlib import Path

import pytest

from tests.exporters.otlp.receiver import collector
from tests.release.distribution import ROOT
from tests.release.environments import SECONDS, environment
from tests.s3 import BUCKET, s3_server

pytestmark = [pytest.mark.release, pytest.mark.timeout(SECONDS)]

DEMO = ROOT / "sample_runs" / "demo"
SMALL = "parallel.dp=2 model.layers=1 model.hidden=32 model.heads=2 model.kv_heads=2 model.ffn=64 model.sequence=32"
TRAINING = f"{SMALL} train.steps=4 train.batch=4 train.accumulation=1"

S3 = f"""
import fsspec, sys
for name, content in (("a", b"1"), ("b", b"22")):
    with fsspec.open(f"s3://{BUCKET}/{{name}}", "wb") as file:
        file.write(content)
files, root = fsspec.core.url_to_fs("s3://{BUCKET}")
print(sum(files.sizes(files.ls(root))))
"""
DASK = """
from distributed import LocalCluster
from traincope.executors import Workers
cluster = LocalCluster(n_workers=1, processes=False, protocol="tcp://", host="127.0.0.1", dashboard_address=None)
with cluster, Workers(scheduler=cluster.scheduler_address).executor() as executor:
    print(sum(executor.map(abs, [-1, 2])))
"""
PROMETHEUS = """
import sys, urllib.request, traincope
from traincope_exporters.history import final
from traincope_exporters.prometheus.server import serve
from traincope_exporters.prometheus.settings import Serving

samples = list(final(traincope.analyze(traincope.open_run(sys.argv[1]))))
served = serve(lambda: samples, Serving(port=0))
print(urllib.request.urlopen(served.where, timeout=60).read().decode())
served.stop()
"""
PEERS = """
from traincope.live.peers.network.sealing import make_seal

seal = make_seal(bytes(32))
sealed = seal.seal(b"a row", position=b"1")
print(seal.encrypts, b"a row" in sealed, seal.open(sealed, position=b"1").decode())
"""
MCP = """
import asyncio, sys
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

async def names():
    server = StdioServerParameters(command="traincope", args=["mcp", sys.argv[1]])
    async with Client(stdio_client(server)) as client:
        print(*sorted(tool.name for tool in (await client.list_tools()).tools))

asyncio.run(names())
"""
STANDING = "import time; print('ready', flush=True); time.sleep(600)"


def test_train_trains_and_reports(wheel: Path) -> None:
    with environment(wheel, "train") as place:
        run = place.directory / "run"
        settings = [word for setting in TRAINING.split() for word in ("--set", setting)]
        done = place.run("traincope", "train", ROOT / "examples" / "ddp.toml", *settings, "--out", run)
        assert done.returncode == 0, done.stderr
        assert "2 ranks" in place.run("traincope", "report", run).stdout


def test_s3_reads_and_writes_a_bucket(wheel: Path) -> None:
    with environment(wheel, "s3") as place, s3_server() as server:
        assert place.python(S3, **server.environment) == "3\n"


def test_view_serves_the_viewer_and_writes_html_and_parquet(wheel: Path) -> None:
    with environment(wheel, "view") as place:
        page, tables = place.directory / "report.html", place.directory / "tables"
        assert place.run("traincope", "report", DEMO, "--format", "html", "-o", page).returncode == 0
        assert "Plotly" in page.read_text()
        assert place.run("traincope", "export", DEMO, "--to", "parquet", "-o", tables).returncode == 0
        assert list(tables.rglob("*.parquet"))
        with place.start("traincope", "view", DEMO, "--no-browser") as viewer:
            try:
                assert viewer.stdout is not None
                address = re.match(r"(http://\S+) shows ", viewer.stdout.readline())
                assert address is not None
                with urllib.request.urlopen(address[1], timeout=60) as answer:
                    assert b"traincope" in answer.read()
            finally:
                viewer.send_signal(signal.SIGTERM)


def test_stacks_reads_a_process_that_records_nothing(wheel: Path) -> None:
    """A process on its own is a job of one rank, whose stack py-spy reads."""
    with environment(wheel, "stacks") as place, place.start("python", "-c", STANDING) as standing:
        try:
            assert standing.stdout is not None
            assert standing.stdout.readline() == "ready\n"
            asked = place.run("traincope", "hang", standing.pid)
            assert "py-spy is not installed" not in asked.stdout + asked.stderr
            read = place.run("py-spy", "dump", "--nonblocking", "--pid", standing.pid)
            assert "<module> (<string>:1)" in read.stdout
        finally:
            standing.kill()


def test_gpu_finds_the_library_of_nvidia_or_names_the_driver(wheel: Path) -> None:
    with environment(wheel, "gpu") as place:
        program = "from traincope.record.gpu.nvml import load; print(load().__name__)"
        assert place.python(program) == "pynvml\n"


def test_prometheus_serves_metrics(wheel: Path) -> None:
    with environment(wheel, "prometheus") as place:
        assert "traincope_steps_total{" in place.python(PROMETHEUS, DEMO)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_otel_sends_a_run(wheel: Path, protocol: str) -> None:
    with environment(wheel, "otel") as place, collector(protocol) as received:
        done = place.run(
            "traincope", "export", DEMO, "--to", "otlp", "--endpoint", received.url, "--protocol", protocol
        )
        assert done.returncode == 0, done.stderr
        sent = re.match(r"sent ([\d,]+) spans", done.stdout)
        assert sent is not None
        assert int(sent[1].replace(",", "")) == len(list(received.each_span())) > 0


def test_grafana_builds_the_dashboards_of_the_repository(wheel: Path) -> None:
    with environment(wheel, "grafana") as place:
        done = place.run("traincope", "dashboards", "build", "-o", place.directory / "built")
        assert done.returncode == 0, done.stderr
        for board in sorted((ROOT / "dashboards" / "grafana" / "dashboards").iterdir()):
            (built,) = place.directory.glob(f"built/**/{board.name}")
            assert built.read_text() == board.read_text()


def test_peers_encrypts_messages(wheel: Path) -> None:
    with environment(wheel, "peers") as place:
        assert place.python(PEERS).split("\n")[0] == "True False a row"


def test_sql_answers_a_query(wheel: Path) -> None:
    with environment(wheel, "sql") as place:
        done = place.run("traincope", "sql", DEMO, "select count(*) ranks from ranks", "--format", "csv")
        assert (done.returncode, done.stdout) == (0, "ranks\n4\n")


def test_mcp_lists_its_tools(wheel: Path) -> None:
    with environment(wheel, "mcp") as place:
        assert place.python(MCP, DEMO) == "diff faults ledger report sql\n"


def test_dask_reads_by_the_workers_of_a_cluster(wheel: Path) -> None:
    with environment(wheel, "dask") as place:
        assert place.python(DASK) == "3\n"


def test_these_are_all_extras() -> None:
    """Every extra has a test above. `all` joins the others, and `dev` and `docs` are not for users."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    tested = {name.split("_")[1] for name in globals() if name.startswith("test_")}
    assert extras.keys() - {"all", "dev", "docs"} <= tested
