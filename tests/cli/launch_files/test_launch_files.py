"""Launch files read by PyYAML and bash. Stubs of the programs that they start write down their words."""

import json
import os
import shlex
import subprocess
import sys
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.launch_files.emitted import CONFIG, SHARED, emitted, write_inputs
from traincope.cli.main import main

STUB = f"""#!{sys.executable}
import json, os, sys
config = next((word for word in sys.argv if word.endswith(".toml")), os.devnull)
names = ("TRAINCOPE_METRICS", "TRAINCOPE_WITNESS", "TRAINCOPE_PEER_KEY_FILE", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE")
names += tuple(f"TRAINCOPE_METRICS_{{word}}" for word in ("CERTIFICATE", "KEY", "PASSWORD_FILE"))
environment = {{name: os.environ[name] for name in names if name in os.environ}}
print(json.dumps([sys.argv[1:], open(config).read(), os.getcwd(), environment]))
"""
"""`traincope` that prints its words, the configuration file, its directory and environment."""
SLURM_STUBS = {
    "scontrol": 'if [ "$1" = show ]; then printf "node-1\\nnode-2\\n"; else echo "scontrol $*"; fi',
    "srun": 'while [ "${1#-}" != "$1" ]; do shift; done; SLURM_NODEID=1 "$@"; exit ${SRUN_CODE:-0}',
}
SECOND_HOST = {
    "torchrun": {"MASTER_ADDR": "node-1", "NODE_RANK": "1"},
    "slurm": {"SLURM_JOB_NODELIST": "node-[1-2]", "SLURM_JOB_ID": "7"},
    "k8s": {"JOB_COMPLETION_INDEX": "1"},
    "kubeflow": {"RANK": "1"},
    "skypilot": {"SKYPILOT_NODE_IPS": "node-1\nnode-2", "SKYPILOT_NODE_RANK": "1"},
    "mosaicml": {"MASTER_ADDR": "node-1", "NODE_RANK": "1"},
}
"""Variables that each scheduler sets on the second host."""
THEIRS = ("--name", "it's $HOME", "--nnodes=7", "--standalone")
HOSTS = {"k8s": "a-run-0.a-run", "kubeflow": "a-run-master-0"}


def script_of(kind: str, text: str) -> str:
    """Return the shell script in a launch file, as the pod or host gets it."""
    if kind in ("torchrun", "slurm"):
        return text
    document: Any = list(yaml.safe_load_all(text))[-1]
    if kind in ("k8s", "kubeflow"):
        spec = document["spec"]
        template = spec["template"] if kind == "k8s" else spec["pytorchReplicaSpecs"]["Worker"]["template"]
        (container,) = template["spec"]["containers"]
        assert container["command"][:2] == ["bash", "-c"]
        return str(container["command"][2]).replace("$$", "$")
    return str(document["run" if kind == "skypilot" else "command"])


