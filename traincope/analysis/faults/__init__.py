"""The stream of faults and marks: what happened to a run, by time.

`endings` decides how each rank ended and which rank ended first. `logged_values`, `slowness`, `hardware` and `marks`
each find one kind; `stream` orders them all. `memory`
finds growth. Losses of time are in `verdict`.
"""
