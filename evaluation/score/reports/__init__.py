"""Score of verdicts about programs that are built from public reports: one known fault each, or none."""
