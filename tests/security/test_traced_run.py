"""Statements of docs/operate/security.md about a whole run, held to the system calls of all its processes."""

import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.security.traced import TWO_RANKS, WITH_TORCH, WITHOUT_TORCH, Call, traced
from traincope.store.lock import node_directory

DEMO = Path(__file__).parents[2] / "sample_runs" / "demo"
SECRET = "a-secret-that-must-stay-in-memory"
SECRETS = {
    "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={SECRET}",
    "WANDB_API_KEY": SECRET,
    "NCCL_AUTH_TOKEN": SECRET,
    "TORCH_PROXY_URL": f"https://user:{SECRET}@proxy.example",
}
"""Variables as a job may have them. Two of them have names that are recorded, apart from their content."""
AGENT = {"TRAINCOPE_AGENT": "on", "TRAINCOPE_AGENT_INTERVAL": "0.2", "TRAINCOPE_AGENT_SHARE": "1"}
PORT = re.compile(r"sin6?_port=htons\((\d+)\)")
ADDRESS = re.compile(r'(?:inet_addr\(|AF_INET6, )"([^"]+)"')
LOOPBACK = re.compile(r'sin_addr=inet_addr\("127\.\d+\.\d+\.\d+"\)|inet_pton\(AF_INET6, "::1"')
SENDS = ("connect", "sendto", "sendmsg", "sendmmsg")
INTERNET = ("sa_family=AF_INET,", "sa_family=AF_INET6,")
SIGNALS = ("kill", "tkill", "tgkill", "pidfd_send_signal")
PRIVILEGED = ("ptrace", "process_vm_readv", "capset", "setuid", "bpf", "perf_event_open", "mount")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRun:
    run: Path
    calls: tuple[Call, ...]
    has_torch: bool

    def named(self, *names: str) -> Iterator[Call]:
        return (call for call in self.calls if call.name in names)


@pytest.fixture(scope="module", params=["two ranks", pytest.param("torchrun on gloo", marks=pytest.mark.sweep)])
def traced_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    """A healthy run with its agent. Its umask gives every file to everyone, unless the file's own mode does not."""
    directory = tmp_path_factory.mktemp("traced")
    has_torch = request.param != "two ranks"
    script, run = directory / "train.py", directory / "run"
    script.write_text(WITH_TORCH if has_torch else WITHOUT_TORCH)
    sizes = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "static"]
    command = [*(torchrun if has_torch else TWO_RANKS), script, run]
    unset = {name: "" for name in os.environ if name.startswith("TRAINCOPE_")}
    before = os.umask(0)
    try:
        logs = directory / "logs"
        logs.mkdir()
        calls = traced(command, logs, variables={**unset, **({} if has_torch else sizes), **SECRETS, **AGENT})
    finally:
        os.umask(before)
    ranks = [json.loads(path.read_text()) for path in run.glob("attempt-000/rank-*/rank.json")]
    assert [rank["ending"] for rank in ranks] == ["clean", "clean"]
    return TracedRun(run=run, calls=calls, has_torch=has_torch)


def test_only_the_agent_listens_and_only_on_loopback(traced_run: TracedRun) -> None:
    bound = [call for call in traced_run.named("bind") if any(word in call.arguments for word in INTERNET)]
    assert all(LOOPBACK.search(call.arguments) for call in bound) or traced_run.has_torch
    if not traced_run.has_torch:  # gloo and the store of torch listen too, at the host's own address
        ports = {match[1] for call in bound if (match := PORT.search(call.arguments))}
        assert len(list(traced_run.named("listen"))) >= 1
        assert ports, "the agent serves its metrics by default"


def test_nothing_is_sent_to_another_host(traced_run: TracedRun) -> None:
    own = {"127.0.0.1", "::1", *_own_addresses()}
    if traced_run.has_torch:  # torch looks up the host's name
        own |= set(re.findall(r"^nameserver (\S+)", Path("/etc/resolv.conf").read_text(), re.MULTILINE))
    sent = [call for call in traced_run.named(*SENDS) if any(word in call.arguments for word in INTERNET)]
    addresses = {address for call in sent for address in ADDRESS.findall(call.arguments)}
    assert {address.removeprefix("::ffff:") for address in addresses} <= own
    if not traced_run.has_torch:
        assert sent == []


