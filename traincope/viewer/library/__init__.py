"""The open runs: reading each in a child process, its tiles, and the cache of its analysis.

Pages and the server are outside.
"""
