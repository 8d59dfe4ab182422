"""`make validate-launch`: launch files read by the tools that they are for, each in an environment of its own.

A tool that does not install is reported as not validated. Each tool must also refuse a file with a misspelt key.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.launch_files.emitted import emitted, write_inputs
from tests.debian import installed
from tests.environments import environment
from tests.ports import free_port

OPTIONS = ("--spare-nodes", "1", "--max-restarts", "3", "--on-hang", "exit", "--peer-key", "a-key")

SKYPILOT = """
import sys, sky
task = sky.Task.from_yaml(sys.argv[1])
(resources,) = task.resources
assert (task.num_nodes, resources.accelerators) == (3, {"H100": 1}), task
"""
MOSAICML = """
import sys
from mcli import RunConfig
from mcli.models.run_config import FinalRunConfig
run = FinalRunConfig.finalize_config(RunConfig.from_file(sys.argv[1]))
assert (run.name, run.compute["gpus"], run.scheduling["max_retries"]) == ("a-run", 3, 3), run
run.to_create_run_api_input()
"""
KUBERNETES = """
import sys, yaml, kubernetes_validate
for document in yaml.safe_load_all(open(sys.argv[1])):
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
"""
KUBEFLOW = """
import json, sys, yaml
from kubernetes.client import ApiClient, V1PodTemplateSpec
from kubeflow.training import models
class Answer:
    def __init__(self, value): self.data = json.dumps(value)
class Client(ApiClient):
    def _ApiClient__deserialize(self, data, kind):
        return super()._ApiClient__deserialize(data, getattr(models, kind, kind) if isinstance(kind, str) else kind)
document, client = yaml.safe_load(open(sys.argv[1])), Client()
job = client.deserialize(Answer(document), models.KubeflowOrgV1PyTorchJob)
assert client.sanitize_for_serialization(job) == document, "a key is not one of a PyTorchJob"
"""
"""The models keep only keys that they know, so what they write again must be the whole file."""

PYTHON_TOOLS = {
    "skypilot": (("skypilot",), SKYPILOT, ("num_nodes:", "num_node:")),
    "mosaicml": (("mosaicml-cli",), MOSAICML, ("max_retries:", "max_retry:")),
    "k8s": (("kubernetes-validate", "pyyaml"), KUBERNETES, ("backoffLimitPerIndex:", "backoffLimitIndex:")),
    "kubeflow": (("kubeflow-training", "pyyaml"), KUBEFLOW, ("cleanPodPolicy:", "cleanPod:")),
}
"""Packages, program, and the misspelling of each format."""

SLURM_PROGRAMS = {"slurmctld": "slurmctld", "sbatch": "slurm-client"}
SLURM_CONF = """
ClusterName=fake
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}
SlurmctldPidFile={folder}/slurmctld.pid
ProctrackType=proctrack/linuxproc
MpiDefault=none
SelectType=select/cons_tres
GresTypes=gpu
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=60
NodeName=fake[1-4] NodeAddr=127.0.0.1 CPUs=8 RealMemory=1000 Gres=gpu:8 State=CLOUD
PartitionName=all Nodes=fake[1-4] Default=YES State=UP
"""
"""Four nodes that do not exist. Without their daemons, a controller schedules only nodes that a cloud would start."""


def main() -> int:
    failed = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = write_inputs(folder)
        for kind, (packages, program, misspelling) in PYTHON_TOOLS.items():
            python = environment(kind, *packages)
            if python is None:
                print(f"{kind:9} not validated: {' '.join(packages)} does not install")
                continue
            command = [str(python), "-W", "error::UserWarning", "-c", program]
            if not holds(kind, command, text=emitted(config, kind, *OPTIONS), misspelling=misspelling, folder=folder):
                failed.append(kind)
        if not installed(SLURM_PROGRAMS):
            print("slurm     not validated: slurmctld and sbatch are not installed, and only root can install them")
        else:
            with slurm(folder) as command:
                text = emitted(config, "slurm", *OPTIONS)
                if not holds("slurm", command, text=text, misspelling=("--mem=", "--memo="), folder=folder):
                    failed.append("slurm")
    return 1 if failed else 0


def holds(kind: str, command: list[str], *, text: str, misspelling: tuple[str, str], folder: Path) -> bool:
    """Return True if the tool accepts the file and refuses the misspelt one, and print it."""
    assert misspelling[0] in text
    codes, outputs = [], []
    for content in (text, text.replace(*misspelling)):
        file = folder / f"{kind}.yaml"
        file.write_text(content)
        ended = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False, timeout=120)
        codes.append(ended.returncode)
        outputs.append(ended.stdout + ended.stderr)
    good = codes[0] == 0 and codes[1] != 0
    print(f"{kind:9} {'validated; a misspelt key is refused' if good else f'FAILED: {codes}'}")
    if not good:
        print("\n".join(outputs))
    return good


@contextmanager
def slurm(folder: Path) -> Iterator[list[str]]:
    """Yield a command of `sbatch --test-only` against a controller of its own."""
    state, settings = folder / "slurm", folder / "slurm.conf"
    state.mkdir()
    settings.write_text(SLURM_CONF.format(host=socket.gethostname(), port=free_port(), folder=state))
    variables = {**os.environ, "SLURM_CONF": str(settings), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    command = ["slurmctld", "-D", "-f", str(settings)]
    with subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as controller:
        try:
            for _ in range(20):
                if not subprocess.run(["scontrol", "ping"], env=variables, capture_output=True, check=False).returncode:
                    break
                time.sleep(0.5)
            yield ["env", f"SLURM_CONF={settings}", "sbatch", "--test-only"]
        finally:
            controller.terminate()


if __name__ == "__main__":
    sys.exit(main())
