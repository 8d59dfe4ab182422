"""Why waiting for others cannot be told from the transfer itself: then all of a stall counts as transfer."""

from enum import StrEnum

import numpy as np

from traincope.analysis.host import Ints
from traincope.timeline import Instances


class Unsplit(StrEnum):
    """The value is what JSON says."""

    RECORDS_MISSING = "records_missing"
    NEVER_WAITED_FOR = "never_waited_for"
    CLOCKS = "clocks"
    NOT_REPLAYED = "not_replayed"
    """Of the pipeline's own sends and receives: its idle time is told apart by replays alone."""


WHY = {
    Unsplit.RECORDS_MISSING: "records of their peers are missing",
    Unsplit.NEVER_WAITED_FOR: "a peer never waited for its part, so nobody knows when that was done",
    Unsplit.CLOCKS: "the clocks of their hosts are not known well enough",
    Unsplit.NOT_REPLAYED: "some stage has no actions recorded in these steps",
}
CAUSES = tuple(Unsplit)
"""What codes count."""
SPLIT = -1
"""Code of what can be split."""


def code(cause: Unsplit) -> int:
    return CAUSES.index(cause)


def causes(instances: Instances) -> Ints:
    """For each instance the code of what keeps it from being split; one more, for stalls of no known instance."""
    incomplete = np.where(instances.left_open, code(Unsplit.NEVER_WAITED_FOR), code(Unsplit.RECORDS_MISSING))
    found = np.where(instances.complete, code(Unsplit.CLOCKS), incomplete)
    return np.append(np.where(instances.splits, SPLIT, found), code(Unsplit.RECORDS_MISSING))
