"""Plans of other frameworks as `TrainingPlan`. They are read, never changed, and need no package of theirs."""
