"""Places of a run's files: on this node, in a directory that hosts share, or behind a URL.

`mounts` recognizes network file systems, `node_local` finds the place on the node, `remote` reads and writes behind a
URL, by `calls` that may never return. A host's files are in `archives` there, and `archived` reads files out of them.
`fetched` makes a local copy of a run behind a URL, with `kept_indexes` of its archives. `ship_notes` states how far a
host's files were shipped. Not here: the agent's shipping itself (`traincope.live.shipping`).
"""
