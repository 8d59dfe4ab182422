"""What the callbacks share about a training: its run, trackers, tokens and FLOPs."""
