"""Sealing of messages with the job's key: a process without the key cannot forge, repeat or reorder them.

With `cryptography` they are also encrypted, by ChaCha20-Poly1305 (RFC 8439). Without it they are only authenticated, by
HMAC-SHA256, and the channel refuses addresses off loopback.
"""

import hashlib
import hmac
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Protocol

from traincope.errors import ConfigError, ServerError

KEY_BYTES = 32
KEY = re.compile(rf"[0-9a-fA-F]{{{2 * KEY_BYTES}}}")
NONCE_BYTES = 12
DIGEST_BYTES = 32
PURPOSE = b"traincope peers: authenticate without encryption"
OF_A_LAUNCH = b"traincope peers: the launch "
REFUSED = (
    "a message does not have the job's key: its sender has another key, or is of another launch; give all agents of a "
    "job one key, and jobs that share a host different ports (TRAINCOPE_PEER_LISTEN)"
)


class Seal(Protocol):
    """Protection of messages with one key."""

    encrypts: bool

    def seal(self, content: bytes, *, position: bytes) -> bytes:
        """Protect a message. `position`: its direction and number on its connection, which the receiver knows."""
        ...

    def open(self, sealed: bytes, *, position: bytes) -> bytes:
        """Raises ServerError for a message of another key or at another position."""
        ...


class Encryption:
    """Encryption and authentication. A random nonce per message is safe for 2^32 messages of one key."""

    encrypts = True

    def __init__(self, key: bytes) -> None:
        """Raises ImportError without `cryptography`."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        self._cipher = ChaCha20Poly1305(key)
        self._invalid = InvalidTag

    def seal(self, content: bytes, *, position: bytes) -> bytes:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, content, position)

    def open(self, sealed: bytes, *, position: bytes) -> bytes:
        try:
            return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], position)
        except (self._invalid, ValueError) as error:
            raise ServerError(REFUSED) from error


class Authentication:
    """Authentication alone, for two agents of one host."""

    encrypts = False

    def __init__(self, key: bytes) -> None:
        self._key = hmac.digest(key, PURPOSE, hashlib.sha256)

    def seal(self, content: bytes, *, position: bytes) -> bytes:
        return self._digest(content, position) + content

    def open(self, sealed: bytes, *, position: bytes) -> bytes:
        digest, content = sealed[:DIGEST_BYTES], sealed[DIGEST_BYTES:]
        if not hmac.compare_digest(digest, self._digest(content, position)):
            raise ServerError(REFUSED)
        return content

    def _digest(self, content: bytes, position: bytes) -> bytes:
        """All positions have the same length, so no two pairs have the same bytes."""
        return hmac.digest(self._key, position + content, hashlib.sha256)


def make_seal(key: bytes) -> Seal:
    """Encrypt if `cryptography` is installed."""
    try:
        return Encryption(key)
    except ImportError:
        return Authentication(key)


def key_of_launch(key: bytes, *, launch: str | None) -> bytes:
    """Derive the key of one launch from one that several jobs may have: their agents do not accept each other. HMAC is
    a pseudorandom function of its key (RFC 5869, section 3.1 to 3.3). `launch`: None if the ranks do not know it, as
    without a process group. All such jobs with one key accept each other.
    """
    return hmac.digest(key, OF_A_LAUNCH + (launch or "").encode(), hashlib.sha256)


def parse_key(text: str) -> bytes:
    """Decode a key of 64 hexadecimal digits. Raises ConfigError; the message does not contain the text."""
    if not KEY.fullmatch(text.strip()):
        raise ConfigError(
            f"the key of a job's agents must have {2 * KEY_BYTES} hexadecimal digits: openssl rand -hex 32"
        )
    return bytes.fromhex(text.strip())


def read_key(path: Path) -> bytes:
    """Read a key file. Raises ConfigError if others may read the file, or if it holds no key."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(4 * KEY_BYTES)
    except OSError as error:
        raise ConfigError(f"the key file {path} cannot be read: {error.strerror}") from error
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"the key file {path} must be yours and closed to others: chmod 600 {path}")
    return parse_key(content.decode(errors="replace"))
