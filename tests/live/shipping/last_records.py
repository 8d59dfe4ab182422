"""`python -m tests.live.shipping.last_records RUN`: the steps and the last instant of each rank of a run, as JSON."""

import json
import sys

from traincope.events import OPEN, Kind
from traincope.store import read_run
from traincope.store.segments.segments import last_instant_ns


def main(place: str) -> None:
    run = read_run(place)
    ranks = {}
    for rank in run.ranks:
        main = rank.thread("main")
        steps = main[(main["kind"] == Kind.STEP) & (main["end_ns"] != OPEN)]
        last_ns = max(last_instant_ns(rank.thread(thread)) for thread in rank.threads)
        ranks[rank.rank] = {"steps": steps["step"].tolist(), "last_ns": last_ns}
    json.dump({"ranks": ranks, "missing": run.missing, "problems": run.problems}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
