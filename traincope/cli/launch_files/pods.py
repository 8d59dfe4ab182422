"""Manifests of pods: an indexed Job of Kubernetes with its Service, and Kubeflow's PyTorchJob."""

import re

from traincope.cli.launch_files.job import LaunchJob
from traincope.cli.launch_files.script import script
from traincope.cli.launch_files.yaml_text import Yaml, yaml_text
from traincope.live.termination_log import DEFAULT_PATH, PATH_VARIABLE
from traincope.metrics.labels import JOB_VARIABLES

LABEL = "traincope.job"
KEY_DIRECTORY, METRICS_DIRECTORY = "/etc/traincope/peers", "/etc/traincope/metrics"
FIELDS = {"NODE_NAME": "spec.nodeName", "POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
"""Variable -> field of the pod that fills it. A pod knows its names only by such variables."""
OWNER_ONLY = 0o400


def kubernetes(job: LaunchJob) -> str:
    """Return a headless Service, which gives the pods names, and a Job whose pods have an index."""
    service: Yaml = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": job.name},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {LABEL: job.name}},
    }
    pod = _pod(job, container="train", host=f"{job.name}-0.{job.name}", index="JOB_COMPLETION_INDEX")
    # A spare has no work of its own: the job is complete when the hosts that trained are.
    policy: dict[str, Yaml] = {"successPolicy": {"rules": [{"succeededCount": job.min_nodes}]}}
    success = policy if job.min_nodes < job.hosts else {}
    spec: dict[str, Yaml] = {
        "completionMode": "Indexed",
        "completions": job.hosts,
        "parallelism": job.hosts,
        "backoffLimitPerIndex": job.max_restarts,
        **success,
        "template": {
            "metadata": _metadata(job),
            "spec": {"subdomain": job.name, "restartPolicy": "Never", **pod},
        },
    }
    batch: Yaml = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job.name}, "spec": spec}
    return yaml_text(service, batch)


def kubeflow(job: LaunchJob) -> str:
    """Return a PyTorchJob. Its operator names the pods, and numbers them in RANK."""
    pod = _pod(job, container="pytorch", host=f"{job.name}-master-0", index="RANK")
    replicas: dict[str, Yaml] = {
        kind: {"replicas": number, "restartPolicy": "OnFailure", "template": {"metadata": _metadata(job), "spec": pod}}
        for kind, number in (("Master", 1), ("Worker", job.hosts - 1))
        if number
    }
    return yaml_text(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": job.name},
            "spec": {
                "nprocPerNode": str(job.gpus_per_node),
                "runPolicy": {"backoffLimit": job.max_restarts * job.hosts, "cleanPodPolicy": "Running"},
                "pytorchReplicaSpecs": replicas,
            },
        }
    )


def _metadata(job: LaunchJob) -> Yaml:
    labels: dict[str, Yaml] = {"labels": {LABEL: job.name}}
    if job.metrics_port is None:
        return labels
    port = str(job.metrics_port)
    words = {"scrape": "true", "scheme": "https", "port": port, "path": "/metrics"}
    return {**labels, "annotations": {f"prometheus.io/{name}": word for name, word in words.items()}}


def _pod(job: LaunchJob, *, container: str, host: str, index: str) -> dict[str, Yaml]:
    """Return the containers and volumes of a pod. `index`: the variable with the pod's number."""
    mounts: list[Yaml] = [
        {"name": "shared", "mountPath": str(job.shared)},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    volumes: list[Yaml] = [
        {"name": "shared", "persistentVolumeClaim": {"claimName": str(job.volume)}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": job.shm_size}},
    ]
    secrets = {"peers": (job.peer_key, KEY_DIRECTORY), "access": (job.metrics_access, METRICS_DIRECTORY)}
    for name, (secret, directory) in secrets.items():
        if secret is not None:
            mounts.append({"name": name, "mountPath": directory, "readOnly": True})
            volumes.append({"name": name, "secret": {"secretName": secret, "defaultMode": OWNER_ONLY}})
    text = script(
        job,
        host=host,
        first=f"$(({index} == 0))",
        peer_key=None if job.peer_key is None else f"{KEY_DIRECTORY}/key",
        metrics_access=None if job.metrics_access is None else METRICS_DIRECTORY,
    )
    return {
        "containers": [
            {
                "name": container,
                "image": str(job.image),
                "command": ["bash", "-c", _unexpanded(text)],
                "env": [
                    *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in FIELDS.items()),
                    {"name": PATH_VARIABLE, "value": DEFAULT_PATH},
                    {"name": JOB_VARIABLES[-1], "value": job.name},
                ],
                "terminationMessagePath": DEFAULT_PATH,
                "ports": [
                    {"name": name, "containerPort": port}
                    for name, port in (("rendezvous", job.port), ("metrics", job.metrics_port))
                    if port is not None
                ],
                "resources": {"limits": {"nvidia.com/gpu": str(job.gpus_per_node)}},
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }


def _unexpanded(text: str) -> str:
    """Escape what Kubernetes would replace: its own variables, `$(NAME)`, and `$$`, its escape of a dollar."""
    return re.sub(r"\$(?=[$(])", "$$", text)
