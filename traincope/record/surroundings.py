"""What the training ran in: versions, the settings that change its speed, the revision of its code.

The environment is read by an allow-list, and a name that sounds like a secret is refused even
there: what is written down may be shown to anybody.
"""

import os
import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from traincope.record.gpus import Cuda, gpu_in_use

PACKAGES = (
    "traincope",
    "torch",
    "triton",
    "numpy",
    "transformers",
    "accelerate",
    "lightning",
    "deepspeed",
    "torchtitan",
)
ALLOWED = re.compile(
    r"(NCCL|GLOO|UCX|FI|OMP|MKL|KMP|CUDA|NVIDIA|TORCH|TORCHINDUCTOR|PYTORCH|TORCHELASTIC|SLURM|TRAINCOPE)_[A-Z0-9_]+"
    r"|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|MALLOC_CONF|LD_PRELOAD"
)
SECRET = re.compile(r"TOKEN|SECRET|PASS|KEY|CRED|AUTH|COOKIE|COMMENT|URL", re.IGNORECASE)
CREDENTIALS = re.compile(r"://[^/@\s]*@")
"""In a value: an address that tells whose it is, and mostly the password."""
LONGEST = 200
"""Characters of one value."""


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that may be told, sorted."""
    return {
        name: value[:LONGEST]
        for name, value in sorted(variables.items())
        if ALLOWED.fullmatch(name) and not SECRET.search(name) and not CREDENTIALS.search(value)
    }


def versions() -> dict[str, str]:
    """Of Python and of the packages that are imported already; none is imported for this."""
    found = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        if package in sys.modules:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                continue
    torch = sys.modules.get("torch")
    if torch is not None and torch.version.cuda:
        found["cuda"] = str(torch.version.cuda)
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.device_count() else "not used"
    return found


def devices() -> dict[str, str | int]:
    """This process's accelerator, with the UUID by which NVML knows it, or its processor; and the memory of its host.

    A GPU is named once the training has used it: asking sooner would settle which GPUs the process
    sees, and keep its forked children from using any.
    """
    torch = sys.modules.get("torch")
    memory = {"memory_bytes": _host_memory_bytes()}
    if torch is not None and torch.cuda.is_initialized():
        gpu = {"name": torch.cuda.get_device_name(), "count": torch.cuda.device_count()}
        return {**gpu, **memory, **_identified(torch.cuda)}
    if torch is not None and torch.cuda.device_count():
        return {"name": "a GPU, not used yet", "count": torch.cuda.device_count(), **memory}
    return {"name": _processor(), "count": os.cpu_count() or 1, **memory}


def own_revision() -> str | None:
    """Of the code that is trained, which lies around the script or where it was started."""
    script = Path(sys.argv[0]).parent if sys.argv and sys.argv[0] else Path()
    try:
        return git_revision(script.resolve()) or git_revision(Path.cwd())
    except (OSError, ValueError):
        return None


def _identified(cuda: Cuda) -> dict[str, str | int]:
    """Nothing while it holds no tensor, nor where this torch does not tell."""
    try:
        uuid = gpu_in_use(cuda)
    except (AttributeError, RuntimeError):
        return {}
    return {} if uuid is None else {"uuid": uuid}


def git_revision(start: Path) -> str | None:
    """The commit that is checked out around `start`, read from its files: no process is started for it."""
    for folder in (start, *start.parents):
        git = folder / ".git"
        if git.is_file():
            git = (folder / git.read_text().removeprefix("gitdir:").strip()).resolve()
        if (git / "HEAD").is_file():
            return _resolve(git, (git / "HEAD").read_text().strip())
    return None


def _resolve(git: Path, head: str) -> str | None:
    if not head.startswith("ref: "):
        return head
    reference = head.removeprefix("ref: ")
    common = git / "commondir"
    roots = (git, (git / common.read_text().strip()).resolve()) if common.is_file() else (git,)
    for root in roots:
        if (root / reference).is_file():
            return (root / reference).read_text().strip()
        packed = root / "packed-refs"
        for line in packed.read_text().splitlines() if packed.is_file() else ():
            if line.endswith(f" {reference}"):
                return line.split(" ", 1)[0]
    return None


def _host_memory_bytes() -> int:
    """What all processes of this host, or of this container, may hold before the kernel kills one."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return installed
    return min(installed, int(limit)) if limit.isdecimal() else installed


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return os.uname().machine
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1) if found else os.uname().machine
