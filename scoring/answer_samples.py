"""Answers sampled from the generator, from which Delta-SePer takes its belief."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean

import torch

from core.generation import generate
from core.records import GenerationInput, SampledAnswer
from rewriter.sampling import sampler, uniform_draws
from scoring.generator import Generator


@dataclass
class AnswerSampler:
    """Samples answers; an input is sampled once, and its samples depend on the seed and on the input alone.

    Args:
        generator: the model.
        samples: answers per input.
        max_new_tokens: longest answer.
        seed: of the samples.
    """

    generator: Generator
    samples: int
    max_new_tokens: int
    seed: int
    _answers: dict[GenerationInput, list[SampledAnswer]] = field(default_factory=dict)
    _cut: dict[GenerationInput, int] = field(default_factory=dict)

    def sample(self, inputs: Iterable[GenerationInput]) -> None:
        """Sample the answers of inputs that are new."""
        new = [each for each in dict.fromkeys(inputs) if each not in self._answers]
        if not new:
            return
        lm = self.generator.lm
        prompts = self.generator.prompts(new, self.max_new_tokens)
        draws = [uniform_draws(self.seed, repr(each), self.samples, self.max_new_tokens) for each in new]
        choose = sampler(torch.cat(draws).to(lm.device), temperature=1.0, top_p=1.0)
        outputs = generate(
            lm, [ids for ids, _ in prompts], self.max_new_tokens, self.generator.batch_tokens, choose, self.samples
        )
        for each, (_, cut), completions in zip(new, prompts, outputs, strict=True):
            self._cut[each] = cut
            self._answers[each] = [
                SampledAnswer(
                    lm.tokenizer.decode(completion.ids, skip_special_tokens=True).strip(),
                    fmean(completion.logprobs) if completion.logprobs else completion.end_logprob,
                )
                for completion in completions
            ]

    def answers(self, generation_input: GenerationInput) -> list[SampledAnswer]:
        """The samples of an input that `sample` has seen."""
        return self._answers[generation_input]

    def cut(self, generation_input: GenerationInput) -> int:
        """How many of its documents did not fit the context."""
        return self._cut[generation_input]
