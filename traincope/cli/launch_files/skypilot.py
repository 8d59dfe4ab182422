"""A task of SkyPilot, for `sky jobs launch`."""

from traincope.cli.launch_files.job import LaunchJob
from traincope.cli.launch_files.script import script
from traincope.cli.launch_files.yaml_text import Yaml, yaml_text


def skypilot(job: LaunchJob) -> str:
    resources: dict[str, Yaml] = {"accelerators": f"{job.gpu}:{job.gpus_per_node}"}
    if job.image is not None:
        resources["image_id"] = f"docker:{job.image}"
    if job.max_restarts:
        resources["job_recovery"] = {"max_restarts_on_errors": job.max_restarts}
    volumes: dict[str, Yaml] = {} if job.volume is None else {"volumes": {str(job.shared): job.volume}}
    return yaml_text(
        {
            "name": job.name,
            "num_nodes": job.hosts,
            "resources": resources,
            **volumes,
            "run": script(
                job,
                host='$(echo "$SKYPILOT_NODE_IPS" | head -n 1)',
                first="$((SKYPILOT_NODE_RANK == 0))",
                peer_key=job.peer_key,
                metrics_access=job.metrics_access,
            ),
        }
    )
