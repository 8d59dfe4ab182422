"""Shipping: the agent copies its host's files to the run directory that users know, or behind a URL.

`selecting` lists the files of a host in the order in which they must arrive, `journal` remembers what arrived,
`targets` writes to a directory, `archiving` behind a URL, where `folding` keeps the objects few. `limits` bounds the
rates, `shipper` does one round, `loop` repeats it, `exchange` keeps files equal that several hosts write, and
`destinations` finds out where to ship. Not here: notes and copies (`store.places`).
"""
