"""Output of the agent: live exporters, target files, the live page, and export and tiles at the end of the job.

`observers` lists what receives the windows, `exporters` is the protocol for third parties. Not here: formats and
servers, which are in the exporters.
"""
