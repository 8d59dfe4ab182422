"""Indexes of a run's newest archives, kept in the copy of the run: an archive never changes, so each is read once.

One file per archive: a checksum, and the index as it is stored in the archive.
"""

from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from traincope.private_files import make_directory
from traincope.store.places.archives import archive_name, newest_archives
from traincope.store.places.remote import RemoteFile
from traincope.whole_files import write_whole

DIRECTORY = ".indexes"
CHECKSUM_BYTES = 16


def read_kept(copy: Path, listed: Mapping[str, RemoteFile]) -> dict[str, bytes]:
    """Name of an archive -> its index, of the newest archives among the `listed` files, as far as the copy has them."""
    found = {}
    for name, path in _paths(copy, listed).items():
        with suppress(OSError):
            content = path.read_bytes()
            if content[:CHECKSUM_BYTES] == _checksum(content[CHECKSUM_BYTES:]):
                found[name] = content[CHECKSUM_BYTES:]
    return found


def keep(copy: Path, listed: Mapping[str, RemoteFile], indexes: Mapping[str, bytes]) -> None:
    """Keep these indexes, and none of an older archive. Raises OSError."""
    paths = {name: path for name, path in _paths(copy, listed).items() if name in indexes}
    if not paths:
        return
    make_directory(copy / DIRECTORY, exist_ok=True)
    present = set((copy / DIRECTORY).iterdir())
    for stale in present.difference(paths.values()):
        stale.unlink(missing_ok=True)
    for name, path in paths.items():
        if path not in present:
            write_whole(path, _checksum(indexes[name]) + indexes[name])


def _paths(copy: Path, listed: Mapping[str, RemoteFile]) -> dict[str, Path]:
    """Name of each newest archive -> where its index is kept. Another version of the archive has another place."""
    names = [archive_name(folder, number) for folder, number in newest_archives(listed).items()]
    keys = {name: f"{name} {listed[name].version}".encode(errors="surrogatepass") for name in names}
    return {name: copy / DIRECTORY / _checksum(key).hex() for name, key in keys.items()}


def _checksum(content: bytes) -> bytes:
    return blake2b(content, digest_size=CHECKSUM_BYTES).digest()
