"""Search of layouts, held to searches by hand and by exhaustion."""
