"""Four hosts of namespaces with one rank each, which stay up for all trials, and their slow cables."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evaluation.score.preflight.cases import RANKS, Kind, Trial
from tests.live.peers.hosts import LINK, MadeHost, hosts

ROOT = Path(__file__).parents[3]
NAMES = "abcd"
CONFIG = f"""
[model]
layers = 4
hidden = 32
heads = 2
kv_heads = 2
ffn = 64
sequence = 16
[parallel]
pp = {RANKS}
schedule = "1f1b"
microbatches = 4
[train]
steps = 1
batch = 4
"""
CABLE = "cable0"
PORT = 29555


class Machine:
    """The hosts and their ranks."""

    def __init__(self, made: Sequence[MadeHost], config: Path, log: Path) -> None:
        self._hosts = made
        self._log = log.open("ab")
        self._ranks = [self._start(rank, host, config) for rank, host in enumerate(made)]
        for rank in range(RANKS):
            assert self._line(rank) == "ready", f"rank {rank} did not start; see {log}"

    def run(self, trial: Trial) -> tuple[list[tuple[str, tuple[int, ...]]], dict[str, Any]]:
        """Names of the judgement, and rank 0's answer."""
        with self._slow(trial):
            for rank in self._ranks:
                assert rank.stdin is not None
                rank.stdin.write(json.dumps(trial.message) + "\n")
                rank.stdin.flush()
            answer = json.loads(self._line(0))
        return [(kind, tuple(ranks)) for kind, ranks, _ in answer["names"]], answer

    def close(self) -> None:
        for rank in self._ranks:
            rank.kill()
            rank.wait()
        self._log.close()

    def _start(self, rank: int, host: MadeHost, config: Path) -> "subprocess.Popen[str]":
        variables = {
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": self._hosts[0].address,
            "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": LINK,
            "OMP_NUM_THREADS": "1",
            "TRAINCOPE_AGENT": "off",
            "PYTHONPATH": str(ROOT),
        }
        return subprocess.Popen(
            host.command(sys.executable, "-m", "evaluation.score.preflight.rank", config),
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            # The kernel shares cores between sessions. On hosts of their own, ranks would not share them.
            start_new_session=True,
        )

    def _line(self, rank: int) -> str:
        output = self._ranks[rank].stdout
        assert output is not None
        line = output.readline().strip()
        if not line:
            raise RuntimeError(f"rank {rank} ended; see {self._log.name}")
        return line

    @contextmanager
    def _slow(self, trial: Trial) -> Iterator[None]:
        """Slow down a host's link to the switch, or lay a slow cable between two hosts. Open connections take it."""
        if trial.kind is Kind.NETWORK:
            host = self._hosts[trial.ranks[0]]
            # A host's own queue slows what it sends; a round trip always contains that.
            host.run(*_bucket("add", LINK, trial.megabits))
            try:
                yield
            finally:
                host.run("tc", "qdisc", "del", "dev", LINK, "root")
        elif trial.kind is Kind.LINK:
            with self._cable(*(self._hosts[rank] for rank in trial.ranks), megabits=trial.megabits):
                yield
        else:
            yield

    @contextmanager
    def _cable(self, first: MadeHost, second: MadeHost, *, megabits: int) -> Iterator[None]:
        # From outside of the hosts, which number their processes themselves.
        inside = ("nsenter", "--target", str(first.first_pid), "--net", "ip", "link", "add", CABLE)
        peer = ("type", "veth", "peer", "name", CABLE, "netns", str(second.first_pid))
        subprocess.run([*inside, *peer], check=True)
        try:
            for host, other in ((first, second), (second, first)):
                host.run("ip", "link", "set", CABLE, "up")
                host.run("ip", "route", "add", f"{other.address}/32", "dev", CABLE, "src", host.address)
                host.run(*_bucket("add", CABLE, megabits))
            yield
        finally:
            first.run("ip", "link", "del", CABLE)


def _bucket(change: str, device: str, megabits: int) -> tuple[object, ...]:
    rate, burst, latency = ("rate", f"{megabits}mbit"), ("burst", "64kb"), ("latency", "2s")
    return "tc", "qdisc", change, "dev", device, "root", "tbf", *rate, *burst, *latency


@contextmanager
def machine(directory: Path) -> Iterator[Machine]:
    """Four hosts. Raises RuntimeError if a rank ends."""
    config, log = directory / "config.toml", directory / "log"
    config.write_text(CONFIG)
    with hosts(*NAMES) as made:
        running = Machine(made, config, log)
        try:
            yield running
        finally:
            running.close()
