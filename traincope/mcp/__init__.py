"""Recorded runs for AI assistants, by the Model Context Protocol over standard input and output.

`server` declares the tools, `tools` answers them from `runs`, and `bounded` keeps an answer short. All of it only
reads. Texts of a run are data of the answers: no description of a tool contains one.
"""
