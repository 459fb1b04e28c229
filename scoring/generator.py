"""The generator: writes answers with documents, and scores answers with and without documents.

Duplicates are computed once: equal (question, document list) pairs when answering, equal (question, answer) pairs when
scoring.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import torch

from core.chat import completion_ids, truncate_history, truncate_texts, truncate_to_context
from core.generation import Completion, generate, score_completions
from core.language_model import LanguageModel
from core.records import GeneratedAnswer, GenerationInput, Message, SampledAnswer, TokenStats
from core.sampling import sampler, uniform_draws
from core.settings import GeneratorSettings
from scoring.prompts import ANSWER, answer_messages

Task = tuple[GenerationInput, tuple[int, ...]]  # an input and the token ids of an answer to it
Prompts = dict[GenerationInput, tuple[list[int], int]]  # prompt token ids and the number of documents left out


@dataclass
class Generator:
    """The answering model, with limits on its prompts and answers.

    Args:
        lm: the model.
        max_new_tokens: maximum tokens of an answer.
        batch_tokens: maximum tokens of a batch.
        document_tokens: maximum tokens of a document; longer ones lose their end. None keeps whole documents.
        history_tokens: maximum tokens of the history; longer ones lose their oldest messages. None keeps all.
    """

    lm: LanguageModel
    max_new_tokens: int
    batch_tokens: int
    document_tokens: int | None = None
    history_tokens: int | None = None

    @classmethod
    def of(cls, lm: LanguageModel, settings: GeneratorSettings) -> "Generator":
        """Build a generator with the limits in the settings."""
        return cls(
            lm, settings.max_new_tokens, settings.batch_tokens, settings.document_tokens, settings.history_tokens
        )

    def reply_ids(self, text: str) -> tuple[int, ...]:
        """Token ids of a reply, as they follow a prompt in the chat template."""
        return tuple(completion_ids(self.lm, text))

    def prompts(self, inputs: Collection[GenerationInput], room: int, instruction: str = ANSWER) -> Prompts:
        """Build prompts that leave `room` tokens of the context free.

        A prompt that is too long loses documents, the last first, then messages, the oldest first. The question is
        never cut.

        Returns:
            For each distinct input, the token ids and the number of documents left out.
        """
        inputs = list(dict.fromkeys(inputs))
        histories = {item.history: item.messages for item in inputs}
        for key, messages in histories.items():
            histories[key] = truncate_history(self.lm, messages, self.history_tokens)
        texts = list(dict.fromkeys(text for item in inputs for text in item.documents))
        short = dict(zip(texts, truncate_texts(self.lm, texts, self.document_tokens), strict=True))

        def chat(item: GenerationInput, cut: int) -> list[Message]:
            documents, history = [short[text] for text in item.documents], histories[item.history]
            kept, later = documents[: max(0, len(documents) - cut)], history[max(0, cut - len(documents)) :]
            return answer_messages(later, item.question, kept, instruction)

        chats = [(len(item.documents) + len(histories[item.history]), partial(chat, item)) for item in inputs]
        prompts = truncate_to_context(self.lm, chats, room)
        return {item: (ids, min(cut, len(item.documents))) for item, (ids, cut) in zip(inputs, prompts, strict=True)}

    def answers(self, inputs: Sequence[GenerationInput]) -> list[GeneratedAnswer]:
        """Answer every input greedily; record each token's entropy and log-probability with and without documents.

        Returns:
            One answer per input, in order. The lists in `stats` have one value per answer token, without end-of-turn
            tokens.
        """
        room = self.max_new_tokens
        prompts = self.prompts(inputs, room)
        fitting = [item for item, (ids, _) in prompts.items() if len(ids) + room <= self.lm.context]
        outputs = generate(self.lm, [prompts[item][0] for item in fitting], room, self.batch_tokens)
        grounded = {item: output for item, (output,) in zip(fitting, outputs, strict=True)}
        bare = {item: (item.without_documents, tuple(out.ids)) for item, out in grounded.items() if out.ids}
        ungrounded = self._score(bare.values(), self.prompts([item for item, _ in bare.values()], room))
        answers = {}
        for item, (_, cut) in prompts.items():
            with_documents = grounded.get(item, Completion())
            answers[item] = self._answer(ungrounded.get(bare.get(item)), with_documents, with_documents.ids, cut)
        return [answers[item] for item in inputs]

    def logged_answers(self, tasks: Sequence[Task]) -> list[GeneratedAnswer]:
        """Score a reply to each input by teacher forcing, with and without documents.

        Returns:
            One answer per task, in order. `stats` is empty if question and reply do not fit the context.
        """
        bare = [(item.without_documents, ids) for item, ids in tasks]
        every = [*tasks, *bare]
        prompts = self.prompts([item for item, _ in every], max((len(ids) for _, ids in tasks), default=0))
        scored = self._score(every, prompts)
        return [
            self._answer(scored.get(without), scored.get(task), task[1], prompts[task[0]][1])
            for task, without in zip(tasks, bare, strict=True)
        ]

    def score(self, tasks: Sequence[Task], room: int, instruction: str = ANSWER) -> list[Completion | None]:
        """Compute log-probability and entropy of each token of given answers.

        Args:
            tasks: inputs, each with the token ids (at least one) of an answer; duplicates are scored once.
            room: tokens to reserve for the longest answer.
            instruction: instruction in the prompt.

        Returns:
            One completion per task; None if the answer or one of the documents does not fit the context.
        """
        prompts = self.prompts([item for item, _ in tasks], room, instruction)
        scored = self._score([task for task in tasks if not prompts[task[0]][1]], prompts)
        return [scored.get(task) for task in tasks]

    def samples(
        self, inputs: Sequence[GenerationInput], count: int, max_new_tokens: int, seed: int
    ) -> list[tuple[list[SampledAnswer], int]]:
        """Sample `count` answers to each of the distinct inputs. They depend only on the seed and the input.

        Returns:
            For each input, the answers and the number of documents that did not fit the context.
        """
        prompts = self.prompts(inputs, max_new_tokens)
        draws = [uniform_draws(seed, repr(item), count, max_new_tokens) for item in inputs]
        choose = sampler(torch.cat(draws).to(self.lm.device), temperature=1.0, top_p=1.0)
        ids = [prompts[item][0] for item in inputs]
        outputs = generate(self.lm, ids, max_new_tokens, self.batch_tokens, choose, count)
        answers = [
            [
                SampledAnswer(self._text(out.ids), fmean(out.logprobs) if out.logprobs else out.end_logprob)
                for out in completions
            ]
            for completions in outputs
        ]
        return [(sampled, prompts[item][1]) for item, sampled in zip(inputs, answers, strict=True)]

    def _score(self, tasks: Collection[Task], prompts: Prompts) -> dict[Task, Completion]:
        """Score the distinct tasks that fit the context."""
        fitting = [
            (item, ids) for item, ids in dict.fromkeys(tasks) if len(prompts[item][0]) + len(ids) <= self.lm.context
        ]
        outputs = score_completions(
            self.lm, [prompts[item][0] for item, _ in fitting], [list(ids) for _, ids in fitting], self.batch_tokens
        )
        return dict(zip(fitting, outputs, strict=True))

    def _answer(
        self, without: Completion | None, with_documents: Completion | None, ids: Sequence[int], cut: int
    ) -> GeneratedAnswer:
        without, with_documents = without or Completion(), with_documents or Completion()
        stats = TokenStats(
            tokens=tuple(self.lm.tokenizer.decode([token]) for token in ids),
            h0=tuple(without.entropies),
            hd=tuple(with_documents.entropies),
            logp0=tuple(without.logprobs),
            logpd=tuple(with_documents.logprobs),
        )
        return GeneratedAnswer(self._text(ids), stats, cut, with_documents.ended)

    def _text(self, ids: Sequence[int]) -> str:
        return self.lm.tokenizer.decode(ids, skip_special_tokens=True).strip()
