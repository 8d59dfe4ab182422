"""A certificate for tests of servers."""

import subprocess
from pathlib import Path

from tests.debian import need


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """Certificate of 127.0.0.1, and its key."""
    files = directory / "tls.crt", directory / "tls.key"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    whose = ("-subj", "/CN=node-3", "-addext", "subjectAltName=IP:127.0.0.1")
    openssl = need("openssl", package="openssl")
    command = (openssl, "req", "-x509", *curve, *whose, "-out", files[0], "-keyout", files[1])
    subprocess.run(command, check=True, capture_output=True, timeout=150)
    return files
