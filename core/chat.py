"""Chat prompts as token ids, rendered with the model's chat template."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from core.conversation import transcript
from core.errors import InputError, first_line
from core.language_model import LanguageModel
from core.progress import log
from core.records import Message


def normalize_messages(tokenizer: PreTrainedTokenizerBase, messages: list[Message]) -> list[Message]:
    """Convert messages to a form that the model's chat template accepts.

    Control tokens in the texts are broken up, and adjacent messages of the same role are merged. If the template
    rejects or drops system messages, the system text is prepended to the first user message. If the template still
    raises an error (for example, because the assistant speaks first), the whole conversation becomes a transcript in
    one user message.
    """
    messages = [message | {"content": escape_special_tokens(tokenizer, message["content"])} for message in messages]
    template = str(tokenizer.chat_template)
    if messages[0]["role"] == "system" and "text of system" not in render(tokenizer, template, ("system", "user")):
        messages = [{"role": "user", "content": messages[0]["content"]}, *messages[1:]]
    merged: list[Message] = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1] = message | {"content": f"{merged[-1]['content']}\n\n{message['content']}"}
        else:
            merged.append(message)
    roles = tuple(message["role"] for message in merged)
    if render(tokenizer, template, roles):
        return merged
    first = [messages[0]["content"]] if roles[0] != "assistant" else []
    parts = [*first, "Conversation:\n" + transcript(messages[len(first) : -1]), messages[-1]["content"]]
    return [{"role": "user", "content": "\n\n".join(parts)}]


@lru_cache(maxsize=256)
def render(tokenizer: PreTrainedTokenizerBase, template: str, roles: tuple[str, ...]) -> str:
    """Render messages of these roles with the chat template, which is a cache key; empty if the template raises."""
    messages = [{"role": role, "content": f"text of {role}"} for role in roles]
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False)
    except TemplateError:
        return ""


@lru_cache(maxsize=8)
def control_tokens(tokenizer: PreTrainedTokenizerBase, template: str) -> list[str]:
    """Texts that the tokenizer always maps to control tokens: special tokens, and added tokens that the chat template
    writes. Other added tokens, such as Gemma's line breaks, are plain text."""
    return [
        token.content
        for token in tokenizer.added_tokens_decoder.values()
        if len(token.content.strip()) > 1 and (token.special or token.content in template)
    ]


def escape_special_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Break up control tokens in a text ("<|im_end|>") with a space, so that no document can end its turn."""
    for token in control_tokens(tokenizer, str(tokenizer.chat_template)):
        if token in text:
            text = text.replace(token, f"{token[0]} {token[1:]}")
    return text


def chat_ids(tokenizer: PreTrainedTokenizerBase, chats: Sequence[list[Message]]) -> list[list[int]]:
    """Token ids of chat prompts, up to the start of the answer. Only the template adds a BOS token.

    Raises:
        InputError: the template refuses a prompt; the message gives the reason and the roles of the first prompt.
    """
    fitted = [normalize_messages(tokenizer, messages) for messages in chats]
    try:
        return tokenizer.apply_chat_template(fitted, add_generation_prompt=True, return_dict=False) if fitted else []
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in fitted[0])
        raise InputError(
            f"the chat template of {tokenizer.name_or_path} refuses a prompt (roles: {roles}): {first_line(error)}"
        ) from error


def truncate_texts(lm: LanguageModel, texts: Sequence[str], max_tokens: int | None) -> list[str]:
    """Truncate each text to its first `max_tokens` tokens; None keeps all."""
    if max_tokens is None or not texts:
        return list(texts)
    offsets = lm.tokenizer(list(texts), add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return [
        text if len(spans) <= max_tokens else text[: spans[max_tokens - 1][1]]
        for text, spans in zip(texts, offsets, strict=True)
    ]


def truncate_history(lm: LanguageModel, history: Sequence[Message], max_tokens: int | None) -> list[Message]:
    """Keep the last messages of a conversation, at most `max_tokens` tokens; None keeps all.

    The oldest kept message may lose its end.
    """
    if max_tokens is None:
        return list(history)
    kept: list[Message] = []
    for message in reversed(history):
        if max_tokens <= 0:
            break
        (content,) = truncate_texts(lm, [message["content"]], max_tokens)
        kept.append(message | {"content": content})
        max_tokens -= len(lm.tokenizer(content, add_special_tokens=False)["input_ids"])
    return kept[::-1]


def truncate_to_context(
    lm: LanguageModel, chats: Sequence[tuple[int, Callable[[int], list[Message]]]], room: int
) -> list[tuple[list[int], int]]:
    """Build prompts that leave `room` tokens of the context free, omitting as few parts as possible.

    Args:
        lm: the model.
        chats: for each prompt, the number of parts that can be omitted, and a function from the number of omitted
            parts to the messages.
        room: tokens to leave free.

    Returns:
        Token ids and number of omitted parts of each prompt; a prompt may be too long even without all parts.
    """
    prompts = []
    for ids, (parts, chat) in zip(chat_ids(lm.tokenizer, [chat(0) for _, chat in chats]), chats, strict=True):
        cut = 0
        if len(ids) + room > lm.context:

            def fits(cut: int, chat=chat) -> bool:
                return len(chat_ids(lm.tokenizer, [chat(cut)])[0]) + room <= lm.context

            cut = bisect_left(range(parts), True, key=fits)
            (ids,) = chat_ids(lm.tokenizer, [chat(cut)])
        prompts.append((ids, cut))
    return prompts


def completion_ids(lm: LanguageModel, text: str) -> list[int]:
    """Token ids of a reply as the chat template writes it after a prompt, without end-of-turn tokens.

    White space around the reply is removed: models do not start with it, and many templates trim it. If the template
    inserts text between prompt and reply (a thought, a channel), the function returns the tokens of the reply alone
    and logs a warning.
    """
    messages = normalize_messages(lm.tokenizer, [{"role": "user", "content": "?"}])
    prompt = lm.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    text = escape_special_tokens(lm.tokenizer, text.strip())
    whole = lm.tokenizer.apply_chat_template([*messages, {"role": "assistant", "content": text}], return_dict=False)
    text_ids = lm.tokenizer(text, add_special_tokens=False)["input_ids"]
    text, ids = lm.tokenizer.decode(text_ids).strip(), whole[len(prompt) :]
    for count in range(1, len(ids) + 1) if whole[: len(prompt)] == prompt else ():
        if lm.tokenizer.decode(ids[:count]).strip() == text:
            return ids[:count]
    warn_of_template(lm.name)
    return text_ids


@lru_cache(maxsize=8)
def warn_of_template(name: str) -> None:
    """Warn once per model."""
    log.warning(
        "%s: the chat template inserts text between a prompt and its reply; the probability of a reply is computed "
        "without this text", name
    )  # fmt: skip
