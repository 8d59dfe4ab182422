"""The dashboards. To add one, write a file and add an entry to `BOARDS`."""

from traincope_dashboards.boards.communication import COMMUNICATION
from traincope_dashboards.boards.faults import FAULTS_AND_GOODPUT
from traincope_dashboards.boards.hardware import HARDWARE
from traincope_dashboards.boards.ledger import MFU_LEDGER
from traincope_dashboards.boards.overview import OVERVIEW
from traincope_dashboards.boards.pipeline import PIPELINE
from traincope_dashboards.boards.ranks import RANKS_AND_HOSTS
from traincope_dashboards.boards.recorder import RECORDER

BOARDS = (
    OVERVIEW,
    MFU_LEDGER,
    RANKS_AND_HOSTS,
    COMMUNICATION,
    PIPELINE,
    FAULTS_AND_GOODPUT,
    HARDWARE,
    RECORDER,
)
"""In the order of a typical search: overview first."""
