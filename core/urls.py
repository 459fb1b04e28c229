"""Checks of addresses in settings, which are logged and recorded."""

from urllib.parse import urlsplit

from core.errors import InputError


def check_url(setting: str, url: str, credentials: str, ends_with: str = "") -> None:
    """Refuse a value that is not an HTTP address, or that has credentials in it.

    Args:
        setting: the setting that holds the address, for the message.
        url: the address.
        credentials: variables of the environment that credentials belong in, for the message.
        ends_with: how its path must end.

    Raises:
        InputError: the address cannot be used; credentials are not repeated.
    """
    try:
        address = urlsplit(url)
        secret = address.username or address.password or address.query
        _ = secret or address.port  # raises where the port is not a number
    except ValueError as error:
        raise InputError(f"`{setting}` is not a URL, got {url!r} ({error}).") from error
    if secret:
        raise InputError(
            f"`{setting}` holds credentials or a query (`?...`); take them out and set {credentials} in the "
            "environment."
        )
    path = address.path.rstrip("/")
    if address.scheme not in ("http", "https") or not address.hostname or not path.endswith(ends_with):
        raise InputError(f"`{setting}` must read https://HOST:PORT{ends_with}, got {url!r}.")
