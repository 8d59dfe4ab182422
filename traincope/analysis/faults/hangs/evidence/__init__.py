"""Evidence of a stop: what each rank issued, where it stood, who waits for whom, and how long that may take.

`calls` and `flights` read collectives, from records and torch's flight recorder. `standing` adds stacks and states.
Nothing here names a culprit.
"""
