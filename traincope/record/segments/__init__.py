"""The files of one rank: memory-mapped segments of events, and the side files of names, details and groups.

Writing only. Reading is in `traincope.store`; the layout of a record is in `traincope.events`.
"""