def started(kind: str, text: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script with stubs of all programs that it starts."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    stubs = {"traincope": STUB, **{name: f"#!/bin/bash\n{body}\n" for name, body in SLURM_STUBS.items()}}
    for name, body in stubs.items():
        (programs / name).write_text(body)
        (programs / name).chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(folder), **SECOND_HOST[kind], **variables}
    command = ["bash", "-c", script_of(kind, text)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("kind", SHARED)
def test_a_host_starts_the_training_with_these_words(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names with spaces and quotes pass through YAML and bash unchanged. No key is among the words."""
    folder = tmp_path / "my disk"
    folder.mkdir()
    monkeypatch.chdir(folder)
    config = write_inputs(folder)
    words = (
        *("--set", "data.path=it's $HOME", "--max-restarts", "3", "--on-hang", "exit"),
        *("--spare-nodes", "1", "--port", "2950", "--metrics-port", "9401", "--metrics-access", "an-access"),
        *("--peer-key", "a-key"),
    )
    ended = started(kind, emitted(config, kind, *words, shared=str(folder)), tmp_path)
    assert ended.returncode == 0, ended.stderr
    (arguments, read, directory, environment) = json.loads(ended.stdout)
    assert (read, directory) == (CONFIG, str(folder))
    own_config = arguments[arguments.index("--module") + 2]
    assert own_config == str(config) if kind in ("torchrun", "slurm") else Path(own_config).parent == tmp_path
    assert arguments == [
        *("run", "--out", "a run", "--on-hang=exit", "--"),
        *("torchrun", "--nnodes=2:2", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d"),
        *("--rdzv-id=a-run", f"--rdzv-endpoint={HOSTS.get(kind, 'node-1')}:2950"),
        *("--rdzv-conf=is_host=0,read_timeout=600", "--module", "traincope.cli.launch.worker", own_config),
        *("--out", "a run", "--resume", "--set", "data.path=it's $HOME"),
    ]
    access = "/etc/traincope/metrics" if kind in HOSTS else "an-access"
    assert environment == {
        "TRAINCOPE_METRICS": "0.0.0.0:9401",
        "TRAINCOPE_METRICS_CERTIFICATE": f"{access}/tls.crt",
        "TRAINCOPE_METRICS_KEY": f"{access}/tls.key",
        "TRAINCOPE_METRICS_PASSWORD_FILE": f"{access}/users",
        "TRAINCOPE_WITNESS": "on",
        "TRAINCOPE_PEER_KEY_FILE": "/etc/traincope/peers/key" if kind in HOSTS else "a-key",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


@pytest.mark.parametrize("kind", SHARED)
def test_a_host_starts_any_torchrun_command(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words after the script are the script's, also those that look like torchrun's."""
    folder = tmp_path / "my disk"
    folder.mkdir()
    monkeypatch.chdir(folder)
    options = [*SHARED[kind], *([str(folder)] if SHARED[kind] else [])]
    torchrun = ["torchrun", "--standalone", "--nproc_per_node=1", "--tee", "3", "train.py"]
    command = ["launch-file", kind, "--nodes", "2", "--out", "a run", *options, "--", *torchrun, *THEIRS]
    text = StringIO()
    with redirect_stdout(text), suppress(SystemExit):
        main(command)
    ended = started(kind, text.getvalue(), tmp_path)
    assert ended.returncode == 0, ended.stderr
    arguments, _, directory, _ = json.loads(ended.stdout)
    assert directory == str(folder)
    assert arguments == [
        *("run", "--out", "a run", "--on-hang=report", "--"),
        *("torchrun", "--nnodes=2:2", "--nproc-per-node=1", "--max-restarts=0", "--rdzv-backend=c10d"),
        *("--rdzv-id=a-run", f"--rdzv-endpoint={HOSTS.get(kind, 'node-1')}:29500"),
        *("--rdzv-conf=is_host=0,read_timeout=600", "--tee", "3", "train.py", *THEIRS),
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "give the command after --, and begin it with torchrun, e.g. traincope launch-file slurm"),
        (("--", "python", "train.py"), "give the command after --, and begin it with torchrun"),
        (("--", "torchrun", "--nnodes", "2"), "torchrun lacks its script"),
        (("--", "torchrun", "--rdzv_id=7", "train.py"), "the file sets --rdzv-id; leave it out"),
        (
            ("--", "torchrun", "--nproc-per-node=gpu", "train.py"),
            "--nproc-per-node is 'gpu'; a launch file needs a number",
        ),
        (("--min-nodes", "3", "--", "torchrun", "--nnodes=2", "train.py"), "--min-nodes is 3, but --nodes is 2"),
        (("--image", "x", "--", "torchrun", "train.py"), "slurm does not use --image; leave it out"),
    ],
)
def test_a_command_that_no_file_can_start_is_refused(
    words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["launch-file", "slurm", *words])
    assert capsys.readouterr().err.startswith(f"traincope launch-file: {sentence}")


def test_one_host_needs_no_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = emitted(write_inputs(tmp_path), "torchrun", "--gpus-per-node", "2")
    monkeypatch.setitem(SECOND_HOST, "torchrun", {})
    words = json.loads(started("torchrun", text, tmp_path).stdout)[0]
    assert {"--nnodes=1:1", "--nproc-per-node=2", "--rdzv-endpoint=localhost:29500"} <= set(words)
    assert "--rdzv-conf=is_host=1,read_timeout=600" in words


def test_with_fewer_hosts_allowed_the_ranks_adapt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = write_inputs(tmp_path)
    words = json.loads(started("torchrun", emitted(config, "torchrun", "--min-nodes", "1"), tmp_path).stdout)[0]
    assert "--nnodes=1:2" in words
    assert words[-2:] == ["--resume", "--elastic"]
    for arguments, reason in (
        (("--min-nodes", "3"), "--min-nodes is 3, but the training has 2 hosts; give at most 2"),
        (("--min-nodes", "0"), "--min-nodes is 0; it must be at least 1"),
        (
            ("--min-nodes", "2", "--set", "parallel.dp=4", "--set", "parallel.ranks=4"),
            "--min-nodes 2 allows 3 hosts, but train.batch = 4 does not split into 3 replicas",
        ),
    ):
        assert emitted(config, "torchrun", *arguments) == ""
        assert reason in capsys.readouterr().err


