"""A worker that ends as its command line says: `RANK exit CODE` or `RANK kill`. The other ranks run without end."""

import os
import signal
import sys

if __name__ == "__main__":
    rank, ending, *code = sys.argv[1:]
    if os.environ["RANK"] != rank:
        signal.pause()
    if ending == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(code[0]))
