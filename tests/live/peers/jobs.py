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
LOCAL_RUN = "local/run"
"""Run directory, as each host sees its own."""
WORK_SECONDS = 400.0
"""CPU time that a job takes at most until what a test awaits, or until the next sign of progress."""
IDLE_SECONDS = 300.0
IDLE_SHARE = 0.02
"""A job whose processes take a smaller share of a core for so long waits for nothing that would come."""
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
        self._work = Work(len(hosts))
        disks = {host.name: tmp_path / ("shared" if shared else host.name) for host in hosts}
        self.runs = {name: disk / "run" for name, disk in disks.items()}
        local = (tmp_path / LOCAL_RUN).parent
        local.mkdir()
        for host in hosts:
            host.mount(disks[host.name], local)
        self.logs = {host.name: tmp_path / f"{host.name}.log" for host in hosts}
        self.processes = {
            host.name: host.start(
                [
                    *(Path(sys.executable).parent / "torchrun", "--nnodes", len(hosts), "--node-rank", number),
                    *("--nproc-per-node", ranks, "--master-addr", hosts[0].name, "--master-port", 29500),
                    *("-m", training[0], tmp_path / LOCAL_RUN, *training[1:]),
                ],
                log=self.logs[host.name],
                variables={**VARIABLES, **variables, **variables_of.get(host.name, {})},
            )
            for number, host in enumerate(hosts)
        }

    def agent_log(self, host: str) -> str:
        return "".join(path.read_text() for path in self.runs[host].glob(f"attempt-000/rank-*/{AGENT_LOG}"))

    def until(
        self,
        true: Callable[[], bool],
        what: str,
        *,
        may_end: bool = False,
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        """Poll while all launchers run. It fails once the job has done enough work since `progress` last changed.

        The work is the CPU time of the job's processes: a machine that does much else gives it later.
        """
        state, work, idle = progress(), _Meter(self.cpu_seconds()), _Meter(self.cpu_seconds())
        while not true():
            assert may_end or all(process.poll() is None for process in self.processes.values()), self.all_logs()
            now = self.cpu_seconds()
            if (latest := progress()) != state:
                state, work, idle = latest, _Meter(now), _Meter(now)
            assert work.taken(now) < WORK_SECONDS, f"{what}: not after {WORK_SECONDS:g} s of CPU\n{self.all_logs()}"
            if idle.age_seconds() > IDLE_SECONDS:
                assert idle.taken(now) > IDLE_SHARE * IDLE_SECONDS, f"{what}: the job is idle\n{self.all_logs()}"
                idle = _Meter(now)
            time.sleep(0.2)

    def cpu_seconds(self) -> float:
        """CPU time that the processes of all hosts took, the launchers', the ranks' and the agents'."""
        return self._work.taken([host.cpu_seconds() for host in self.hosts])

    def all_logs(self) -> str:
        logs = [path.read_text() for path in self.logs.values() if path.exists()]
        return "\n".join([*logs, *(f"agent of {name}:\n{self.agent_log(name)}" for name in self.runs)])


class Work:
    """Work of several hosts, by readings that fall where a process ended, or its host was killed."""

    def __init__(self, num_hosts: int) -> None:
        self._before, self._taken = [0.0] * num_hosts, 0.0

    def taken(self, readings: Sequence[float]) -> float:
        """The sum of all rises so far."""
        self._taken += sum(max(now - before, 0) for now, before in zip(readings, self._before, strict=True))
        self._before = list(readings)
        return self._taken


class _Meter:
    """CPU time taken since a moment."""

    def __init__(self, cpu_seconds: float) -> None:
        self._cpu_seconds, self._began = cpu_seconds, time.monotonic()

    def taken(self, cpu_seconds: float) -> float:
        return cpu_seconds - self._cpu_seconds

    def age_seconds(self) -> float:
        return time.monotonic() - self._began


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
