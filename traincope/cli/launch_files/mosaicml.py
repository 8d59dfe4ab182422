"""A run of the MosaicML platform, for `mcli run -f`."""

from traincope.cli.launch_files.job import LaunchJob
from traincope.cli.launch_files.script import script
from traincope.cli.launch_files.yaml_text import yaml_text


def mosaicml(job: LaunchJob) -> str:
    return yaml_text(
        {
            "name": job.name,
            "image": str(job.image),
            "compute": {"gpus": job.hosts * job.gpus_per_node, "gpu_type": str(job.gpu), "nodes": job.hosts},
            "scheduling": {"max_retries": job.max_restarts, "retry_on_system_failure": job.max_restarts > 0},
            "command": script(
                job,
                host='"$MASTER_ADDR"',
                first="$((NODE_RANK == 0))",
                peer_key=job.peer_key,
                metrics_access=job.metrics_access,
            ),
        }
    )
