"""Places in the tree: which agent is whose parent. The agent of rank 0's host, the root, gives them.

The order of arrival decides, so a place does not change when further agents arrive. An agent whose parent does not
answer asks again, and gets the next living one above it.
"""

import threading
from collections.abc import Collection

from traincope.topology import Host

FANOUT = 8
"""Children of an agent: 2,000 hosts make a tree of 4 levels below the root."""
MIN_HOSTS = 5
"""In a job of fewer hosts, each agent keeps copies of all others."""


class Places:
    """Places that the root gave. Any thread may use it."""

    def __init__(self, root: Host) -> None:
        self._lock = threading.Lock()
        self._order: dict[Host, int] = {root: 0}
        self._hosts = [root]

    def parent_of(self, host: Host, *, silent: Collection[Host] = ()) -> Host:
        """Return the parent's host. `silent`: hosts that did not answer the asking one."""
        with self._lock:
            if host not in self._order:
                self._order[host] = len(self._hosts)
                self._hosts.append(host)
            number = self._order[host]
            while number:
                number = (number - 1) // FANOUT
                if self._hosts[number] not in silent:
                    break
            return self._hosts[number]
