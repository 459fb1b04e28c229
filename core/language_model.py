"""Causal language models: loading, chat prompts as token ids, batches by token budget, and decoding.

Decoding is ours and not `generate`, for three reasons: the log-probability and entropy of every step are taken from
the raw logits as they appear (nothing is kept of them), the samples of one prompt share its pass, and a sample
depends on the seed and its prompt alone, not on the batch it happened to be in.
"""

import copy
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch
from jinja2 import TemplateError
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from core.artifacts import sha256
from core.errors import InputError, first_line
from core.records import Message
from core.runtime import log

# For a tokenizer without a chat template; a completion begins with a blank, so that prompts stay prefixes.
PLAIN_TEMPLATE = (
    "{{ bos_token or '' }}{% for m in messages %}"
    "{% if m['role'] == 'assistant' %}{{ 'Reply: ' + m['content'] + eos_token }}"
    "{% else %}{{ m['content'] + '\n\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Reply:' }}{% endif %}"
)


LOADING_ERRORS = (
    OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, SafetensorError, TemplateError,
    UserWarning,
)  # fmt: skip
FACTS = 1 << 22  # numbers of a float32 copy of logits
LOGITS = (1 << 24, 1 << 28)  # most numbers of the logits of one pass, on a CPU and on a GPU


@dataclass
class LanguageModel:
    """A causal LM with its tokenizer. `name` is what the user wrote."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def context(self) -> int:
        """Longest sequence the model takes, in tokens."""
        config = self.model.config.get_text_config()
        return getattr(config, "max_position_embeddings", None) or 1 << 20

    @property
    def stop_ids(self) -> list[int]:
        """Tokens that end a turn: the tokenizer's and the generation config's."""
        more = self.model.generation_config.eos_token_id if self.model.generation_config else None
        more = more if isinstance(more, list) else [more]
        return sorted({i for i in [self.tokenizer.eos_token_id, *more] if i is not None})


def load_language_model(
    name: str,
    adapter: str | None = None,
    dtype: str = "float32",
    trainable: bool = False,
    device: str | None = None,
) -> LanguageModel:
    """Load a model in evaluation mode.

    Args:
        name: folder or Hub id; safetensors, no remote code.
        adapter: folder or Hub id of a PEFT adapter.
        dtype: float32, bfloat16 or float16.
        trainable: whether the adapter's weights are to be trained.
        device: such as `cpu` or `cuda:1`; the best there is when not given.

    Raises:
        InputError: the model cannot be loaded; names it and the cause.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        tokenizer = load_tokenizer(name)
        model, found = AutoModelForCausalLM.from_pretrained(
            name, dtype=getattr(torch, dtype), use_safetensors=True, output_loading_info=True
        )
        if strange := [*found["missing_keys"], *found["unexpected_keys"]]:
            log.warning("%s: %d weights do not fit its settings (first: `%s`)", name, len(strange), min(strange))
        if found["missing_keys"]:
            raise ValueError(f"{len(found['missing_keys'])} weights are missing, such as {min(found['missing_keys'])}")
        if adapter:
            from peft import PeftModel

            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="Found missing adapter keys")
                model = PeftModel.from_pretrained(model, adapter, is_trainable=trainable)
        tokenizer.apply_chat_template(
            [{"role": "user", "content": "?"}], add_generation_prompt=True, return_dict=False
        )
        model = model.to(device).eval()
    except LOADING_ERRORS as error:
        what = f"{name} with adapter {adapter}" if adapter else name
        raise InputError(f"the model `{what}` cannot be loaded: {first_line(error)}") from error
    return LanguageModel(name, model, tokenizer)


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer, padding on the left; a missing pad token becomes the end token, a missing chat template a plain
    one."""
    tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left")
    if tokenizer.chat_template is None:
        tokenizer.chat_template = PLAIN_TEMPLATE
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def fingerprint(name: str, adapter: str | None = None) -> str:
    """What identifies a model in a record: the hash of its weights, settings and tokenizer, or its Hub id."""
    parts = []
    for part in (name, adapter):
        folder = Path(part or "")
        if part and folder.is_dir():
            deciding = ("*.safetensors", "*config.json", "tokenizer*", "vocab*", "merges*", "chat_template*")
            files = sorted({file for pattern in deciding for file in folder.glob(pattern)})
            parts.append(sha256(*files)[:16])
        elif part:
            parts.append(part)
    return "+".join(parts)


def fitting(tokenizer: PreTrainedTokenizerBase, messages: list[Message]) -> list[Message]:
    """The messages as the model's chat template takes them.

    Control tokens in their texts are broken up; without a system role, the system text heads the user message.
    """
    messages = [message | {"content": harmless(tokenizer, message["content"])} for message in messages]
    if messages[0]["role"] != "system":
        return messages
    try:
        tokenizer.apply_chat_template(messages[:2], tokenize=False)
    except TemplateError:
        merged = {"role": "user", "content": messages[0]["content"] + "\n\n" + messages[1]["content"]}
        return [merged, *messages[2:]]
    return messages


def check_room(lm: LanguageModel, max_new_tokens: int, key: str) -> None:
    """Make sure that the longest output leaves room for a prompt.

    Raises:
        InputError: names the setting or flag `key`, its value and the model's context.
    """
    if max_new_tokens >= lm.context:
        raise InputError(
            f"`{key}` must be below the context of {lm.name} ({lm.context} tokens), got {max_new_tokens}."
        )


@lru_cache(maxsize=8)
def control_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The texts that the tokenizer turns into control tokens wherever they stand."""
    return [token.content for token in tokenizer.added_tokens_decoder.values() if len(token.content) > 1]


