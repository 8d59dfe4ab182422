"""Messages between agents: encryption, channels, the socket to listen at, and who takes part.

What the messages carry is the business of the rooms above.
"""
