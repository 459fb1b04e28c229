"""The one error that users meet: something they gave us cannot be used, with the place and the way out."""


class InputError(ValueError):
    """Bad input, settings or files. Commands print its text without a traceback and exit with status 2."""


def first_line(error: BaseException) -> str:
    """What a library said, in one line; its class where it said nothing."""
    return next((line for line in str(error).strip().splitlines()), type(error).__name__)


def short(value: object, most: int = 60) -> str:
    """A value for an error message, shortened."""
    text = repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."
