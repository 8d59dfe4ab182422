"""Cost of the viewer's first page of a large run: `python -m benchmarks.scale.first_page RUN`.

Starts `traincope view` with an empty cache and opens it in Debian's Chromium. Prints as JSON: seconds from the start of
the command until the page stands on rows, CPU seconds of the viewer and its child processes, and the peak of the
largest of them in KiB.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

from playwright.sync_api import sync_playwright

from tests.browser.browser import ARGUMENTS

PATIENCE_MS = 3_600_000
READY = "#read-events"
"""The link that offers to read the events; it is on a page that stands on rows."""


def main() -> None:
    """Open the page once."""
    command = [sys.executable, "-m", "traincope.cli.main", "view", sys.argv[1], "--no-browser"]
    with tempfile.TemporaryDirectory() as cache, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=list(ARGUMENTS))
        start = time.perf_counter()
        viewer = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "XDG_CACHE_HOME": cache}
        )
        assert viewer.stdout is not None
        page = browser.new_page()
        page.goto(viewer.stdout.readline().split()[0])
        page.wait_for_selector(READY, timeout=PATIENCE_MS)
        wall_s = time.perf_counter() - start
        viewer.terminate()
        _, _, usage = os.wait4(viewer.pid, 0)
        viewer.returncode = 0
    print(json.dumps([wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss]))


if __name__ == "__main__":
    main()
