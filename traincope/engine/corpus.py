"""Read text or token files into one array of tokens, and hold a part of it out of training."""

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.engine.config import DataConfig
from traincope.errors import DataError

END_OF_DOCUMENT = 256
"""Token that follows each file's bytes."""

DIGEST_BYTES, DIGEST_PIECES = 64 << 20, 1024
"""Most bytes of a text that its digest covers, and the number of pieces in which it does."""

Tokens = NDArray[np.uint8] | NDArray[np.uint16]

_NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests", "__pycache__"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """All tokens of a training, split into training and held-out text."""

    training: Tokens
    held_out: Tokens
    source: str
    """Origin of the tokens, used in messages."""

    def digest(self) -> str:
        """SHA-256 of at most 64 MiB of the training tokens, in pieces at even distances: a check, not a proof."""
        tokens = self.training
        size = DIGEST_BYTES // DIGEST_PIECES // tokens.itemsize
        distance = max(size, -(-len(tokens) // DIGEST_PIECES))
        digest = hashlib.sha256(f"{tokens.dtype} {len(tokens)}".encode())
        for start in range(0, len(tokens), distance):
            digest.update(np.ascontiguousarray(tokens[start : start + size]).data)
        return digest.hexdigest()


def read_corpus(config: DataConfig) -> Corpus:
    """Read the text of `[data]`. Raises DataError if it is missing, empty or unreadable."""
    path = _source(config)
    if _is_token_file(config):
        tokens: Tokens = _map_token_file(path, token_type=np.dtype(config.token_type))
    else:
        tokens = _encode(_text_files(config, path), source=path)
    cut = len(tokens) - _num_held_out(len(tokens), config)
    return Corpus(training=tokens[:cut], held_out=tokens[cut:], source=str(path))


def check_corpus(config: DataConfig, *, sequence: int) -> None:
    """Check the text from file sizes alone.

    Raises the DataError that `read_corpus` and then `require_sequence` would raise.
    """
    path = _source(config)
    if _is_token_file(config):
        tokens = _num_in_token_file(path, token_type=np.dtype(config.token_type))
    else:
        files = _text_files(config, path)
        sizes = [_num_bytes(file) for file in files]
        _require_text(any(sizes), source=path)
        tokens = sum(sizes) + len(files)
    held_out = _num_held_out(tokens, config)
    require_sequence(tokens - held_out, length=sequence, source=str(path))
    require_sequence(held_out, length=sequence, source=held_out_part(str(path)))


def require_sequence(tokens: int, *, length: int, source: str) -> None:
    """Raise DataError unless there are `length` tokens and one more."""
    if tokens <= length:
        raise DataError(
            f"{source} has {tokens} tokens, too few for one sequence of {length}; "
            "give more text, or a smaller model.sequence"
        )


def held_out_part(source: str) -> str:
    """Name of the held-out part in messages."""
    return f"the held-out part of {source}"


def _num_held_out(tokens: int, config: DataConfig) -> int:
    return int(tokens * config.held_out)


def _source(config: DataConfig) -> Path:
    path = Path(config.path or sysconfig.get_path("stdlib"))
    if not path.exists():
        raise DataError(f"data.path {path} does not exist; name a file, a folder or a .bin token file, or leave it out")
    if not path.is_file() and (not path.is_dir() or _is_token_file(config)):
        raise DataError(
            f"data.path {path} is neither a file or folder of text nor a .bin token file; name one of these"
        )
    return path


def _is_token_file(config: DataConfig) -> bool:
    return config.path is not None and Path(config.path).suffix == ".bin"


def _text_files(config: DataConfig, path: Path) -> list[Path]:
    if config.path is None:
        return _library_files(path)
    return _files(path) if path.is_dir() else [path]


def _library_files(root: Path) -> list[Path]:
    """Files of Python's standard library, without its tests and without installed packages."""
    return [
        path for path in _files(root, pattern="*.py") if not _NOT_LIBRARY.intersection(path.relative_to(root).parts)
    ]


def _files(root: Path, *, pattern: str = "*") -> list[Path]:
    """Files below `root`, in an order that depends only on their names."""
    return sorted(
        (path for path in root.rglob(pattern) if path.is_file()), key=lambda path: path.relative_to(root).parts
    )


def _encode(files: list[Path], *, source: Path) -> Tokens:
    parts: list[NDArray[np.uint16]] = []
    separator = np.array([END_OF_DOCUMENT], dtype=np.uint16)
    for path in files:
        parts += [np.frombuffer(_read_bytes(path), dtype=np.uint8).astype(np.uint16), separator]
    _require_text(any(len(part) for part in parts[::2]), source=source)
    return np.concatenate(parts)


def _require_text(has_text: bool, *, source: Path) -> None:
    if not has_text:
        raise DataError(f"data.path {source} contains no text; name a file or folder with text")


def _read_bytes(path: Path) -> bytes:
    with _readable(path):
        return path.read_bytes()


def _num_bytes(path: Path) -> int:
    """Size of a file that can be opened."""
    with _readable(path), path.open("rb") as file:
        return os.fstat(file.fileno()).st_size


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; fix its permissions or leave it out") from error


def _map_token_file(path: Path, *, token_type: np.dtype[np.generic]) -> Tokens:
    """Map a token file. Nothing is read here: pages are loaded as batches touch them."""
    _num_in_token_file(path, token_type=token_type)
    return np.memmap(path, dtype=token_type, mode="r")


def _num_in_token_file(path: Path, *, token_type: np.dtype[np.generic]) -> int:
    size = _num_bytes(path)
    if size == 0 or size % token_type.itemsize:
        raise DataError(
            f"{path} has {size} bytes, which is not a whole number of {token_type} tokens; write it with numpy's "
            "tofile, or set data.token_type"
        )
    return size // token_type.itemsize
