"""The generator's passes: it answers with documents, and an answer is scored with documents and without them.

Duplicates are computed once: a (question, document list) when answering, a (question, answer) when scoring.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core.chat import prompts_that_fit, truncate_history, truncate_texts
from core.generation import Completion, generate, score_completions
from core.language_model import LanguageModel
from core.records import GeneratedAnswer, GenerationInput, Message, TokenStats
from core.settings import GeneratorSettings
from scoring.prompts import ANSWER, answer_messages


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

    def prompts(
        self, inputs: Sequence[GenerationInput], room: int, instruction: str = ANSWER
    ) -> list[tuple[list[int], int]]:
        """Prompt token ids that leave `room` tokens of the context free.

        Where a prompt is too long, documents are left out from the last one back, then messages from the oldest on.
        The question is never cut.

        Returns:
            For each input the ids and the number of documents left out.
        """
        histories = {each.history: each.messages for each in inputs}
        for key, messages in histories.items():
            histories[key] = truncate_history(self.lm, messages, self.history_tokens)
        texts = list(dict.fromkeys(text for each in inputs for text in each.documents))
        short = dict(zip(texts, truncate_texts(self.lm, texts, self.document_tokens), strict=True))

        def chat_of(each: GenerationInput) -> Callable[[int], list[Message] | None]:
            documents, history = [short[text] for text in each.documents], histories[each.history]

            def chat(cut: int) -> list[Message] | None:
                if cut > len(documents) + len(history):
                    return None
                kept, later = documents[: max(0, len(documents) - cut)], history[max(0, cut - len(documents)) :]
                return answer_messages(later, each.question, kept, instruction)

            return chat

        prompts = prompts_that_fit(self.lm, [chat_of(each) for each in inputs], room)
        return [(ids, min(cut, len(each.documents))) for each, (ids, cut) in zip(inputs, prompts, strict=True)]

    def answers(self, inputs: Sequence[GenerationInput]) -> list[GeneratedAnswer]:
        """Answer every input greedily, with the entropy and the log-probability of each token with documents and
        without them.

        Args:
            inputs: what to answer; duplicates are answered once.

        Returns:
            One answer per input, in order. The lists of `stats` have the answer's length, without end-of-turn tokens.
        """
        distinct = list(dict.fromkeys(inputs))
        prompts = self.prompts(distinct, self.max_new_tokens)
        fitting = [i for i, (ids, _) in enumerate(prompts) if len(ids) + self.max_new_tokens <= self.lm.context]
        outputs = generate(self.lm, [prompts[i][0] for i in fitting], self.max_new_tokens, self.batch_tokens)
        grounded = {distinct[i]: output for i, (output,) in zip(fitting, outputs, strict=True)}
        answered = [(each, tuple(output.ids)) for each, output in grounded.items() if output.ids]
        ungrounded = dict(
            zip(
                answered,
                self.score([(each.without_documents, ids) for each, ids in answered], self.max_new_tokens),
                strict=True,
            )
        )
        answers = {}
        for each, (_, cut) in zip(distinct, prompts, strict=True):
            with_documents = grounded.get(each) or Completion()
            without = ungrounded.get((each, tuple(with_documents.ids))) or Completion()
            answers[each] = self._answer(with_documents.ids, without, with_documents, cut)
        return [answers[each] for each in inputs]

    def logged_answers(
        self, inputs: Sequence[GenerationInput], replies: Sequence[Sequence[int]]
    ) -> list[GeneratedAnswer]:
        """Score a given reply to each input, by teacher forcing, with documents and without them.

        Args:
            inputs: what is answered.
            replies: token ids of the reply to each, at least one.

        Returns:
            One answer per input, in order. `stats` is empty where question and reply do not fit the context.
        """
        tasks = list(zip(inputs, map(tuple, replies), strict=True))
        bare = [(each.without_documents, ids) for each, ids in tasks]
        prompts = self._distinct_prompts([*tasks, *bare], max(map(len, replies), default=0), ANSWER)
        scored = self._score([*tasks, *bare], prompts)
        return [
            self._answer(
                list(ids),
                scored.get(without, Completion()),
                scored.get((each, ids), Completion()),
                prompts[each][1],
            )
            for (each, ids), without in zip(tasks, bare, strict=True)
        ]

    def score(
        self, tasks: Sequence[tuple[GenerationInput, tuple[int, ...]]], room: int, instruction: str = ANSWER
    ) -> list[Completion | None]:
        """Log-probability and entropy at the tokens of given answers, each to an input whose documents all fit.

        Args:
            tasks: inputs with the token ids of an answer to each, at least one; duplicates are scored once.
            room: tokens to leave for the longest answer.
            instruction: of the prompt.

        Returns:
            One for each task; None where the answer, or a document, does not fit the context.
        """
        prompts = self._distinct_prompts(tasks, room, instruction)
        scored = self._score([task for task in tasks if not prompts[task[0]][1]], prompts)
        return [scored.get(task) for task in tasks]

    def _distinct_prompts(
        self, tasks: Sequence[tuple[GenerationInput, tuple[int, ...]]], room: int, instruction: str
    ) -> dict[GenerationInput, tuple[list[int], int]]:
        inputs = list(dict.fromkeys(each for each, _ in tasks))
        return dict(zip(inputs, self.prompts(inputs, room, instruction), strict=True))

    def _score(
        self,
        tasks: Sequence[tuple[GenerationInput, tuple[int, ...]]],
        prompts: dict[GenerationInput, tuple[list[int], int]],
    ) -> dict[tuple[GenerationInput, tuple[int, ...]], Completion]:
        """Score the distinct tasks that fit the context."""
        fitting = [
            (each, ids) for each, ids in dict.fromkeys(tasks) if len(prompts[each][0]) + len(ids) <= self.lm.context
        ]
        outputs = score_completions(
            self.lm, [prompts[each][0] for each, _ in fitting], [list(ids) for _, ids in fitting], self.batch_tokens
        )
        return dict(zip(fitting, outputs, strict=True))

    def _answer(self, ids: list[int], without: Completion, with_documents: Completion, cut: int) -> GeneratedAnswer:
        stats = TokenStats(
            tokens=tuple(self.lm.tokenizer.decode([token]) for token in ids),
            h0=tuple(without.entropies),
            hd=tuple(with_documents.entropies),
            logp0=tuple(without.logprobs),
            logpd=tuple(with_documents.logprobs),
        )
        text = self.lm.tokenizer.decode(ids, skip_special_tokens=True).strip()
        return GeneratedAnswer(text, stats, cut, with_documents.ended)
