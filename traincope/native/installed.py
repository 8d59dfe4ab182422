"""The compiled recorder in the user's cache: its name, and whether it fits this Python and this torch.

Its name has all that it depends on: torch's release and build with the sizes of its libraries, the C++ ABI, the
machine, the C library, Python's version, and a hash of the sources. It is in the cache only after a child process has
recorded with it.
"""

import os
import platform
import re
import sys
import sysconfig
import tempfile
from functools import cache
from hashlib import sha256
from pathlib import Path

from traincope.native.cached import BUILD, MARK, Found, cache_directory, check
from traincope.native.library import Library
from traincope.private_files import check_owner, make_directory

SOURCES = Path(__file__).parent / "dispatch"
TORCH_LIBRARIES = ("libc10.so", "libtorch_cpu.so", "libtorch_python.so")
C_LIBRARY = "CS_GNU_LIBC_VERSION"


@cache
def library_name() -> str:
    """Name of the library for this Python, this torch and these sources. Imports torch."""
    import torch

    digest = sha256()
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    build = (torch.version.git_version, torch.version.cuda, torch.version.hip, *_library_sizes())
    c_library = os.confstr(C_LIBRARY) if C_LIBRARY in os.confstr_names else None
    digest.update("\0".join(map(str, (*build, c_library, sys.implementation.cache_tag))).encode())
    abi = "cxx11" if torch.compiled_with_cxx11_abi() else "cxx98"
    release = re.sub(r"[^\w.+]", "_", str(torch.__version__))
    return f"dispatch-torch-{release}-{abi}-{platform.machine()}-{digest.hexdigest()[:16]}.so"


def _library_sizes() -> tuple[int, ...]:
    """Sizes of torch's libraries: other builds of the same release mostly differ in them. Empty if not there."""
    import torch

    place = Path(torch.__file__).parent / "lib"
    try:
        return tuple((place / name).stat().st_size for name in TORCH_LIBRARIES)
    except OSError:
        return ()


def why_unfit() -> list[str]:
    """Return why the native recorder cannot record with this Python and this torch. Imports torch."""
    import torch

    reasons = []
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        reasons.append("this Python has no global lock")
    if not torch.distributed.is_available():
        reasons.append("this torch is built without torch.distributed")
    if any(getattr(torch.version, device, None) is not None for device in ("cuda", "hip", "xpu")):
        reasons.append("this torch is built for GPUs, and the native recorder is for trainings on CPUs so far")
    if not _library_sizes():
        reasons.append("this torch has its libraries in another place than its package")
    return reasons


def find_library() -> Found:
    """Search the user's cache. Imports torch."""
    problems = why_unfit()
    if problems:
        return Found(path=None, why=problems[0])
    path = cache_directory() / library_name()
    try:
        check(path)
    except FileNotFoundError:
        return Found(path=None, why=f"it is not built for this torch ({BUILD})")
    except OSError as error:
        return Found(path=None, why=f"{path} is not used: {error.strerror}")
    return Found(path=path, why=str(path))


def publish(built: Path, directory: Path | None = None, *, name: str | None = None) -> Path:
    """Put a compiled library into a directory, whole or not at all, whoever else does so at the same time.

    `directory`: the user's cache, unless given. `name`: that of the native recorder, unless given. Raises OSError.
    """
    directory = cache_directory() if directory is None else directory
    make_directory(directory, exist_ok=True)
    check_owner(directory)
    content, path = built.read_bytes(), directory / (name or library_name())
    descriptor, temporary = tempfile.mkstemp(prefix=".", dir=directory)
    try:
        with open(descriptor, "wb") as file:
            file.write(content + MARK + sha256(content).hexdigest().encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
    check(path)
    return path


@cache
def load(path: Path) -> Library:
    """Load a library, once per process. Raises OSError or AttributeError."""
    return Library(path)
