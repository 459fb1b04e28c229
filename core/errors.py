"""The one error that users meet: something they gave us cannot be used, with the place and the way out."""


class InputError(ValueError):
    """Bad input, settings or files. Commands print its text without a traceback and exit with status 2."""


def first_line(error: BaseException) -> str:
    """What a library said, in one line, and in two where the first only leads up to it; its class where it said
    nothing."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def short(value: object, most: int = 60) -> str:
    """A value for an error message, shortened."""
    text = repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."
