"""A trained rewriter, ready to use."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from core.errors import InputError
from core.language_model import LanguageModel, check_room
from core.model_spec import rewriter_spec
from core.records import Message, Turn
from core.settings import RewriterSettings
from rewriter.adapter_settings import load_adapter_settings
from rewriter.prompts import RewritePrompt, search_query
from rewriter.sampling import greedy_rewrites


@dataclass
class Rewriter:
    """Turns the last question of a conversation into a search query.

    Args:
        lm: the base model with the adapter.
        options: prompt, limits and what is searched.
    """

    lm: LanguageModel
    options: RewriterSettings

    @classmethod
    def from_adapter(cls, folder: str | Path) -> "Rewriter":
        """Load an adapter with the base model, prompt and limits that training saved beside it.

        Args:
            folder: such as `<run>/adapter`.

        Raises:
            InputError: the folder has no `rewriter.json`, or the model cannot be loaded.
        """
        options = load_adapter_settings(Path(folder))
        if options is None:
            raise InputError(f"there is no rewriter.json in {folder}; name an adapter that train/dpo.py saved.")
        return cls.from_settings(options)

    @classmethod
    def from_settings(cls, options: RewriterSettings) -> "Rewriter":
        """Load the model and adapter of the settings.

        Raises:
            InputError: the model cannot be loaded, or its context is too short for `max_new_tokens`.
        """
        lm = rewriter_spec(options).load()
        check_room(lm, options.max_new_tokens, "--max_new_tokens")
        return cls(lm, options)

    def rewrite(self, history: Sequence[Message], question: str) -> str:
        """The query to search for a question.

        Args:
            history: earlier messages, oldest first, as `{"role": "user" or "assistant", "content": text}`.
            question: the current question.
        """
        return self.queries([Turn("question", tuple(history), question)])[0]

    def queries(self, turns: Sequence[Turn]) -> list[str]:
        """The query to search for each turn, computed in one batch."""
        rewrites = greedy_rewrites(self.lm, turns, self.options, RewritePrompt.of(self.options))
        return [search_query(turn.question, text, self.options) for turn, text in zip(turns, rewrites, strict=True)]
