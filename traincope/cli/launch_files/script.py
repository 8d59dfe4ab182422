"""The shell script that each host runs. Every launch file contains it.

It expects two shell variables: `host`, the name of the first host, and `first`, 1 on that host and 0 on the others.
"""

from collections.abc import Iterator, Mapping
from shlex import quote

from traincope.cli.launch_files.job import LaunchJob
from traincope.engine.launch import WORKER

CONNECT_SECONDS = 600
"""Time for the first host to appear. Hosts of one job may start minutes apart, when they load an image."""
METRICS_FILES = {
    "TRAINCOPE_METRICS_CERTIFICATE": "tls.crt",
    "TRAINCOPE_METRICS_KEY": "tls.key",
    "TRAINCOPE_METRICS_PASSWORD_FILE": "users",
}
"""Variable -> file of the folder of certificate and passwords. A TLS Secret of Kubernetes has the first two names."""


def script(job: LaunchJob, *, host: str, first: str, peer_key: str | None, metrics_access: str | None) -> str:
    """Return the whole script for a container, which writes the configuration file itself.

    `host`, `first`: shell expressions. `peer_key`: path of the agents' key. `metrics_access`: folder of certificate and
    passwords.
    """
    lines = [
        "set -eu",
        f"host={host}",
        f"first={first}",
        *setup(job, peer_key=peer_key, metrics_access=metrics_access),
        *([] if job.command else _write_config(job.config_text)),
        *start(job, config='"$config"'),
    ]
    return "\n".join(lines) + "\n"


def setup(job: LaunchJob, *, peer_key: str | None, metrics_access: str | None) -> Iterator[str]:
    """Yield lines that change to the shared folder and set the environment."""
    yield f"cd {quote(str(job.shared))}"
    for name, value in _environment(job, peer_key=peer_key, metrics_access=metrics_access).items():
        yield f"export {name}={quote(value)}"


def start(job: LaunchJob, *, config: str) -> Iterator[str]:
    """Yield the lines of the command that trains, which replaces the shell. `config`: a shell expression."""
    yield f"exec traincope run --out {quote(str(job.out))} --on-hang={job.on_hang} -- \\"
    yield f"    torchrun --nnodes={job.min_nodes}:{job.nodes} --nproc-per-node={job.gpus_per_node} \\"
    yield f"    --max-restarts={job.max_restarts} --rdzv-backend=c10d --rdzv-id={job.name} \\"
    yield f'    --rdzv-endpoint="$host:{job.port}" --rdzv-conf="is_host=$first,read_timeout={CONNECT_SECONDS}" \\'
    if job.command:
        yield f"    {' '.join(map(quote, job.command))}"
    else:
        yield f"    --module {WORKER} {config} --out {quote(str(job.out))}{_options(job)}"


def _options(job: LaunchJob) -> str:
    overrides = (f" --set {quote(override)}" for override in job.overrides)
    flags = {" --resume": job.resume, " --elastic": job.min_nodes < job.nodes}
    return "".join([*(flag for flag, given in flags.items() if given), *overrides])


def _environment(job: LaunchJob, *, peer_key: str | None, metrics_access: str | None) -> Mapping[str, str]:
    """Return the variables of the job.

    torchrun's own store would survive a restart, and a host that joins later counts restarts from 0. Without it, each
    round of the rendezvous begins with an empty store.
    """
    environment = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if metrics_access is not None:
        environment["TRAINCOPE_METRICS"] = f"0.0.0.0:{job.metrics_port}"
        environment |= {variable: f"{metrics_access}/{name}" for variable, name in METRICS_FILES.items()}
    if peer_key is not None:
        environment |= {"TRAINCOPE_WITNESS": "on", "TRAINCOPE_PEER_KEY_FILE": peer_key}
    return environment


def _write_config(text: str) -> Iterator[str]:
    lines = text.splitlines()
    end = "END_OF_CONFIG"
    while end in lines:
        end += "_"
    yield "config=$(mktemp --suffix=.toml)"
    yield f"cat > \"$config\" <<'{end}'"
    yield from lines
    yield end
