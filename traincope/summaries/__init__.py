"""Verdict of a run of very many ranks, from a summary of each rank instead of its records.

A summary has the newest ledger rows of the rank, which the agent of its node wrote, and its last records. Reading one
costs about a millisecond, however long the run was. `executor` is any `concurrent.futures.Executor`: threads, processes
of this machine, or those of a Dask cluster.

`rank.py` reads one rank, `reading.py` all of them. `stopped.py` and `slow.py` find culprits, and `job.py` joins the
results.
"""

from traincope.summaries.job import JobSummary, job_summary
from traincope.summaries.rank import RankSummary
from traincope.summaries.reading import Summaries, read_summaries

__all__ = ["JobSummary", "RankSummary", "Summaries", "job_summary", "read_summaries"]
