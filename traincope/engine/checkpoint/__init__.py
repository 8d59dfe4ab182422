"""Checkpoints of a training: saved in shards, committed whole, checked before they are loaded.

    identity      the settings that a checkpoint shares with the training that loads it
    manifest      the file that makes a checkpoint complete: step, identity, checksums
    places        where checkpoints lie: the folder and the bucket
    tensors       a trainer's state by name
    rank_state    the state of this rank alone: generators, and the errors of its compression
    writer        torch's writer of shards, with checksums and a commit
    cadence       the interval between checkpoints
    checkpoints   saves and restores a trainer

`identity`, `manifest`, and of the places `claim`, `directory`, `bucket` and `tiers` need no torch.
"""
