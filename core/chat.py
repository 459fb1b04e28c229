"""Chat prompts as token ids, by the model's own chat template."""

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
    """The messages in the form that the model's chat template takes.

    Control tokens in their texts are broken up, and adjacent messages of one role are merged. Where the template
    raises for a system message, or drops it, its text heads the first user message. Where it still raises (for
    example for a conversation that the assistant begins), the conversation becomes a transcript in one user message.
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
    """Messages of these roles in the tokenizer's chat template, by which the result is cached; empty if it raises."""
    messages = [{"role": role, "content": f"text of {role}"} for role in roles]
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False)
    except TemplateError:
        return ""


@lru_cache(maxsize=8)
def control_tokens(tokenizer: PreTrainedTokenizerBase, template: str) -> list[str]:
    """The texts that the tokenizer turns into control tokens wherever they stand: special ones, and those that the
    chat template writes. Added tokens of plain text (Gemma's line breaks) are none."""
    return [
        token.content
        for token in tokenizer.added_tokens_decoder.values()
        if len(token.content.strip()) > 1 and (token.special or token.content in template)
    ]


def escape_special_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """The text with its control tokens ("<|im_end|>") broken by a space, so that no document can end its turn."""
    for token in control_tokens(tokenizer, str(tokenizer.chat_template)):
        if token in text:
            text = text.replace(token, f"{token[0]} {token[1:]}")
    return text


def chat_ids(tokenizer: PreTrainedTokenizerBase, chats: Sequence[list[Message]]) -> list[list[int]]:
    """Token ids of chat prompts up to where the answer begins; the template alone places a BOS.

    Raises:
        InputError: the template refuses a prompt; gives its reason and the roles of the first one.
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
    """The beginning of each text, at most `max_tokens` tokens of it; None keeps all."""
    if max_tokens is None or not texts:
        return list(texts)
    offsets = lm.tokenizer(list(texts), add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return [
        text if len(spans) <= max_tokens else text[: spans[max_tokens - 1][1]]
        for text, spans in zip(texts, offsets, strict=True)
    ]


def truncate_history(lm: LanguageModel, history: Sequence[Message], max_tokens: int | None) -> list[Message]:
    """The last messages of a conversation, at most `max_tokens` tokens; the oldest kept message may lose its end.

    None keeps all.
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


def prompts_that_fit(
    lm: LanguageModel, chats: Sequence[tuple[int, Callable[[int], list[Message]]]], room: int
) -> list[tuple[list[int], int]]:
    """Prompts that leave `room` tokens free, with as few parts left out as possible.

    Args:
        lm: the model.
        chats: for each prompt, the number of parts that may be left out, and a function from the number of parts that
            are left out to the messages.
        room: tokens to leave free.

    Returns:
        Token ids and number of parts left out, for each prompt; longer than the context where nothing helps.
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
    """Token ids of a reply as the model's template places it after a prompt, end-of-turn tokens left out.

    White space around the reply is removed: a model does not begin with it, and many templates trim it.
    Where the template writes something between prompt and reply (a thought, a channel), returns the tokens of the
    text alone, with a warning.
    """
    messages = normalize_messages(lm.tokenizer, [{"role": "user", "content": "?"}])
    prompt = lm.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    text = escape_special_tokens(lm.tokenizer, text.strip())
    whole = lm.tokenizer.apply_chat_template([*messages, {"role": "assistant", "content": text}], return_dict=False)
    own = lm.tokenizer(text, add_special_tokens=False)["input_ids"]
    text, ids = lm.tokenizer.decode(own).strip(), whole[len(prompt) :]
    for count in range(1, len(ids) + 1) if whole[: len(prompt)] == prompt else ():
        if lm.tokenizer.decode(ids[:count]).strip() == text:
            return ids[:count]
    warn_of_template(lm.name)
    return own


@lru_cache(maxsize=8)
def warn_of_template(name: str) -> None:
    """Warn once per model."""
    log.warning(
        "%s: its chat template puts more than the reply after a prompt; the probability of a reply is taken as if the "
        "model began with it", name
    )  # fmt: skip
