"""Options of the commands that serve pages."""

import argparse
from pathlib import Path

from traincope.access import Access, read_users


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Add port, address, and what an address that other machines reach needs."""
    parser.add_argument("--port", type=int, metavar="N", help="port (default: the first free one from 8050 on)")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on (default: 127.0.0.1, reachable only from this machine); any other one needs the "
        "following three",
    )
    parser.add_argument("--certificate", type=Path, metavar="FILE", help="PEM file, for HTTPS")
    parser.add_argument("--key", type=Path, metavar="FILE", help="PEM file with the certificate's private key")
    parser.add_argument("--password-file", type=Path, metavar="FILE", help="file with lines user:password")


def access_of(arguments: argparse.Namespace) -> Access:
    """The access that the options give. Raises ConfigError for an unusable password file."""
    users = None if arguments.password_file is None else read_users(arguments.password_file)
    return Access(certificate=arguments.certificate, key=arguments.key, users=users)
