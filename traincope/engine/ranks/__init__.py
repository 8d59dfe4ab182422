"""The ranks of a training: their process group (`bootstrap`), their mesh, and their peak speed.

`torch_private` holds every private name of torch that the engine uses. Nothing here knows the model.
"""