def harmless(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """A text whose control tokens ("<|im_end|>") are broken by a blank: no document ends its turn or opens another."""
    for token in control_tokens(tokenizer):
        if token in text:
            text = text.replace(token, f"{token[0]} {token[1:]}")
    return text


def chat_ids(tokenizer: PreTrainedTokenizerBase, chats: Sequence[list[Message]]) -> list[list[int]]:
    """Token ids of chat prompts up to where the answer begins; the template alone places a BOS.

    Many at once take a quarter of the time of one by one.
    """
    fitted = [fitting(tokenizer, messages) for messages in chats]
    return tokenizer.apply_chat_template(fitted, add_generation_prompt=True, return_dict=False) if fitted else []


def prompts_that_fit(
    lm: LanguageModel, chats: Sequence[Callable[[int], list[Message] | None]], room: int
) -> list[tuple[list[int], int]]:
    """Prompts with as little left out as leaves `room` tokens free.

    Args:
        lm: the model.
        chats: for each prompt, what its messages are when so many parts are left out; None when no more can be.
        room: tokens to leave free.

    Returns:
        Token ids and number of parts left out, for each prompt; longer than the context where nothing helps.
    """
    found = []
    for ids, chat in zip(chat_ids(lm.tokenizer, [chat(0) for chat in chats]), chats, strict=True):
        cut = 0
        while len(ids) + room > lm.context and (shorter := chat(cut + 1)) is not None:
            ids, cut = chat_ids(lm.tokenizer, [shorter])[0], cut + 1
        found.append((ids, cut))
    return found


def reply_ids(lm: LanguageModel, text: str) -> list[int]:
    """Token ids of a reply as the model's template places it after a prompt, end-of-turn tokens left out."""
    messages = fitting(lm.tokenizer, [{"role": "user", "content": "?"}])
    prompt = lm.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    reply = [*messages, {"role": "assistant", "content": harmless(lm.tokenizer, text)}]
    ids = lm.tokenizer.apply_chat_template(reply, return_dict=False)[len(prompt) :]
    while ids and (ids[-1] in lm.stop_ids or not lm.tokenizer.decode([ids[-1]]).strip()):
        ids = ids[:-1]
    return ids


def batches_by_tokens(lengths: list[int], budget: int) -> list[list[int]]:
    """Positions grouped so that rows times longest row stays within a budget; longest first.

    Args:
        lengths: tokens of each item.
        budget: most tokens of a padded batch; an item longer than that goes alone.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batches: list[list[int]] = []
    for i in order:
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= budget:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


@dataclass
class Decoded:
    """One decoded sequence, without its end-of-turn token.

    `logprobs` and `entropies` [T] are of the raw distribution at each token, in nats; `ended` tells whether the model
    ended the turn itself, `end_logprob` is then that token's log-probability.
    """

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    ended: bool = False
    end_logprob: float = 0.0


Pick = Callable[[Tensor, int, Tensor], Tensor]
"""Chooses the next tokens: (log-probabilities [rows, vocabulary], step, numbers of the rows [rows]) -> ids [rows]."""


def greedy(logprobs: Tensor, step: int, numbers: Tensor) -> Tensor:
    """The most likely token of each row."""
    return logprobs.argmax(-1)


def entropy_of(logprobs: Tensor) -> Tensor:
    """Entropy in nats of each row of log-probabilities [rows, vocabulary]; impossible tokens add 0.

    H = -sum p log p, in float32 (METHODS of GROGU, arXiv 2601.23129).
    """
    return -(logprobs.exp() * logprobs.clamp(min=torch.finfo(logprobs.dtype).min)).sum(-1)


def facts_of(logits: Tensor, tokens: Tensor) -> tuple[list[float], list[float]]:
    """Log-probability of one token in each row of logits, and the row's entropy; in float32, a few rows at a time.

    Args:
        logits: [rows, vocabulary], raw.
        tokens: [rows].
    """
    size = max(1, FACTS // logits.shape[-1])
    logprobs, entropies = [], []
    for start in range(0, len(logits), size):
        part = logits[start : start + size].float().log_softmax(-1)
        logprobs += part.gather(-1, tokens[start : start + size, None])[:, 0].tolist()
        entropies += entropy_of(part).tolist()
    return logprobs, entropies


class _Read(Exception):
    """Raised when the cache has the keys and values of every layer."""


class PromptCache(DynamicCache):
    """A cache that, while `reading`, ends the pass as soon as its last layer is filled: what that layer goes on to
    compute at the prompt's tokens nobody looks at."""

    reading = False

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        found = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        if self.reading and layer_idx == len(self.layers) - 1:
            raise _Read
        return found


def read_prompts(lm: LanguageModel, prompts: list[list[int]]) -> tuple[PromptCache, Tensor]:
    """Read each prompt up to its last token, which the next pass gives together with what follows.

    Rows are padded on the right: no token sees what comes after it, so the pass needs no mask and computes the lower
    triangle alone. A model with a sliding window shorter than the rows counts its window in slots of the cache; its
    rows are padded on the left, where the slots of a row stand together.

    Returns:
        The cache, and which of its slots hold a token of the row [batch, length].
    """
    rows = [prompt[:-1] for prompt in prompts]
    cache, length = PromptCache(config=lm.model.config), max(map(len, rows))
    window = getattr(lm.model.config.get_text_config(), "sliding_window", None) or length
    left = window < length
    ids = torch.tensor([padded(row, length, lm.tokenizer.pad_token_id, left) for row in rows], device=lm.device)
    mask = torch.tensor([padded([1] * len(row), length, 0, left) for row in rows], device=lm.device)
    where = {"attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)} if left else {}
    if length:
        cache.reading = True
        with suppress(_Read):
            lm.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1, **where)
        cache.reading = False
    return cache, mask


@torch.inference_mode()
def decode(
    lm: LanguageModel, prompts: list[list[int]], max_new_tokens: int, pick: Pick = greedy, samples: int = 1
) -> list[list[Decoded]]:
    """Continue each prompt.

    Args:
        lm: the model.
        prompts: token ids of each prompt, of any lengths.
        max_new_tokens: longest continuation.
        pick: chooses the next tokens; rows are numbered prompt by prompt (`prompt * samples + sample`).
        samples: continuations per prompt; they share the pass over it.

    Returns:
        `samples` sequences for each prompt.
    """
    cache, mask = read_prompts(lm, prompts)
    if samples > 1:
        cache.batch_repeat_interleave(samples)
        mask = mask.repeat_interleave(samples, 0)
    position = mask.sum(-1, keepdim=True)
    tokens = torch.tensor([prompt[-1] for prompt in prompts], device=lm.device).repeat_interleave(samples)
    rows = [Decoded() for _ in range(len(prompts) * samples)]
    numbers = torch.arange(len(rows), device=lm.device)  # of the rows that are still in the batch
    running = torch.ones_like(numbers, dtype=torch.bool)
    stop = torch.tensor(lm.stop_ids, device=lm.device)
    for step in range(max_new_tokens):
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], -1)
        where = {"attention_mask": mask, "position_ids": position}
        logits = lm.model(input_ids=tokens[:, None], past_key_values=cache, use_cache=True, **where).logits[:, -1]
        position = position + 1
        logprobs = logits.float().log_softmax(-1)
        tokens = pick(logprobs, step, numbers)
        ends = torch.isin(tokens, stop)
        chosen = logprobs.gather(-1, tokens[:, None])[:, 0]
        columns = (numbers, tokens, ends, running, chosen, entropy_of(logprobs))
        for number, token, end, alive, logprob, entropy in zip(*(c.tolist() for c in columns), strict=True):
            if alive and end:
                rows[number].ended, rows[number].end_logprob = True, logprob
            elif alive:
                rows[number].ids.append(token)
                rows[number].logprobs.append(logprob)
                rows[number].entropies.append(entropy)
        running &= ~ends
        if not running.any():
            break
        if running.sum() <= 0.75 * len(running):  # let go of the rows that have ended
            kept = running.nonzero()[:, 0]
            cache.batch_select_indices(kept)
            numbers, tokens, mask, position, running = (t[kept] for t in (numbers, tokens, mask, position, running))
    return [rows[i * samples : (i + 1) * samples] for i in range(len(prompts))]


