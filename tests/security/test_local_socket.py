"""Who may ask a rank for its stacks."""

import os
import socket

from traincope.record.process.flight import CREDENTIALS, _is_allowed


def test_only_the_user_and_root_may_ask_a_rank() -> None:
    """The kernel itself states the sender's user."""
    asking, answering = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with asking, answering:
        answering.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        asking.send(b"?")
        _, ancillary, *_ = answering.recvmsg(1, socket.CMSG_SPACE(CREDENTIALS.size))
    assert _is_allowed(ancillary)

    def of_user(uid: int) -> list[tuple[int, int, bytes]]:
        return [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, CREDENTIALS.pack(7, uid, 7))]

    assert _is_allowed(of_user(0))
    assert _is_allowed(of_user(os.getuid()))
    assert not _is_allowed(of_user(os.getuid() + 12_345))
    assert not _is_allowed([])
