"""Where checkpoints lie: a folder, which only the latest attempt may change, and a bucket.

claim         the right to change the folder, which only the latest attempt has
directory     the folder of all checkpoints: commit, keep, find
bucket        the second tier, which fsspec reaches
tiers         the checkpoints of both, and whether a training may begin with them
uploads       copies complete checkpoints into the bucket in the background
restoring     brings the files of a checkpoint to the ranks that need them
"""
