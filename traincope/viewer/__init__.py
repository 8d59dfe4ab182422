"""A run in the browser; the only place of dash.

The address holds what is looked at (`view`), so that a view can be sent and the browser's own "back"
works. `library` holds the runs: their tiles are mapped from disk, and what reads all of a run does so in
a child process (`preparing`), so that the server stays small and answers meanwhile. `app` is the frame,
`pages` has one file a page and a registry, `serving` is the server on the loopback device.
"""
