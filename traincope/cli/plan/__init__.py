"""The questions of `traincope plan`, one module each, and their shared arguments.

The formulas are in `traincope.plan`.
"""