@pytest.mark.sweep
@pytest.mark.parametrize(
    "words",
    [("report", DEMO, "--format", "html", "-o", "/dev/null"), ("ls", DEMO.parent), ("hang", DEMO), ("doctor",)],
    ids=["report", "ls", "hang", "doctor"],
)
def test_commands_on_recorded_runs_open_no_connection(words: tuple[str | Path, ...], tmp_path: Path) -> None:
    calls = traced([sys.executable, "-m", "traincope.cli.main", *words], tmp_path, variables={})
    assert any(call.name == "execve" for call in calls)
    assert [call for call in calls if call.name in SENDS and any(word in call.arguments for word in INTERNET)] == []


def _own_addresses() -> Iterator[str]:
    """Addresses of this host, from the kernel's table of local routes."""
    for line in Path("/proc/net/fib_trie").read_text().splitlines():
        if (match := re.search(r"\|-- (\d+\.\d+\.\d+\.\d+)", line)) is not None:
            yield match[1]


def test_files_and_directories_are_closed_to_others_from_the_first_byte(traced_run: TracedRun) -> None:
    made = [call for call in traced_run.calls if call.creates and call.path.is_relative_to(traced_run.run)]
    assert len(made) > 10
    modes = {(call.path.name, oct(call.mode)) for call in made if "mkdir" not in call.name}
    assert {mode for _, mode in modes} == {"0o600"}, modes
    assert {call.mode for call in made if "mkdir" in call.name} == {0o700}
    for path in [traced_run.run, *traced_run.run.rglob("*")]:
        assert not stat.S_IMODE(path.lstat().st_mode) & 0o077, path
    changed = [
        call for call in traced_run.named("chmod", "fchmod", "fchmodat") if str(traced_run.run) in call.arguments
    ]
    assert all(call.mode & 0o077 == 0 for call in changed)


def test_files_are_created_only_in_the_run_and_in_the_users_directory_of_the_node(traced_run: TracedRun) -> None:
    if traced_run.has_torch:
        pytest.skip("torch creates files of its own, such as segments in /dev/shm")
    made = {call.path for call in traced_run.calls if call.creates and not call.path.is_relative_to(traced_run.run)}
    assert {path for path in made if path.parent != node_directory()} <= {node_directory(), Path("/dev/null")}
    targets = [call for call in traced_run.calls if call.creates and ".json" in call.path.name]
    at_node = [call for call in targets if call.path.parent == node_directory()]
    assert [call.mode for call in at_node] == [0o644]


def test_the_only_new_processes_are_a_shell_and_the_agent(traced_run: TracedRun) -> None:
    programs = [call.path.name for call in traced_run.named("execve")]
    python = Path(sys.executable).name
    assert set(programs) <= {"sh", python}
    agents = [call for call in traced_run.named("execve") if "traincope.cli.commands.agent" in call.arguments]
    assert len(agents) == 2, "the shell, which ends at once, and the agent"
    if not traced_run.has_torch:
        assert len(programs) == 1 + 2 + len(agents), "the shell of the test, two ranks, and these"


def test_a_healthy_run_sends_no_signal(traced_run: TracedRun) -> None:
    sent = [call for call in traced_run.named(*SIGNALS) if not call.arguments.endswith(", 0")]
    assert sent == [] or traced_run.has_torch  # torchrun ends its workers by itself


def test_a_run_needs_no_privilege(traced_run: TracedRun) -> None:
    """It ran without any capability, and with `no_new_privs`."""
    assert list(traced_run.named(*PRIVILEGED)) == []


def test_secrets_are_in_no_file_and_no_argument(traced_run: TracedRun) -> None:
    files = [path for path in traced_run.run.rglob("*") if path.is_file()]
    assert any(path.name == "run.json" for path in files)
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    assert [call for call in traced_run.named("execve") if SECRET in call.arguments] == []
