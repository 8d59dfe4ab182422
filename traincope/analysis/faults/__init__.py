"""The stream of faults and marks: what happened to a run, by time.

`endings` decides how each rank ended and which rank ended first, `hangs` who stood still, `lost_hosts` which host
stopped answering. `anomalies` are found in the records. `stream` orders them all. Losses of time are in `verdict`.
"""
