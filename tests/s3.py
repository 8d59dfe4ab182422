"""A real S3 server on loopback: moto's, in a process of its own, so that a test can stop it like a slow network."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

import fsspec

BUCKET = "traincope-test"
SERVER = "from moto.server import main; main(['--host', '127.0.0.1', '--port', '0'])"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class S3:
    process: "subprocess.Popen[bytes]"
    endpoint: str

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables by which the AWS libraries find the server."""
        return {**KEYS, "AWS_ENDPOINT_URL": self.endpoint}


@contextmanager
def s3_server() -> Iterator[S3]:
    """Serve S3 with one bucket."""
    with NamedTemporaryFile("r") as log, subprocess.Popen([sys.executable, "-c", SERVER], stderr=log) as process:
        try:
            while (found := re.search(r"Running on (http://[\d.:]+)", Path(log.name).read_text())) is None:
                assert process.poll() is None, Path(log.name).read_text()
                time.sleep(0.05)
            server = S3(process=process, endpoint=found[1])
            files(server).mkdir(BUCKET)
            yield server
        finally:
            process.kill()


def files(server: S3) -> "fsspec.AbstractFileSystem":
    """Content of the bucket."""
    return fsspec.filesystem(
        "s3",
        endpoint_url=server.endpoint,
        key=KEYS["AWS_ACCESS_KEY_ID"],
        secret=KEYS["AWS_SECRET_ACCESS_KEY"],
        use_listings_cache=False,
        skip_instance_cache=True,
    )
