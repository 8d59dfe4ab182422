"""Names of the installed exporters of running jobs. A checkout that is not installed has none.

Python finds entry points in the metadata that an installation writes.
"""

import sys
from importlib.metadata import entry_points

LIVE_GROUP = "traincope.live_exporters"
NO_EXPORTERS = "traincope is not installed in this Python, so no metrics of a running job are served or sent"
INSTALL = f"install it with {sys.executable} -m pip install traincope; in its checkout, -e ."


def installed_exporters() -> tuple[str, ...]:
    return tuple(sorted({point.name for point in entry_points(group=LIVE_GROUP)}))
