"""`Rewriter`: apply a trained rewriter."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from core.errors import InputError
from core.language_model import LanguageModel, check_room
from core.model_spec import rewriter_spec
from core.records import Message, Turn
from core.schema import validate
from core.settings import RewriterSettings
from rewriter.adapter_settings import load_adapter_settings
from rewriter.prompts import RewritePrompt, normalized, search_query
from rewriter.sampling import greedy_rewrites, sample_rewrites

if TYPE_CHECKING:
    from rewriter.server_backend import ServerBackend


def with_overrides(options: RewriterSettings, values: dict[str, Any]) -> RewriterSettings:
    """The settings with other values; raises InputError for an unknown name or a wrong value."""
    return validate(RewriterSettings, asdict(options) | values)


class LocalBackend:
    """A model in this process."""

    def __init__(self, lm: LanguageModel):
        self.lm = lm

    def rewrites(self, turns: Sequence[Turn], options: RewriterSettings, n: int) -> list[list[str]]:
        """The most likely rewrite of each turn, or `n` samples."""
        prompt = RewritePrompt.of(options, examples=True)
        if n == 1:
            return [[text] for text in greedy_rewrites(self.lm, turns, options, prompt)]
        records = sample_rewrites(self.lm, turns, replace(options, n=n, include=[]), prompt, seed=0)
        return [[candidate.text for candidate in record.candidates] for record in records]


def server_backend(options: RewriterSettings, api_key: str | None = None) -> "ServerBackend":
    """Connect to the model on the server of the settings.

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
        """Load a rewriter trained by train/dpo.py, with its base model, prompt and limits.

        Args:
            name: run folder, adapter folder, folder of a merged model, or the Hub id of one of these.
            overrides: settings of `rewriter` that replace the saved ones, such as `dtype`, or `model` if the base
                model has moved.

        Raises:
            InputError: there is no `rewriter.json`, an override is invalid, or the model cannot be loaded.
        """
        options = load_adapter_settings(name)
        if options is None:
            raise InputError(f"{name} contains no rewriter.json; name a run or an adapter of train/dpo.py.")
        return cls.from_settings(with_overrides(options, overrides))

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
        """Use a rewriter on an OpenAI-compatible server.

        Args:
            url: URL that ends in `/v1`.
            model: name of the model on the server.
            settings: folder with the `rewriter.json` of the served adapter; by default, the built-in prompt is used.
            api_key: key of the server; by default the environment variable `OPENAI_API_KEY`.
            overrides: settings of `rewriter` that replace the saved ones, such as `concurrency` or `extra_body`.

        Raises:
            InputError: there is no `rewriter.json`, an override is invalid, or the package openai is not installed.
        """
        options = load_adapter_settings(settings) if settings else RewriterSettings()
        if options is None:
            raise InputError(f"{settings} contains no rewriter.json.")
        options = with_overrides(options, overrides | {"url": url, "served_model": model})
        return cls(server_backend(options, api_key), options)

    @overload
    def rewrite(self, history: Sequence[Message], question: str) -> str: ...

    @overload
    def rewrite(self, history: Sequence[Message], question: str, n: int) -> list[str]: ...

    def rewrite(self, history: Sequence[Message], question: str, n: int | None = None) -> str | list[str]:
        """Rewrite a question as a search query.

        Args:
            history: earlier messages, oldest first, as `{"role": "user" or "assistant", "content": text}`.
            question: the current question.
            n: number of queries to sample; if None, the most likely query is returned as a string.
        """
        (queries,) = self.queries([Turn("question", tuple(history), question)], n or 1)
        return queries[0] if n is None else queries

    def queries(self, turns: Sequence[Turn], n: int = 1) -> list[list[str]]:
        """Rewrite the questions of several turns in batches.

        Args:
            turns: conversations with their last question.
            n: 1 for the most likely query; otherwise the number of samples, of which equal ones are merged.

        Returns:
            The distinct queries of each turn, in the order of sampling; the question itself if the model's output is
            empty.
        """
        queries = []
        for turn, texts in zip(turns, self.backend.rewrites(turns, self.options, n), strict=True):
            distinct: dict[str, str] = {}
            for text in filter(None, texts):
                distinct.setdefault(normalized(text), text)
            rewrites = distinct.values() or [turn.question]
            queries.append([search_query(turn.question, text, self.options) for text in rewrites])
        return queries
