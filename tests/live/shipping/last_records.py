"""`python -m tests.live.shipping.last_records RUN`: of each rank of a run the steps, the last instant, and the records
per second of its last 10 s, as JSON.
"""

import json
import sys

from traincope.events import OPEN, Kind
from traincope.store import read_run
from traincope.store.segments.segments import last_instant_ns

RECENT_S = 10


def main(place: str) -> None:
    run = read_run(place)
    ranks = {}
    for rank in run.ranks:
        main = rank.thread("main")
        steps = main[(main["kind"] == Kind.STEP) & (main["end_ns"] != OPEN)]
        last_ns = max(last_instant_ns(rank.thread(thread)) for thread in rank.threads)
        recent = int((main["start_ns"] > last_ns - RECENT_S * 1_000_000_000).sum())
        ranks[rank.rank] = {"steps": steps["step"].tolist(), "last_ns": last_ns, "per_second": recent / RECENT_S}
    json.dump({"ranks": ranks, "missing": run.missing, "problems": run.problems}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
