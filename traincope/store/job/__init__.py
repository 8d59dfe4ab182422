"""Files about a job as a whole: manifests of run and ranks, processes, launcher notes, attempts, evaluation intervals.

Records of events are in `segments`; faults and goodput are derived in `traincope.analysis`.
"""
