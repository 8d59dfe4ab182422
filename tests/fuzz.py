"""python -m tests.fuzz: run the property tests with new seeds until SECONDS are over.

`make test` runs them with fixed seeds. Each round draws a seed, prints it, and gives it to hypothesis and to the tests
marked `fuzz`. A failure ends the run with exit code 1 and the command that repeats it: `make fuzz SEED=...`.

    SECONDS     time after which no further round begins; 60 by default
    SEED        run one round, with this seed
"""

import os
import secrets
import subprocess
import sys
import time

from tests.seeds import VARIABLE

COMMAND = ("-m", "pytest", "-q", "-x", "-m", "(hypothesis or fuzz) and not sweep and not timing", "tests")


def main() -> int:
    chosen = os.environ.get("SEED", "")
    ends = time.monotonic() + float(os.environ.get("SECONDS") or 60)
    rounds = 0
    while rounds == 0 or (not chosen and time.monotonic() < ends):
        seed = int(chosen) if chosen else secrets.randbelow(1_000_000_000)
        print(f"seed {seed}", flush=True)
        command = [sys.executable, *COMMAND, f"--hypothesis-seed={seed}"]
        if code := subprocess.run(command, check=False, env={**os.environ, VARIABLE: str(seed)}).returncode:
            print(f"\nFAILED with seed {seed} (pytest exited with {code}). Repeat it: make fuzz SEED={seed}")
            return 1
        rounds += 1
    print(f"{rounds} round{'s' * (rounds > 1)} without a failure")
    return 0


if __name__ == "__main__":
    sys.exit(main())
