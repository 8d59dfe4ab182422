"""The site's file: defaults of a cluster for all of its users' runs, in TOML."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traincope.errors import ConfigError

SITE_FILE = Path("/etc/traincope.toml")
SITE_FILE_VARIABLE = "TRAINCOPE_SITE_FILE"
"""Environment variable: another file; empty for none."""


def site_file(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The file that applies, whether it exists or not; None if the variable is empty."""
    given = environment.get(SITE_FILE_VARIABLE)
    return SITE_FILE if given is None else Path(given) if given else None


def read_site_file(path: Path | None) -> dict[str, Any]:
    """Its values; empty if there is no file. Raises ConfigError, one sentence, if it cannot be read."""
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(
            f"the site's file {path} cannot be read: {error.strerror}; no default of it applies"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the site's file {path} is not TOML: {error}; no default of it applies") from error
