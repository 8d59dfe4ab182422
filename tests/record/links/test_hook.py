"""A run records its host's links: on a tree of files, and on a real network whose queue drops packets."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.peers.hosts import LINK, MadeHost, hosts, why_not
from tests.record.links.fake import infiniband
from traincope.analysis.faults.anomalies.links import host_links, link_faults
from traincope.record.links.hook import OTHER_RANK
from traincope.timeline import Timeline, open_run

RECORDING = """
import pathlib, sys, threading
import traincope
from tests.record.links import fake
from traincope.record import run as running
from traincope.record.links import hook

out, root = map(pathlib.Path, sys.argv[1:])
threads = threading.active_count()
run_hooks = (hook.Links(root),)
running.make_hooks = lambda: run_hooks
with traincope.run(out) as run:
    run.step()
    assert threading.active_count() == threads
    if list(root.glob("sys/*")) and run_hooks[0]._thread is not None:
        while not run_hooks[0]._links:
            pass
        fake.infiniband(root, **{f"{fake.PORT}/hw_counters/local_ack_timeout_err": 400})
    run.step()
"""


def record(out: Path, root: Path, **variables: str) -> Timeline:
    environment = {key: value for key, value in os.environ.items() if key not in ("LOCAL_RANK", "SLURM_LOCALID")}
    words = [sys.executable, "-c", RECORDING, str(out), str(root)]
    subprocess.run(words, check=True, timeout=150, env=environment | variables)
    return open_run(out)


def test_the_last_look_shows_what_happened_in_the_run(tmp_path: Path) -> None:
    infiniband(tmp_path / "root")
    timeline = record(tmp_path / "out", tmp_path / "root")
    assert timeline.run.ranks[0].info.probes["links"] == "on"
    (fault,) = link_faults(timeline)
    host = timeline.run.ranks[0].info.host.name
    assert fault.what == f"port mlx5_0/1 of host {host}: 400 timeouts after which packets were sent again"
    port, tcp, gpu, card = sorted(host_links(timeline), key=lambda link: (link.is_slot, link.of))
    assert (port.of, port.bits_per_second, port.sent_bytes) == ("InfiniBand", 400_000_000_000, 0)
    assert (tcp.of, gpu.of, card.of) == ("TCP", "GPU", "mlx5_0")


def test_a_host_without_links_is_recorded_without_them(tmp_path: Path) -> None:
    timeline = record(tmp_path / "out", tmp_path / "root")
    assert timeline.run.ranks[0].info.probes["links"] == "on"
    assert host_links(timeline) == ()


@pytest.mark.parametrize(("variable", "number"), [("LOCAL_RANK", "1"), ("SLURM_LOCALID", "3")])
def test_only_the_first_rank_of_a_host_reads(tmp_path: Path, variable: str, number: str) -> None:
    infiniband(tmp_path / "root")
    timeline = record(tmp_path / "out", tmp_path / "root", **{variable: number})
    assert timeline.run.ranks[0].info.probes["links"] == OTHER_RANK
    assert host_links(timeline) == ()


KILLED = """
import json, os, pathlib, signal, sys, time
import traincope
from tests.record.links import fake
from traincope.record import run as running
from traincope.record.links import hook
from traincope.record.session import recorder

out, root = map(pathlib.Path, sys.argv[1:])
hook.POLL_SECONDS, recorder.CLOCK_INTERVAL_NS = 0.01, 0
links = hook.Links(root)
running.make_hooks = lambda: (links,)
speed = f"{fake.GPU}/current_link_speed"
fake.write(root, {speed: "2.5 GT/s PCIe"})
with traincope.run(out) as run:
    for fast in (2.5, 32.0):
        fake.write(root, {speed: f"{fast} GT/s PCIe"})
        ends = time.monotonic() + 60
        while time.monotonic() < ends:
            run.step()
            states = [json.loads(file.read_text())["links"] for file in out.rglob("rank.json")]
            if [state["0000:3b:00.0"]["transfers"] for state in states if state] == [fast]:
                break
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_has_the_speed_of_a_gpu_with_work(tmp_path: Path) -> None:
    """A GPU without work is slower: no event shows that it got faster, so `rank.json` does."""
    infiniband(tmp_path / "root")
    words = [sys.executable, "-c", KILLED, str(tmp_path / "out"), str(tmp_path / "root")]
    assert subprocess.run(words, check=False, timeout=150).returncode == -signal.SIGKILL
    (gpu,) = (link for link in host_links(open_run(tmp_path / "out")) if link.is_gpu)
    assert gpu.transfers == 32.0


SENDING = """
import json, socket, sys, time
from traincope.record.links.changes import LinkChanges

address, what = sys.argv[1:]
changes = LinkChanges()
list(changes.look(0))
with socket.create_connection((address, 7001)) as sender:
    for _ in range(200):
        sender.sendall(bytes(64 * 1024))
    sender.shutdown(socket.SHUT_WR)
    assert sender.recv(1) == b"!"
events = [details for name, details in changes.look(10**9, is_last=True) if name == "host link errors"]
print(json.dumps({"errors": events, "links": changes.links}[what]))
"""
RECEIVING = """
import socket

with socket.create_server(("", 7001)) as server:
    print("ready", flush=True)
    accepted, _ = server.accept()
    while accepted.recv(1 << 20):
        pass
    accepted.sendall(b"!")
"""


@pytest.fixture
def network() -> Iterator[tuple[MadeHost, MadeHost]]:
    if why_not():
        pytest.skip(f"{why_not()}: real links are NOT tested")
    with hosts("a", "b") as made:
        for host in made:
            host.run("mount", "-t", "sysfs", "sysfs", "/sys")  # that of its network
        yield made[0], made[1]


def send(network: tuple[MadeHost, MadeHost], what: str) -> Any:
    """Send 12.5 MiB from the first host to the second. Returns the errors of the first one's links, or their states."""
    first, second = network
    with subprocess.Popen(second.command(sys.executable, "-c", RECEIVING), stdout=subprocess.PIPE) as receiver:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == b"ready\n"
        words = first.command(sys.executable, "-c", SENDING, second.address, what)
        sent = subprocess.run(words, check=True, capture_output=True, timeout=150)
        assert receiver.wait(60) == 0
    return json.loads(sent.stdout)


def test_a_queue_that_drops_packets_makes_tcp_send_again(network: tuple[MadeHost, MadeHost]) -> None:
    limit = ("rate", "400mbit", "burst", "20k", "limit", "20k")
    network[0].run("tc", "qdisc", "replace", "dev", LINK, "root", "tbf", *limit)
    (errors,) = send(network, "errors")
    assert errors["port"] == "TCP"
    assert 20 <= errors["counts"]["retransmitted segments"] < errors["sent_packets"]


def test_a_sound_link_has_no_errors_and_counts_its_bytes(network: tuple[MadeHost, MadeHost]) -> None:
    errors = {error["port"]: error["counts"] for error in send(network, "errors")}
    assert set(errors) <= {"TCP"}  # on a host without free cores, an answer may come too late
    assert all(sum(counts.values()) < 20 for counts in errors.values())
    ports = send(network, "links")
    assert set(ports) == {LINK, "TCP"}
    assert (ports[LINK]["up"], ports[LINK]["bits_per_second"]) == (True, None)
    assert 200 * 64 * 1024 < ports[LINK]["sent_bytes"] < 2 * 200 * 64 * 1024
