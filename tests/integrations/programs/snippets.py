"""The code blocks of docs/start/integrations.md by their heading."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "start" / "integrations.md"


def snippet(heading: str) -> str:
    """Code block below a heading of the page."""
    _, _, rest = PAGE.read_text().partition(f"\n## {heading}\n")
    block = re.search(r"```python\n(.*?)```", rest.partition("\n## ")[0], re.DOTALL)
    assert block is not None, heading
    return block[1]
