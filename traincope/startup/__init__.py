"""The part of `traincope run` in the processes that it starts: they record themselves with unchanged scripts.

    interpreter/   first on their PYTHONPATH: at every start of Python, wait for torch
    training.py    imported when a process trains: begins the recording, ends it at exit
    notes.py       notes from the processes to the command that started them
    rank_exits.py  the ends of ranks, from these notes

A process trains when it makes its first process group or its first optimizer. Until then the only cost is a check of
the names that it imports.
"""
