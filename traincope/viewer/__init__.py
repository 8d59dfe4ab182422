"""Runs in the browser; the only package that uses dash.

The address holds the current view (`view`), so a view can be sent and the browser's "back" works. `library` holds
the runs: it maps their tiles from disk. A child process (`preparing`) reads whole runs, so the server stays small and
responsive. `app` is the frame, `pages` has one file per page and a registry, `serving` is the server on the loopback
device.
"""
