"""The run directory: crash-safe segments while a run is going on, and how they are read back.

    RUN/
      run.json                     what ran: id, world size, mesh, versions, start (replaced whole as more is known)
      launcher.jsonl               how ranks ended that did not end well, as `traincope train` or `run` saw it
      attempt-000/                 one launch of the job; a restart adds the next
        rank-00000/
          rank.json                host, process, mesh coordinate, clock; replaced whole, last at a clean end
          names.jsonl              interned strings, a line each: [number, "name"]
          groups.jsonl             process groups, a line each: [number, {key, axis, rule, ranks}]
          details.jsonl            what events carry, a line each: [number, {...}]
          trace-000.npz            a kernel trace that was imported, as columns (`traces.py`)
          kernels-step-00000010.json   at level 3 the kernel trace of a step, as torch's profiler wrote it
          main-00000.seg           records of the training thread, oldest segment first
          thread-1-00000.seg       records of the first other thread that wrote some
          main-00000.parquet       the same as main-00000.seg, compacted by the node's agent once it was full
          rows.jsonl               its ledger rows, a finished step a line, by the node's agent (`rows.py`)
          agent.log                what that agent had to say, with the rank that started it
      tiles/                       the finished run cut up for a viewer, by the last agent (`tiles.py`)

Everything but `rank.json`'s ending is on disk (or in the page cache) the moment it happens.
"""

from traincope.store.attempts import Attempt
from traincope.store.launcher import LauncherNote
from traincope.store.reading import RankRecords, RunRecords, read_run
from traincope.store.segments import RECORD_DTYPE, SegmentRecords

__all__ = ["RECORD_DTYPE", "Attempt", "LauncherNote", "RankRecords", "RunRecords", "SegmentRecords", "read_run"]
