"""A training on hosts made of namespaces, each with a torchrun of its own. The rendezvous is on one more host."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.live.peers.hosts import LINK, MadeHost, hosts
from traincope.engine.launch import Launch, launch

ROOT = Path(__file__).parents[3]
WORKER = "tests.distributed.hosts.logging_worker"
STEPS, EVERY = 60, 5
CONFIG = f"""
[model]
layers = 1
hidden = 32
heads = 2
kv_heads = 2
ffn = 32
sequence = 16
dropout = {{dropout}}
[data]
path = "{{text}}"
[parallel]
dp = 2
[train]
steps = {STEPS}
batch = 4
[checkpoint]
every = {EVERY}
"""
PORT = 29500
STORE = """
import sys, time
from torch.distributed import TCPStore
store = TCPStore(sys.argv[1], int(sys.argv[2]), is_master=True, wait_for_workers=False)
print("ready", flush=True)
time.sleep(1e6)
"""
DEADLINE_SECONDS = 250.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A line of the log."""

    event: str
    host: str
    rank: int
    ranks: int
    pid: int
    at_ns: int
    step: int | None = None
    loss: float | None = None
    done: int | None = None


class Job:
    """One job in a directory that all hosts share."""

    def __init__(self, directory: Path, *, dropout: float = 0.1, held: int = 0) -> None:
        """`held`: the step whose commit host a holds."""
        directory.mkdir()
        (directory / "text").write_text("\n".join(f"{n} squared is {n * n}" for n in range(200)))
        (directory / "config.toml").write_text(CONFIG.format(text=directory / "text", dropout=dropout))
        self.directory, self.run, self.release = directory, directory / "run", directory / "release"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.variables = {
            "EVENTS": str(directory / "events"),
            "HELD": str(held),
            "RELEASE": str(self.release),
            "OMP_NUM_THREADS": "1",
        }

    @property
    def arguments(self) -> tuple[str, ...]:
        return (
            str(self.directory / "config.toml"),
            "--out",
            str(self.run),
            "--progress",
            str(self.directory / "progress"),
        )

    def undisturbed(self) -> dict[int, float]:
        """Train on this host alone. Returns the loss of each step."""
        launch(Launch(ranks=2, arguments=self.arguments, module=WORKER, environment=self.variables))
        return {event.step: event.loss for event in self.events("step") if event.step and event.loss is not None}

    @contextmanager
    def on_hosts(self) -> Iterator[tuple[MadeHost, MadeHost, MadeHost]]:
        """Make hosts a, b and c, and d with the store of the rendezvous."""
        with hosts("a", "b", "c", "d") as (a, b, c, d):
            command = d.command(sys.executable, "-c", STORE, "d", PORT)
            with subprocess.Popen(command, stdout=subprocess.PIPE) as store:
                assert store.stdout is not None
                assert store.stdout.readline() == b"ready\n"
                try:
                    yield a, b, c
                finally:
                    for host in (a, b, c, d):
                        host.close()
                    for process in self._processes:
                        process.wait()

    def start(self, host: MadeHost, *, nodes: str, options: Sequence[str] = ()) -> "subprocess.Popen[bytes]":
        """Start torchrun on a host."""
        conf = "is_host=0,read_timeout=600"
        words = [
            *(Path(sys.executable).parent / "torchrun", "--nnodes", nodes, "--nproc-per-node", 1),
            *("--max-restarts", 3, "--rdzv-backend", "c10d", "--rdzv-id", "a-job", "--rdzv-endpoint", f"d:{PORT}"),
            *("--rdzv-conf", conf, "-m", WORKER, *self.arguments, *options),
        ]
        shared = {"GLOO_SOCKET_IFNAME": LINK, "PYTHONPATH": str(ROOT), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        process = host.start(words, log=self.log(host), variables=self.variables | shared)
        self._processes.append(process)
        return process

    def log(self, host: MadeHost) -> Path:
        return self.directory / f"{host.name}.log"

    def events(self, *names: str, host: str | None = None, rank: int = 0) -> list[Event]:
        """Events of rank 0, or those of a host."""
        file = self.directory / "events"
        lines = file.read_text().splitlines() if file.exists() else []
        events = [Event(**json.loads(line)) for line in lines]
        return [
            event
            for event in events
            if event.event in names and (event.host == host if host is not None else event.rank == rank)
        ]

    def until(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not true():
            assert time.monotonic() < deadline, f"waited {DEADLINE_SECONDS:g} s for {what}\n{self.logs()}"
            time.sleep(0.05)

    def logs(self) -> str:
        return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(self.directory.glob("*.log")))
