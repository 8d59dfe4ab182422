"""The environment of the training: versions, settings that change its speed, the hardware, the revision of its code.

Environment variables pass an allow-list, and names that suggest a secret are refused even there: a run directory may be
shown to anyone.
"""

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from traincope.plan.measured_peaks import measured_flops
from traincope.record.instrumentation.asynchronous import suppressed
from traincope.record.session.identity import this_host

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
"""Credentials in a value: a URL with a user name, and usually the password."""
MAX_VALUE_CHARACTERS = 200
"""Maximum number of recorded characters of one value."""
version_of = cache(version)
"""The version of an installed package. It is in a file, and the metadata is written again and again."""


class Cuda(Protocol):
    """The used part of `torch.cuda`."""

    def is_initialized(self) -> bool: ...

    def device_count(self) -> int: ...

    def current_device(self) -> int: ...

    def memory_reserved(self, device: int) -> int: ...

    def get_device_properties(self, device: int) -> Any: ...


def allowed_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may be recorded, sorted."""
    return {
        name: value[:MAX_VALUE_CHARACTERS]
        for name, value in sorted(variables.items())
        if ALLOWED.fullmatch(name) and not SECRET.search(name) and not CREDENTIALS.search(value)
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that are imported already. Nothing is imported here."""
    package_versions = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        if package in sys.modules:
            try:
                package_versions[package] = version_of(package)
            except PackageNotFoundError:
                continue
    torch = sys.modules.get("torch")
    if torch is not None and torch.version.cuda:
        package_versions["cuda"] = str(torch.version.cuda)
        package_versions["nccl"] = (
            ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.device_count() else "not used"
        )
    return package_versions


def devices() -> dict[str, Any]:
    """Describe the accelerator of this process with NVML's UUID and its memory, or the processor, and the memory of the
    host. A processor has torch's number of threads and, once it is known, their measured peak.

    A GPU is named only after the training has used it. An earlier query would fix the GPUs that the process sees and
    keep its forked children from using any.
    """
    torch = sys.modules.get("torch")
    memory = {"memory_bytes": host_memory_bytes()}
    if torch is not None and torch.cuda.is_initialized():
        gpu = {"name": torch.cuda.get_device_name(), "count": torch.cuda.device_count()}
        return {**gpu, **memory, **_gpu_uuid(torch.cuda), **_gpu_memory(torch.cuda)}
    if torch is not None and torch.cuda.device_count():
        return {"name": "a GPU, not used yet", "count": torch.cuda.device_count(), **memory}
    threads = {} if torch is None else {"threads": torch.get_num_threads()}
    device = {"name": processor(), "count": os.cpu_count() or 1, **threads, **memory}
    measured = measured_flops(this_host().name, device)
    return device if measured is None else {**device, "measured_flops": measured}


def gpu_in_use(cuda: Cuda) -> str | None:
    """Return CUDA's UUID of the GPU that holds most of this process's tensors. None while none does."""
    device = _device_in_use(cuda)
    return None if device is None else str(cuda.get_device_properties(device).uuid)


def current_gpu_is_in_use(cuda: Cuda) -> bool:
    """Return whether the calling thread's current GPU holds most of this process's tensors. Creates no context on it.

    The first check makes a training that never makes its GPU current pay for one query.
    """
    if not cuda.is_initialized():
        return False
    current = cuda.current_device()
    with suppress(RuntimeError):
        if not cuda.memory_reserved(current):
            return False
    return _device_in_use(cuda) == current


def _device_in_use(cuda: Cuda) -> int | None:
    """Return the index of the GPU that holds most of this process's tensors. None while none does.

    The current device may be another: a training may use "cuda:1" and never make it current. The calling thread's
    current device is the answer only if an allocator of the training's own keeps no counts.
    """
    if not cuda.is_initialized():
        return None
    try:
        reserved = [cuda.memory_reserved(device) for device in range(cuda.device_count())]
    except RuntimeError:
        return cuda.current_device()
    return reserved.index(max(reserved)) if any(reserved) else None


def training_revision() -> str | None:
    """Return the revision of the trained code, from the directory of the script or the working directory."""
    script = Path(sys.argv[0]).parent if sys.argv and sys.argv[0] else Path()
    with suppressed(OSError, ValueError):
        return git_revision(script.resolve()) or git_revision(Path.cwd())
    return None


def _gpu_uuid(cuda: Cuda) -> dict[str, str | int]:
    """Return the GPU's UUID and slot. Empty while the GPU holds no tensor, or if this torch does not report it."""
    try:
        uuid = gpu_in_use(cuda)
        return {} if uuid is None else {"uuid": uuid, **_gpu_slot(cuda)}
    except (AttributeError, RuntimeError):
        return {}


def _gpu_slot(cuda: Cuda) -> dict[str, str]:
    """Return the PCI address of the GPU in use, as the kernel writes it. Empty if this torch does not report it."""
    of = cuda.get_device_properties(_device_in_use(cuda) or 0)
    domain, bus, device = (getattr(of, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    return {} if None in (domain, bus, device) else {"slot": f"{domain:04x}:{bus:02x}:{device:02x}.0"}


def _gpu_memory(cuda: Cuda) -> dict[str, str | int]:
    """Return the size of the GPU's memory. Empty while the GPU holds no tensor, or if this torch does not report it."""
    try:
        device = _device_in_use(cuda)
        return {} if device is None else {"gpu_memory_bytes": int(cuda.get_device_properties(device).total_memory)}
    except (AttributeError, RuntimeError):
        return {}


def git_revision(start: Path) -> str | None:
    """Return the commit that is checked out around `start`. It is read from git's files; no process is started."""
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


def host_memory_bytes() -> int:
    """Return the memory that this host or container may use before the kernel kills a process, in bytes."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppressed(OSError):
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        return min(installed, int(limit)) if limit.isdecimal() else installed
    return installed


def processor() -> str:
    """Return the name of the processor's model."""
    with suppressed(OSError):
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if match:
            return match.group(1)
    return os.uname().machine
