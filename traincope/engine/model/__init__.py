"""The model on one rank: a GPT with grouped-query attention, rotary positions, SwiGLU and optional experts.

`model` is the GPT and `moe` its mixture of experts. `documents` keeps attention inside packed documents.
`initialise` gives the same starting weights in every layout. How ranks divide the model stands in `parallel`.
"""
