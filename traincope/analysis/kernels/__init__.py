"""Kernels: results from kernel traces: time by class, products against peak, overlap, and the partition of GPU time.

Reading trace files is in `traincope.ingest` and `traincope.store`.
"""
