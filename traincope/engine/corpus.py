"""Text or token files -> one array of tokens, and the part of it that is never trained on."""

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.engine.config import DataConfig
from traincope.errors import DataError

END_OF_DOCUMENT = 256
"""The token after each file's bytes."""

Tokens = NDArray[np.uint8] | NDArray[np.uint16]

_NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests", "__pycache__"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """All tokens of a training, split once."""

    training: Tokens
    held_out: Tokens
    source: str
    """Where the tokens came from, for messages."""


def read_corpus(config: DataConfig) -> Corpus:
    """Read what `[data]` names. Raises DataError if it is missing, empty or unreadable."""
    source = config.path or sysconfig.get_path("stdlib")
    tokens = _read_tokens(config, path=Path(source))
    cut = len(tokens) - int(len(tokens) * config.held_out)
    return Corpus(training=tokens[:cut], held_out=tokens[cut:], source=source)


def _read_tokens(config: DataConfig, *, path: Path) -> Tokens:
    if not path.exists():
        raise DataError(f"data.path {path} does not exist; name a file, a folder or a .bin token file, or leave it out")
    if config.path is None:
        return _encode(_library_files(path), source=path)
    if path.suffix == ".bin":
        return _map_token_file(path, token_type=np.dtype(config.token_type))
    return _encode(_files(path) if path.is_dir() else [path], source=path)


def _library_files(root: Path) -> list[Path]:
    """Python's own source, without its tests and without what was installed beside it."""
    return [
        path for path in _files(root, pattern="*.py") if not _NOT_LIBRARY.intersection(path.relative_to(root).parts)
    ]


def _files(root: Path, *, pattern: str = "*") -> list[Path]:
    """Files below `root` in an order that depends on their names only."""
    return sorted(
        (path for path in root.rglob(pattern) if path.is_file()), key=lambda path: path.relative_to(root).parts
    )


def _encode(files: list[Path], *, source: Path) -> Tokens:
    parts: list[NDArray[np.uint16]] = []
    separator = np.array([END_OF_DOCUMENT], dtype=np.uint16)
    for path in files:
        parts += [np.frombuffer(_read_bytes(path), dtype=np.uint8).astype(np.uint16), separator]
    if not any(len(part) for part in parts[::2]):
        raise DataError(f"data.path {source} holds no text; name a file or folder that does")
    return np.concatenate(parts)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; fix its permissions or leave it out") from error


def _map_token_file(path: Path, *, token_type: np.dtype[np.generic]) -> Tokens:
    """Nothing is read here: pages come in as batches touch them."""
    size = path.stat().st_size
    if size == 0 or size % token_type.itemsize:
        raise DataError(
            f"{path} has {size} bytes, no whole number of {token_type} tokens; write it with numpy's tofile, or set "
            "data.token_type"
        )
    return np.memmap(path, dtype=token_type, mode="r")
