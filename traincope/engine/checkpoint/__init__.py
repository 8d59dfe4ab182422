"""Checkpoints of a training: saved in shards, committed whole, checked before they are loaded.

    identity      the settings that a checkpoint shares with the training that loads it
    manifest      the file that makes a checkpoint complete: step, identity, checksums
    claim         the right to change the folder, which only the latest attempt has
    directory     the folder of all checkpoints: commit, keep, find
    tensors       a trainer's state by name
    rank_state    the state of this rank alone: generators, and the errors of its compression
    writer        torch's writer of shards, with checksums and a commit
    checkpoints   saves and restores a trainer

`identity`, `manifest`, `claim` and `directory` need no torch.
"""
