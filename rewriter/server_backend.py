"""A rewriter on an OpenAI-compatible server, such as vLLM or `rewriter.serve`."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from openai import BadRequestError, OpenAI, OpenAIError, UnprocessableEntityError
from openai.types.chat import ChatCompletion
from openai.types.chat.chat_completion import Choice

from core.distributed import seed_of
from core.errors import InputError, first_line
from core.progress import log
from core.records import Message, Turn
from core.settings import RewriterSettings
from rewriter.prompts import RewritePrompt, read_rewrite
from rewriter.sampling import Sample

REFUSED = (400, 413, 422)  # statuses of a prompt that the server refuses, such as one that is too long
# Whether a request asks for (several choices, log-probabilities). Some servers refuse or ignore either.
FORMS = ((True, True), (False, True), (False, False))
STATUS_HINTS = {
    401: "set OPENAI_API_KEY in the environment",
    403: "the API key has no access to it",
    404: "are `rewriter.url` and `rewriter.served_model` right?",
}


class ServerBackend:
    """A model on a server.

    Args:
        options: `url`, `served_model`, `concurrency`, `retries`, `timeout` and `extra_body` of the server; prompt and
            sampling.
        api_key: key of the server; by default the environment variable `OPENAI_API_KEY`.
    """

    def __init__(self, options: RewriterSettings, api_key: str | None = None):
        self.options = options
        self.client = OpenAI(
            base_url=options.url,
            api_key=api_key or os.environ.get("OPENAI_API_KEY") or "none",
            max_retries=options.retries,
            timeout=options.timeout,
        )
        self.form = 0  # index in `FORMS` of the first that the server has not refused
        self.refused = 0  # number of refused prompts

    def rewrites(self, turns: Sequence[Turn], options: RewriterSettings, n: int) -> list[list[str]]:
        """The most likely rewrite of each turn, or `n` samples."""
        samples = self.sample(turns, RewritePrompt.of(options, examples=True), n, seed=0)
        return [[sample.text for sample in turn_samples] for turn_samples in samples]

    def greedy_rewrites(self, turns: Sequence[Turn], prompt: RewritePrompt) -> list[str]:
        """The most likely rewrite of each turn; the question itself if the model's output is empty."""
        samples = self.sample(turns, prompt, n=1, seed=0)
        texts = (turn_samples[0].text if turn_samples else "" for turn_samples in samples)
        return [text or turn.question for turn, text in zip(turns, texts, strict=True)]

    def sample(self, turns: Sequence[Turn], prompt: RewritePrompt, n: int, seed: int) -> Iterator[list[Sample]]:
        """Sample `n` rewrites of each turn concurrently; if `n` is 1, the most likely one.

        The seed of a request depends on `seed`, the turn's id and the samples so far.

        Yields:
            The samples of each turn; an empty list if the server refuses the prompt, with a warning for the first.

        Raises:
            InputError: the server cannot be reached, fails, or does not know the model.
        """
        with ThreadPoolExecutor(self.options.concurrency) as pool:
            yield from pool.map(partial(self._sample_turn, prompt=prompt, n=n, seed=seed), turns)

    def _sample_turn(self, turn: Turn, prompt: RewritePrompt, n: int, seed: int) -> list[Sample]:
        messages, samples = prompt.messages(turn.history, turn.question), []
        temperature = 0.0 if n == 1 else self.options.temperature
        try:
            while len(samples) < n:  # a server may return fewer choices than requested
                request_seed = seed_of(seed, turn.id, len(samples)) >> 32  # 31 bits, which every server accepts
                choices = self._choices(messages, n - len(samples), temperature, request_seed)
                samples += map(to_sample, choices)
        except OpenAIError as error:
            status = getattr(error, "status_code", None)
            if status not in REFUSED:
                hint = STATUS_HINTS.get(status, "`rewriter.retries` and `rewriter.timeout` set how long a run waits")
                raise InputError(f"{self.options.url}: {first_line(error)} ({hint}).") from error
            self.refused += 1
            if self.refused == 1:
                log.warning("%s refuses the prompt of `%s`: %s", self.options.url, turn.id, first_line(error))
            return []
        return samples[:n]

    def _choices(self, messages: list[Message], n: int, temperature: float, seed: int) -> list[Choice]:
        """Request at most `n` choices, at least one. A form that the server has refused is not tried again."""
        for form in range(self.form, len(FORMS)):
            several, logprobs = FORMS[form]
            try:
                reply = self.client.chat.completions.create(
                    model=self.options.served_model, messages=messages, n=n if several else 1, logprobs=logprobs,
                    seed=seed, temperature=temperature, top_p=self.options.top_p,
                    max_tokens=self.options.max_new_tokens, extra_body=self.options.extra_body,
                )  # fmt: skip
            except (BadRequestError, UnprocessableEntityError):
                if form + 1 == len(FORMS):
                    raise
                continue
            self.form = max(self.form, form)
            if not isinstance(reply, ChatCompletion) or not reply.choices:
                raise InputError(
                    f"{self.options.url}: the reply is not a chat completion; it starts with {str(reply)[:80]!r}."
                )
            return reply.choices


def to_sample(choice: Choice) -> Sample:
    """Extract the rewrite from a choice; its tokens are known only if the server returns log-probabilities."""
    tokens = choice.logprobs.content if choice.logprobs and choice.logprobs.content else None
    logprob = None if tokens is None else sum(token.logprob for token in tokens)
    text = read_rewrite(choice.message.content or "")
    return Sample(text, logprob, len(tokens or ()), choice.finish_reason != "length")
