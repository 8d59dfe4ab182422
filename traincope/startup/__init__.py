"""`traincope run`, on the side of the processes it watches: they record themselves, their scripts unchanged.

    interpreter/   first on their PYTHONPATH: at every start of Python, wait for torch
    training.py    imported once a process trains: begins the recording, ends it at exit
    notes.py       what the processes tell the command that started them

Whether a process trains is known when its first process group is made, or its first optimizer.
Until then it has paid for a look at the names it imports, and nothing else.
"""
