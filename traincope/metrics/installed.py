"""Names of the installed exporters of running jobs. A checkout that is not installed has none of its own.

Python finds entry points in the metadata that an installation writes.
"""

import sys
from importlib.metadata import entry_points

LIVE_GROUP = "traincope.live_exporters"
SCRAPED = "prometheus"
"""Name of the exporter whose URL is written to the target file. Each installation of traincope has it."""
NO_EXPORTERS = "traincope is not installed in this Python, so it serves and sends no metrics of a running job itself"
INSTALL = (
    f"install it: {sys.executable} -m pip install traincope; or from its checkout: {sys.executable} -m pip install -e ."
)


def installed_exporters() -> tuple[str, ...]:
    return tuple(sorted({point.name for point in entry_points(group=LIVE_GROUP)}))
