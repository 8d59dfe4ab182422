"""Runs at the start of every Python under `traincope run`: this directory is first on its PYTHONPATH.

Then it imports the sitecustomize that it hides. If none exists, `site` expects the ImportError. Every Python,
including Python 2, must be able to read this file.
"""

import os
import sys

if sys.version_info >= (3, 11):  # noqa: UP036
    import traincope_watch  # type: ignore[import-not-found]

    traincope_watch.watch()

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [place for place in sys.path if os.path.abspath(place) != here]
sys.modules.pop("sitecustomize", None)
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401
