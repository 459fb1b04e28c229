"""A trained rewriter, ready to use."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from core.errors import InputError
from core.language_model import LanguageModel, check_room
from core.model_spec import rewriter_spec
from core.records import Message, Turn
from core.settings import RewriterSettings
from rewriter.adapter_settings import load_adapter_settings
from rewriter.prompts import RewritePrompt, normalized, search_query
from rewriter.sampling import greedy_rewrites, sample_rewrites

if TYPE_CHECKING:
    from rewriter.server_backend import ServerBackend


class LocalBackend:
    """A model in this process."""

    def __init__(self, lm: LanguageModel):
        self.lm = lm

    def rewrites(self, turns: Sequence[Turn], options: RewriterSettings, n: int) -> list[list[str]]:
        """The most likely rewrite of each turn, or `n` samples."""
        prompt = RewritePrompt.of(options)
        if n == 1:
            return [[text] for text in greedy_rewrites(self.lm, turns, options, prompt)]
        records = sample_rewrites(self.lm, turns, replace(options, n=n, include=[]), prompt, seed=0)
        return [[candidate.text for candidate in record.candidates] for record in records]


def server_backend(options: RewriterSettings, api_key: str | None = None) -> "ServerBackend":
    """The model on the server of the settings.

    Raises:
        InputError: the package openai is not installed.
    """
    try:
        from rewriter.server_backend import ServerBackend  # needs an optional package
    except ImportError as error:
        raise InputError(f"{error}; install it with pip install -e '.[serve]'") from error
    return ServerBackend(options, api_key)


class Rewriter:
    """Turns the last question of a conversation into a search query.

    Example:
        >>> rewriter = Rewriter.from_pretrained("runs/quickstart")
        >>> rewriter.rewrite([{"role": "user", "content": "Who founded Acme?"},
        ...                   {"role": "assistant", "content": "Ann Lee."}], "And where was she born?")
        'Where was Ann Lee born?'

    Args:
        backend: writes the rewrites: a model in this process, or one on a server.
        options: prompt, limits and `query`.
    """

    def __init__(self, backend: "LocalBackend | ServerBackend", options: RewriterSettings):
        self.backend, self.options = backend, options

    @classmethod
    def from_pretrained(cls, name: str | Path, **overrides: Any) -> "Rewriter":
        """Load a rewriter that train/dpo.py trained, with its base model, prompt and limits.

        Args:
            name: run folder, folder of an adapter or of a merged model, or the Hub id of one of these.
            overrides: settings of `rewriter` that replace the saved ones, such as `model`, where the base model has
                moved, or `dtype`.

        Raises:
            InputError: there is no `rewriter.json`, or the model cannot be loaded.
        """
        options = load_adapter_settings(name)
        if options is None:
            raise InputError(f"there is no rewriter.json in {name}; name a run or an adapter of train/dpo.py.")
        return cls.from_settings(replace(options, **overrides))

    @classmethod
    def from_settings(cls, options: RewriterSettings) -> "Rewriter":
        """Load the model and adapter of the settings.

        Raises:
            InputError: the model cannot be loaded, or its context is too short for `max_new_tokens`.
        """
        lm = rewriter_spec(options).load()
        check_room(lm, options.max_new_tokens, "--max_new_tokens")
        return cls(LocalBackend(lm), options)

    @classmethod
    def from_url(
        cls, url: str, model: str, settings: str | Path | None = None, api_key: str | None = None, **overrides: Any
    ) -> "Rewriter":
        """Use a rewriter on a server with the OpenAI protocol.

        Args:
            url: address that ends in `/v1`.
            model: name of the model on the server.
            settings: folder with the `rewriter.json` of the served adapter; the built-in prompt when not given.
            api_key: of the server; `OPENAI_API_KEY` of the environment when not given.
            overrides: settings of `rewriter` that replace the saved ones, such as `concurrency` or `extra_body`.

        Raises:
            InputError: there is no `rewriter.json`, the URL cannot be used, or the package openai is not installed.
        """
        options = load_adapter_settings(settings) if settings else RewriterSettings()
        if options is None:
            raise InputError(f"there is no rewriter.json in {settings}.")
        options = replace(options, url=url, served_model=model, **overrides)
        return cls(server_backend(options, api_key), options)

    @overload
    def rewrite(self, history: Sequence[Message], question: str) -> str: ...

    @overload
    def rewrite(self, history: Sequence[Message], question: str, n: int) -> list[str]: ...

    def rewrite(self, history: Sequence[Message], question: str, n: int | None = None) -> str | list[str]:
        """The query to search for a question.

        Args:
            history: earlier messages, oldest first, as `{"role": "user" or "assistant", "content": text}`.
            question: the current question.
            n: number of queries to sample; without it, the most likely query is returned alone.
        """
        (queries,) = self.queries([Turn("question", tuple(history), question)], n or 1)
        return queries[0] if n is None else queries

    def queries(self, turns: Sequence[Turn], n: int = 1) -> list[list[str]]:
        """Queries to search for each turn; turns are rewritten together.

        Args:
            turns: conversations with their last question.
            n: 1 for the most likely query; more for that many samples, of which equal ones are merged.

        Returns:
            For each turn its distinct queries; the question itself where the model writes nothing.
        """
        queries = []
        for turn, texts in zip(turns, self.backend.rewrites(turns, self.options, n), strict=True):
            distinct = {normalized(text): text for text in reversed(texts) if text}
            texts = list(reversed(distinct.values())) or [turn.question]
            queries.append([search_query(turn.question, text, self.options) for text in texts])
        return queries
