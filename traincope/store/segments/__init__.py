"""File format of segments: creating, mapping and reading them, and their compacted form in Parquet.

Filling a segment with events is in `traincope.record.segments`.

What the records mean is in `traincope.timeline`; which of them the disk budget keeps is in `traincope.live`.
"""
