"""The run directory: its layout, its crash-safe segments, and reading it back.

    RUN/
      run.json                     the run: id, world size, mesh, versions, start (replaced as a whole on each change)
      logbook.csv                  the list of interruptions that the run was imported from (`logbook.py`)
      requests.jsonl               windows that a person or an anomaly requested, one per line (`job/requests.py`)
      launcher.jsonl               ranks that did not end well, as `traincope train` or `run` saw them
      attempt-000/                 one launch of the job; a restart adds the next
        operations.npz             the table of operations that the run was imported from (`side_tables/operations.py`)
        hangs.jsonl                settled answers of the agents about hangs (`job/hang_notices.py`)
        rank-00000/
          rank.json                host, process, mesh coordinate, clock; replaced as a whole, last at a clean end
          names.jsonl              interned strings, one per line: [number, "name"]
          groups.jsonl             process groups, one per line: [number, {key, axis, rule, ranks}]
          details.jsonl            details of events, one per line: [number, {...}]
          trace-000.npz            an imported kernel trace, as columns (`side_tables/traces.py`)
          kernels-step-00000010.json   at level 3 the kernel trace of a step, as torch's profiler wrote it
          main-00000.seg           records of the training thread, oldest segment first
          thread-1-00000.seg       records of the first other thread that recorded events
          main-00000.parquet       the same as main-00000.seg, compacted by the node's agent after it was full
          state-checks.jsonl       checksums of parameters and optimizer state (`job/state_checks.py`)
          rows.jsonl               ledger rows, one per finished step, by the agent (`side_tables/rows.py`)
          rows-old.jsonl.gz        older rows (`side_tables/row_thinning.py`)
          standing.json            MFU and goodput as of the last minute, by the agent (`live/serve/standing.py`)
          looks.jsonl              what the agent saw of the process while the job stood still (`job/looks.py`)
          flight.json              torch's flight recorder, as it was then (`job/flight.py`)
          agent.log                the log of the agent, in the directory of the rank that started it
        peer-HOST.json             where a running agent listens for those of other hosts (`traincope.live.peers`)
        witness/HOST/              last records of another host's ranks, and when it was last heard (`job/witness.py`)
      tiles/                       tiles of the finished run for the viewer, by the last agent (`traincope.tiles`)

Everything except the ending in `rank.json` is on disk (or in the page cache) as soon as it happens. Clocks are not
aligned here: `traincope.timeline` does that.
"""

from traincope.store.job.attempts import Attempt
from traincope.store.job.batches import RankBatches
from traincope.store.job.launcher import LauncherNote
from traincope.store.job.looks import Look
from traincope.store.logbook import Logbook
from traincope.store.reading import RankRecords, RunRecords, read_run
from traincope.store.segments.segments import RECORD_DTYPE, SegmentRecords

__all__ = [
    "RECORD_DTYPE",
    "Attempt",
    "LauncherNote",
    "Logbook",
    "Look",
    "RankBatches",
    "RankRecords",
    "RunRecords",
    "SegmentRecords",
    "read_run",
]
