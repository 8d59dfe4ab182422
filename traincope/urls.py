"""Whether a text that a person typed is the URL of a server."""

from urllib.parse import urlsplit


def is_url(text: str) -> bool:
    """By HTTP or HTTPS, of some host; where it names a port, of one that there is."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bracket that is not closed, a port that is none
        return False
