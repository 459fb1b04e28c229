"""Chat prompts as token ids, by the model's own chat template."""

from collections.abc import Callable, Sequence
from functools import lru_cache

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from core.errors import InputError, first_line
from core.language_model import LanguageModel
from core.records import Message
from core.runtime import log


def fitting(tokenizer: PreTrainedTokenizerBase, messages: list[Message]) -> list[Message]:
    """The messages as the model's chat template takes them.

    Control tokens in their texts are broken up; without a system role, the system text heads the user message.
    """
    messages = [message | {"content": harmless(tokenizer, message["content"])} for message in messages]
    if messages[0]["role"] != "system" or takes_system(tokenizer, str(tokenizer.chat_template)):
        return messages
    return [{"role": "user", "content": messages[0]["content"] + "\n\n" + messages[1]["content"]}, *messages[2:]]


@lru_cache(maxsize=8)
def takes_system(tokenizer: PreTrainedTokenizerBase, template: str) -> bool:
    """Whether the tokenizer's chat template, by which the answer is remembered, has a system role."""
    messages = [{"role": "system", "content": "?"}, {"role": "user", "content": "?"}]
    try:
        tokenizer.apply_chat_template(messages, tokenize=False)
    except TemplateError:
        return False
    return True


@lru_cache(maxsize=8)
def control_tokens(tokenizer: PreTrainedTokenizerBase, template: str) -> list[str]:
    """The texts that the tokenizer turns into control tokens wherever they stand: special ones, and those that the
    chat template writes. Added tokens of plain text (Gemma's line breaks) are none."""
    return [
        token.content
        for token in tokenizer.added_tokens_decoder.values()
        if len(token.content.strip()) > 1 and (token.special or token.content in template)
    ]


def harmless(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """A text whose control tokens ("<|im_end|>") are broken by a blank: no document ends its turn or opens another."""
    for token in control_tokens(tokenizer, str(tokenizer.chat_template)):
        if token in text:
            text = text.replace(token, f"{token[0]} {token[1:]}")
    return text


def chat_ids(tokenizer: PreTrainedTokenizerBase, chats: Sequence[list[Message]]) -> list[list[int]]:
    """Token ids of chat prompts up to where the answer begins; the template alone places a BOS.

    Many at once take a quarter of the time of one by one.

    Raises:
        InputError: the template refuses a prompt; gives its reason and the roles of the first one.
    """
    fitted = [fitting(tokenizer, messages) for messages in chats]
    try:
        return tokenizer.apply_chat_template(fitted, add_generation_prompt=True, return_dict=False) if fitted else []
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in fitted[0])
        raise InputError(
            f"the chat template of {tokenizer.name_or_path} refuses a prompt (roles: {roles}): {first_line(error)}"
        ) from error


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
    found, context = [], lm.context
    for ids, chat in zip(chat_ids(lm.tokenizer, [chat(0) for chat in chats]), chats, strict=True):
        cut = 0
        while len(ids) + room > context and (shorter := chat(cut + 1)) is not None:
            ids, cut = chat_ids(lm.tokenizer, [shorter])[0], cut + 1
        found.append((ids, cut))
    return found


def reply_ids(lm: LanguageModel, text: str) -> list[int]:
    """Token ids of a reply as the model's template places it after a prompt, end-of-turn tokens left out.

    Where the template does not put it right there (after a thought, or in a channel of its own), the text's own
    tokens, with a warning.
    """
    messages = fitting(lm.tokenizer, [{"role": "user", "content": "?"}])
    prompt = lm.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    text = harmless(lm.tokenizer, text)
    whole = lm.tokenizer.apply_chat_template([*messages, {"role": "assistant", "content": text}], return_dict=False)
    own = lm.tokenizer(text, add_special_tokens=False)["input_ids"]
    wanted, ids = lm.tokenizer.decode(own).strip(), whole[len(prompt) :]
    for count in range(1, len(ids) + 1) if whole[: len(prompt)] == prompt else ():
        if lm.tokenizer.decode(ids[:count]).strip() == wanted:
            return ids[:count]
    warn_of_template(lm.name)
    return own


@lru_cache(maxsize=8)
def warn_of_template(name: str) -> None:
    log.warning(
        "%s: its chat template puts more than the reply after a prompt; the probability of a reply is taken as if the "
        "model began with it", name
    )  # fmt: skip
