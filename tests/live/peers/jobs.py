"""A job of several hosts, made of namespaces, that trains with torchrun and gloo and records each host by itself."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.live.peers.hosts import LINK, MadeHost
from traincope.store.layout import AGENT_LOG

ROOT = Path(__file__).parents[3]
DEADLINE_SECONDS = 240.0
VARIABLES = {
    "GLOO_SOCKET_IFNAME": LINK,
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
    "STEPS": "100000",
    "TRAINCOPE_AGENT": "on",
    "TRAINCOPE_AGENT_INTERVAL": "0.5",
    "TRAINCOPE_AGENT_SHARE": "1",
    "TRAINCOPE_WITNESS": "on",
}


class Job:
    """A job of these hosts, each with a run directory of its own unless it is shared."""

    def __init__(
        self,
        tmp_path: Path,
        hosts: tuple[MadeHost, ...],
        *,
        training: Sequence[object],
        ranks: int,
        shared: bool,
        variables: Mapping[str, str],
        variables_of: Mapping[str, Mapping[str, str]],
    ) -> None:
        """`training`: module and its arguments after the run directory. `ranks`: per host."""
        self.hosts = hosts
        disks = {host.name: tmp_path / ("shared" if shared else host.name) for host in hosts}
        self.runs = {name: disk / "run" for name, disk in disks.items()}
        local = tmp_path / "local"
        local.mkdir()
        for host in hosts:
            host.mount(disks[host.name], local)
        self.logs = {host.name: tmp_path / f"{host.name}.log" for host in hosts}
        self.processes = {
            host.name: host.start(
                [
                    *(Path(sys.executable).parent / "torchrun", "--nnodes", len(hosts), "--node-rank", number),
                    *("--nproc-per-node", ranks, "--master-addr", hosts[0].name, "--master-port", 29500),
                    *("-m", training[0], local / "run", *training[1:]),
                ],
                log=self.logs[host.name],
                variables={**VARIABLES, **variables, **variables_of.get(host.name, {})},
            )
            for number, host in enumerate(hosts)
        }

    def agent_log(self, host: str) -> str:
        return "".join(path.read_text() for path in self.runs[host].glob(f"attempt-000/rank-*/{AGENT_LOG}"))

    def until(
        self, true: Callable[[], bool], what: str, *, may_end: bool = False, seconds: float = DEADLINE_SECONDS
    ) -> None:
        """Poll while all launchers run. The deadline only ends a broken test: torch is imported by all processes."""
        deadline = time.monotonic() + seconds
        while not true():
            assert may_end or all(process.poll() is None for process in self.processes.values()), self.all_logs()
            assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}\n{self.all_logs()}"
            time.sleep(0.2)

    def all_logs(self) -> str:
        logs = [path.read_text() for path in self.logs.values() if path.exists()]
        return "\n".join([*logs, *(f"agent of {name}:\n{self.agent_log(name)}" for name in self.runs)])


@contextmanager
def started(
    tmp_path: Path,
    hosts: tuple[MadeHost, ...],
    *,
    training: Sequence[object],
    ranks: int = 1,
    shared: bool = False,
    variables_of: Mapping[str, Mapping[str, str]] | None = None,
    **variables: str,
) -> Iterator[Job]:
    """A job of these hosts; its processes end with it. `variables_of`: host -> variables of this host only."""
    job = Job(
        tmp_path,
        hosts,
        training=training,
        ranks=ranks,
        shared=shared,
        variables=variables,
        variables_of=variables_of or {},
    )
    try:
        yield job
    finally:
        for host in hosts:
            host.close()
        for process in job.processes.values():
            process.wait()


def report(run: Path) -> dict[str, Any]:
    command = [Path(sys.executable).parent / "traincope", "report", run, "--format", "json"]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
