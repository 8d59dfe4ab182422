"""Rules of a plan, each with a plan that breaks it and one that keeps it."""
