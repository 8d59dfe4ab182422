"""Jobs that record nothing of ours: their processes, asked from outside (`traincope hang PID`)."""
