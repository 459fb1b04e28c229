"""The generator's passes: it answers with documents, and an answer is scored with documents and without them.

Duplicates are computed once: a (question, document list) when answering, a (question, answer) when scoring.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import torch

from core.chat import completion_ids, prompts_that_fit, truncate_history, truncate_texts
from core.generation import Completion, generate, score_completions
from core.language_model import LanguageModel
from core.records import GeneratedAnswer, GenerationInput, Message, SampledAnswer, TokenStats
from core.settings import GeneratorSettings
from rewriter.sampling import sampler, uniform_draws
from scoring.prompts import ANSWER, answer_messages

Task = tuple[GenerationInput, tuple[int, ...]]  # an input, and the token ids of an answer to it
Prompts = dict[GenerationInput, tuple[list[int], int]]  # token ids, and the number of documents left out


@dataclass
class Generator:
    """The model that answers, with the limits on what it reads and writes.

    Args:
        lm: the model.
        max_new_tokens: longest answer.
        batch_tokens: most tokens of a batch.
        document_tokens: longest document, in tokens; the end of a longer one is cut off. None keeps all.
        history_tokens: longest history, in tokens; the oldest messages are cut off. None keeps all.
    """

    lm: LanguageModel
    max_new_tokens: int
    batch_tokens: int
    document_tokens: int | None = None
    history_tokens: int | None = None

    @classmethod
    def of(cls, lm: LanguageModel, settings: GeneratorSettings) -> "Generator":
        """A model with the limits of the settings."""
        return cls(
            lm, settings.max_new_tokens, settings.batch_tokens, settings.document_tokens, settings.history_tokens
        )

    def reply_ids(self, text: str) -> tuple[int, ...]:
        """Token ids of a reply, as the chat template places it after a prompt."""
        return tuple(completion_ids(self.lm, text))

    def prompts(self, inputs: Collection[GenerationInput], room: int, instruction: str = ANSWER) -> Prompts:
        """Prompts that leave `room` tokens of the context free.

        Where a prompt is too long, documents are left out from the last one back, then messages from the oldest on.
        The question is never cut.

        Returns:
            For each distinct input the token ids and the number of documents left out.
        """
        inputs = list(dict.fromkeys(inputs))
        histories = {each.history: each.messages for each in inputs}
        for key, messages in histories.items():
            histories[key] = truncate_history(self.lm, messages, self.history_tokens)
        texts = list(dict.fromkeys(text for each in inputs for text in each.documents))
        short = dict(zip(texts, truncate_texts(self.lm, texts, self.document_tokens), strict=True))

        def chat(each: GenerationInput, cut: int) -> list[Message]:
            documents, history = [short[text] for text in each.documents], histories[each.history]
            kept, later = documents[: max(0, len(documents) - cut)], history[max(0, cut - len(documents)) :]
            return answer_messages(later, each.question, kept, instruction)

        chats = [(len(each.documents) + len(histories[each.history]), partial(chat, each)) for each in inputs]
        prompts = prompts_that_fit(self.lm, chats, room)
        return {each: (ids, min(cut, len(each.documents))) for each, (ids, cut) in zip(inputs, prompts, strict=True)}

    def answers(self, inputs: Sequence[GenerationInput]) -> list[GeneratedAnswer]:
        """Answer every input greedily, with the entropy and the log-probability of each token with documents and
        without them.

        Returns:
            One answer per input, in order. The lists of `stats` have the answer's length, without end-of-turn tokens.
        """
        room = self.max_new_tokens
        prompts = self.prompts(inputs, room)
        fitting = [each for each, (ids, _) in prompts.items() if len(ids) + room <= self.lm.context]
        outputs = generate(self.lm, [prompts[each][0] for each in fitting], room, self.batch_tokens)
        grounded = {each: output for each, (output,) in zip(fitting, outputs, strict=True)}
        bare = {each: (each.without_documents, tuple(out.ids)) for each, out in grounded.items() if out.ids}
        ungrounded = self._score(bare.values(), self.prompts([each for each, _ in bare.values()], room))
        answers = {}
        for each, (_, cut) in prompts.items():
            with_documents = grounded.get(each, Completion())
            answers[each] = self._answer(ungrounded.get(bare.get(each)), with_documents, with_documents.ids, cut)
        return [answers[each] for each in inputs]

    def logged_answers(self, tasks: Sequence[Task]) -> list[GeneratedAnswer]:
        """Score a given reply to each input, by teacher forcing, with documents and without them.

        Returns:
            One answer per task, in order. `stats` is empty where question and reply do not fit the context.
        """
        bare = [(each.without_documents, ids) for each, ids in tasks]
        every = [*tasks, *bare]
        prompts = self.prompts([each for each, _ in every], max((len(ids) for _, ids in tasks), default=0))
        scored = self._score(every, prompts)
        return [
            self._answer(scored.get(without), scored.get(task), task[1], prompts[task[0]][1])
            for task, without in zip(tasks, bare, strict=True)
        ]

    def score(self, tasks: Sequence[Task], room: int, instruction: str = ANSWER) -> list[Completion | None]:
        """Log-probability and entropy at the tokens of given answers, each to an input whose documents all fit.

        Args:
            tasks: inputs with the token ids of an answer to each, at least one; duplicates are scored once.
            room: tokens to leave for the longest answer.
            instruction: of the prompt.

        Returns:
            One for each task; None where the answer, or a document, does not fit the context.
        """
        prompts = self.prompts([each for each, _ in tasks], room, instruction)
        scored = self._score([task for task in tasks if not prompts[task[0]][1]], prompts)
        return [scored.get(task) for task in tasks]

    def samples(
        self, inputs: Sequence[GenerationInput], count: int, max_new_tokens: int, seed: int
    ) -> list[tuple[list[SampledAnswer], int]]:
        """Sample `count` answers to each of some distinct inputs. They depend on the seed and on the input alone.

        Returns:
            For each input the answers, and the number of documents that did not fit the context.
        """
        prompts = self.prompts(inputs, max_new_tokens)
        draws = [uniform_draws(seed, repr(each), count, max_new_tokens) for each in inputs]
        choose = sampler(torch.cat(draws).to(self.lm.device), temperature=1.0, top_p=1.0)
        ids = [prompts[each][0] for each in inputs]
        outputs = generate(self.lm, ids, max_new_tokens, self.batch_tokens, choose, count)
        answers = [
            [
                SampledAnswer(self._text(each.ids), fmean(each.logprobs) if each.logprobs else each.end_logprob)
                for each in completions
            ]
            for completions in outputs
        ]
        return [(sampled, prompts[each][1]) for each, sampled in zip(inputs, answers, strict=True)]

    def _score(self, tasks: Collection[Task], prompts: Prompts) -> dict[Task, Completion]:
        """Score the distinct tasks that fit the context."""
        fitting = [
            (each, ids) for each, ids in dict.fromkeys(tasks) if len(prompts[each][0]) + len(ids) <= self.lm.context
        ]
        outputs = score_completions(
            self.lm, [prompts[each][0] for each, _ in fitting], [list(ids) for _, ids in fitting], self.batch_tokens
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
