"""Checks of URLs in settings, which are logged and recorded."""

from urllib.parse import urlsplit

from core.errors import InputError


def check_url(setting: str, url: str, credentials: str, ends_with: str = "") -> None:
    """Check that a setting is an HTTP URL without credentials, whose path ends with `ends_with`.

    Raises:
        InputError: the URL cannot be used; the message does not repeat credentials, and names the environment
            variables to use for them, `credentials`.
    """
    try:
        address = urlsplit(url)
        secret = address.username or address.password or address.query
        _ = secret or address.port  # raises if the port is not a number
    except ValueError as error:
        raise InputError(f"`{setting}` is not a URL, got {url!r} ({error}).") from error
    if secret:
        raise InputError(
            f"`{setting}` contains credentials or a query (`?...`); remove them and set {credentials} in the "
            "environment."
        )
    path = address.path.rstrip("/")
    if address.scheme not in ("http", "https") or not address.hostname or not path.endswith(ends_with):
        raise InputError(f"`{setting}` must have the form https://HOST:PORT{ends_with}, got {url!r}.")