@torch.inference_mode()
def score_continuations(
    lm: LanguageModel, prompts: list[list[int]], continuations: list[list[list[int]]]
) -> list[list[Decoded]]:
    """Entropy and log-probability at each token of given continuations; those of one prompt share the pass over it.

    Args:
        lm: the model.
        prompts: token ids of each prompt.
        continuations: for each prompt, continuations of at least one token.

    Returns:
        For each prompt and continuation its `logprobs` and `entropies`. Logits exist at the continuations' positions
        alone, and of no more than `LOGITS` numbers at once.
    """
    cache, mask = read_prompts(lm, prompts)
    flat = [(owner, row) for owner, rows in enumerate(continuations) for row in rows]
    made = [Decoded(row) for _, row in flat]
    room = LOGITS[lm.device.type == "cuda"] // lm.model.config.get_text_config().vocab_size
    parts = batches_by_tokens([len(row) for _, row in flat], room)
    for number, part in enumerate(parts, 1):
        owners = torch.tensor([flat[i][0] for i in part], device=lm.device)
        own, before = cache if number == len(parts) else copy.deepcopy(cache), mask[owners]
        own.batch_select_indices(owners)
        length = max(len(flat[i][1]) for i in part)
        given = [padded([prompts[flat[i][0]][-1], *flat[i][1]], length + 1) for i in part]
        given = torch.tensor(given, device=lm.device)
        there = torch.tensor([padded([1] * len(flat[i][1]), length) for i in part], device=lm.device)
        logits = lm.model(
            input_ids=given[:, :-1],
            attention_mask=torch.cat([before, there], -1),
            position_ids=before.sum(-1, keepdim=True) + torch.arange(length, device=lm.device),
            past_key_values=own,
            use_cache=True,
        ).logits
        logprobs, entropies = facts_of(logits.flatten(0, 1), given[:, 1:].flatten())
        for k, i in enumerate(part):
            mine = slice(k * length, k * length + len(flat[i][1]))
            made[i].logprobs, made[i].entropies = logprobs[mine], entropies[mine]
    results = iter(made)
    return [[next(results) for _ in rows] for rows in continuations]


def padded(row: list[int], length: int, filler: int = 0, left: bool = False) -> list[int]:
    """The row with fillers at its end, or on its left."""
    fillers = [filler] * (length - len(row))
    return fillers + row if left else row + fillers


def each_batch(lm: LanguageModel, lengths: list[int], budget: int, work: Callable[[list[int]], None]) -> None:
    """Do some work in batches of at most `budget` tokens: on a CPU several batches at once, one per core.

    A small model keeps two cores busier with two batches than with one, whose threads wait for each other at every
    operation.

    Args:
        lm: the model, to know its device.
        lengths: tokens of each item.
        budget: most tokens in work at once.
        work: is given positions of `lengths`.
    """
    if not lengths:
        return
    workers = torch.get_num_threads() if lm.device.type == "cpu" else 1
    batches = batches_by_tokens(lengths, max(1, min(budget, sum(lengths)) // workers))
    if workers == 1 or len(batches) == 1:
        for batch in batches:
            work(batch)
        return
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for done in [pool.submit(work, batch) for batch in batches]:
                done.result()
    finally:
        torch.set_num_threads(workers)
