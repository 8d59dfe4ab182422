"""A free port for a server that starts later."""

import random
import socket
from contextlib import suppress

BELOW_CONNECTIONS = range(20_000, 32_000)
"""Ports from which Linux takes none for outgoing connections (ip_local_port_range): only a server can take one."""


def free_port() -> int:
    """Return a port that no server listens on, most likely also not in the next seconds."""
    while True:
        port = random.SystemRandom().choice(BELOW_CONNECTIONS)
        with suppress(OSError), socket.create_server(("", port)):
            return port
