"""Results -> plotly figures; the only place of plotly, and each figure one file.

A figure is a pure function of frozen results. It has no title (its page does) and no colours of paper or
letters: `templates` holds those, light and dark, so that one figure serves both. Names of a run enter it
through `labels` alone. What the figures share lies in `canvas` (the frame), `folding` (thousands of ranks
or steps on a screen) and `scales` (of heat maps); colours of terms are those of `traincope.palette`.
"""

import importlib.util

from traincope.errors import MissingDependencyError

if importlib.util.find_spec("plotly") is None:
    raise MissingDependencyError("figures are drawn with plotly, which is not installed: pip install 'traincope[view]'")
