"""Guesses of what follows, so that one pass can check several tokens.

Answers copy from documents and rewrites from the conversation: what followed the last two tokens where they stood
before may well follow again. Prompt lookup decoding (Saxena, 2023, github.com/apoorvumang/prompt-lookup-decoding), a
speculative decoding (Leviathan et al., ICML 2023, arXiv 2211.17192) that needs no second model.
"""

from collections.abc import Sequence


class Guesses:
    """A sequence, and what followed its tokens, and its pairs of tokens, where they stood last.

    Args:
        ids: token ids it begins with, at least one.
    """

    def __init__(self, ids: Sequence[int]):
        self.last = tuple(ids[-2:])
        self._after: dict[tuple[int, ...], int] = dict(zip(zip(ids), ids[1:], strict=False))
        self._after |= zip(zip(ids, ids[1:], strict=False), ids[2:], strict=False)

    def add(self, token: int) -> None:
        """The token that came."""
        self._after[self.last] = self._after[self.last[-1:]] = token
        self.last = (self.last[-1], token)

    def next(self, most: int) -> list[int]:
        """The tokens that may come next, at most so many; none where the last one never stood before."""
        found: list[int] = []
        last = self.last
        while len(found) < most:
            token = self._after.get(last, self._after.get(last[-1:]))
            if token is None:
                break
            found.append(token)
            last = (last[-1], token)
        return found