def test_slurm_directives_and_the_requeue_of_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = write_inputs(tmp_path)
    text = emitted(config, "slurm", "--spare-nodes", "1", "--max-restarts", "3", "--on-hang", "exit")
    directives = [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert directives == [
        *(["--job-name=a-run"], ["--nodes=3"], ["--ntasks-per-node=1"], ["--gpus-per-node=1"], ["--exclusive"]),
        *(["--mem=0"], ["--open-mode=append"], ["--requeue"]),
    ]
    hung = started("slurm", text, tmp_path, SRUN_CODE="11", SLURM_RESTART_COUNT="2")
    assert (hung.returncode, hung.stdout.splitlines()[-1]) == (11, "scontrol requeue 7")
    for code, restarts in ((11, 3), (1, 0)):
        ended = started("slurm", text, tmp_path, SRUN_CODE=str(code), SLURM_RESTART_COUNT=str(restarts))
        assert (ended.returncode, "requeue" in ended.stdout) == (code, False)
    assert "requeue 7" not in emitted(config, "slurm", "--max-restarts", "3")
    assert "#SBATCH --no-requeue" in emitted(config, "slurm")


def test_pods_have_memory_for_shared_tensors_a_node_name_and_metrics(tmp_path: Path) -> None:
    secrets = ("--peer-key", "secret", "--metrics-access", "tls")
    text = emitted(write_inputs(tmp_path), "k8s", "--spare-nodes", "1", "--max-restarts", "3", *secrets)
    service, job = yaml.safe_load_all(text)
    template = job["spec"].pop("template")
    assert job["spec"] == {
        "completionMode": "Indexed",
        "completions": 3,
        "parallelism": 3,
        "backoffLimitPerIndex": 3,
        "successPolicy": {"rules": [{"succeededCount": 2}]},
    }
    assert template["metadata"]["labels"] == service["spec"]["selector"]
    annotations = template["metadata"]["annotations"]
    assert (annotations["prometheus.io/port"], annotations["prometheus.io/scheme"]) == ("9400", "https")
    assert template["spec"]["subdomain"] == service["metadata"]["name"] == "a-run"
    (container,) = template["spec"]["containers"]
    assert {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}} in container["env"]
    log = container["terminationMessagePath"]
    assert {"name": "TRAINCOPE_TERMINATION_LOG", "value": log} in container["env"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    volumes = {volume.pop("name"): volume for volume in template["spec"]["volumes"]}
    assert {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]} == {
        "/mnt/my disk": {"persistentVolumeClaim": {"claimName": "claim"}},
        "/dev/shm": {"emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
        "/etc/traincope/peers": {"secret": {"secretName": "secret", "defaultMode": 0o400}},
        "/etc/traincope/metrics": {"secret": {"secretName": "tls", "defaultMode": 0o400}},
    }


def test_pods_serve_nobody_without_a_certificate(tmp_path: Path) -> None:
    _, job = yaml.safe_load_all(emitted(write_inputs(tmp_path), "k8s"))
    assert "annotations" not in job["spec"]["template"]["metadata"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert "TRAINCOPE_METRICS" not in container["command"][-1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--emit", "k8s"), "k8s needs --image; --help describes it"),
        (("--emit", "slurm", "--image", "x"), "slurm does not use --image; leave it out"),
        (("--image", "x"), "--image belongs to a launch file; add --emit, or leave it out"),
        (
            ("--emit", "torchrun", "--fault", "sigkill@rank=1,step=2"),
            "--fault injects on this machine only; leave out --fault or --emit",
        ),
        (
            ("--emit", "slurm", "--metrics-port", "9400"),
            "--metrics-port serves other machines, which needs --metrics-access; give both, or neither",
        ),
        (("--emit", "slurm", "--port", "0"), "--port is 0; it must be at least 1"),
        (("--emit", "slurm", "--spare-nodes", "-1"), "--spare-nodes is -1; it must be at least 0"),
        (
            ("--emit", "slurm", "--gpus-per-node", "3"),
            "2 ranks do not fill hosts of 3 GPUs; change [parallel] or give --gpus-per-node",
        ),
        (
            ("--emit", "mosaicml", "--image", "x", "--gpu", "y", "--shared", "/mnt", "--out", "/mnt/../run"),
            "--out = /mnt/../run is not below --shared /mnt; a container would lose it",
        ),
        (
            ("--emit", "slurm", "--out", "a\nb"),
            "'a\\\\nb' contains a character that does not print; a launch file needs text",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(map(ascii, value)),
)
def test_a_wrong_option_is_one_sentence(
    words: tuple[str, ...], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", str(write_inputs(tmp_path)), *words])
    assert ended.value.code in (2, 3)
    assert capsys.readouterr().err == f"traincope train: {sentence}\n"


def test_the_file_is_written_whole(tmp_path: Path) -> None:
    config, target = write_inputs(tmp_path), tmp_path / "job.sbatch"
    assert emitted(config, "slurm", "-o", str(target)) == ""
    assert target.read_text() == emitted(config, "slurm")
