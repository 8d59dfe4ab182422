"""A check of URLs that people type."""

from urllib.parse import urlsplit


def is_url(text: str) -> bool:
    """True if `text` is an HTTP or HTTPS URL with a host and, if it has a port, a valid port."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an unclosed bracket, an invalid port
        return False
