"""A worker that ends as its command line says: `RANK exit CODE` or `RANK kill`; the others go on for ever."""

import os
import signal
import sys

if __name__ == "__main__":
    rank, way, *code = sys.argv[1:]
    if os.environ["RANK"] != rank:
        signal.pause()
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(code[0]))
