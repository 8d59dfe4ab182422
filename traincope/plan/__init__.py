"""Pure arithmetic on layouts: what theory says a run should do. No torch, no files."""
