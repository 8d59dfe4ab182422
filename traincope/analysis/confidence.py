"""Confidence of findings and faults: three levels."""

HIGH = "high"
"""Two independent kinds of evidence agree."""
MEDIUM = "medium"
"""One kind of evidence."""
UNKNOWN = "unknown"
"""The evidence is not sufficient."""
