"""Collectives: matching of each collective across its ranks into instances, with their transfer times.

Wait, stalls and bandwidth are computed from the instances in `traincope.analysis`.
"""
