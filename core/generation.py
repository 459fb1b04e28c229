"""Generation, and scoring of given completions, with the log-probability and the entropy of every token.

Transformers' `generate` can return logits, but then keeps those of all steps, and it processes a prompt once per
sample. Here, log-probability and entropy are computed from the raw logits at each step. Prompts with a common prefix
share one forward pass over it, and the samples of a prompt share its keys and values. A sample depends only on its
seed and prompt, not on the rest of the batch.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import Cache

from core.batching import PrefixGroup, run_batched
from core.kv_cache import new_cache
from core.language_model import LanguageModel
from core.sampling import TokenSampler, greedy

# By type of device; the default is for a CPU.
FLOAT32_ELEMENTS = defaultdict(lambda: 1 << 22, cuda=1 << 27)  # elements of logits converted to float32 at once
LOGIT_ELEMENTS_PER_PASS = defaultdict(lambda: 1 << 26, cuda=1 << 28)  # elements of the logits of one forward pass
COMPACT_BELOW = 0.75  # finished prompts are removed from a batch when at most this share of its prompts is left


@dataclass
class Completion:
    """A completion without its end-of-turn token.

    `logprobs` and `entropies` [tokens] describe the model's distribution before temperature and top-p, in nats.
    `ended` is True if the model generated an end-of-turn token; `end_logprob` is the log-probability of that token.
    `score_completions` sets neither.
    """

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    ended: bool = False
    end_logprob: float = 0.0

    def append(self, token: int, logprob: float, entropy: float, stop_ids: set[int]) -> None:
        """Add the next token, or end the completion."""
        if token in stop_ids:
            self.ended, self.end_logprob = True, logprob
        else:
            self.ids.append(token)
            self.logprobs.append(logprob)
            self.entropies.append(entropy)


def entropy(logprobs: Tensor) -> Tensor:
    """Entropy `H = -sum p log p` (arXiv 2601.23129, section 3) [rows], in nats, of log-probabilities
    [rows, vocabulary]. Tokens with probability zero add 0."""
    return torch.special.entr(logprobs.exp()).sum(-1)


def choose_tokens(
    logits: Tensor, pick: Callable[[Tensor, slice], Tensor]
) -> tuple[list[int], list[float], list[float]]:
    """Choose a token for each row of raw logits [rows, vocabulary]; return ids, their log-probabilities and entropies.

    `pick` maps the float32 log-probabilities of a few rows, and the slice of these rows, to token ids.
    """
    rows_per_part = max(1, FLOAT32_ELEMENTS[logits.device.type] // logits.shape[-1])
    parts = []
    for start in range(0, len(logits), rows_per_part):
        rows = slice(start, start + rows_per_part)
        logprobs = logits[rows].float().log_softmax(-1)
        tokens = pick(logprobs, rows)
        parts.append((tokens, logprobs.gather(-1, tokens[:, None])[:, 0], entropy(logprobs)))
    return tuple(torch.cat(column).tolist() for column in zip(*parts, strict=True))


@torch.inference_mode()
def generate(
    lm: LanguageModel,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    batch_tokens: int,
    choose: TokenSampler = greedy,
    samples: int = 1,
) -> list[list[Completion]]:
    """Generate completions for each prompt.

    The samples of a prompt share one row of the cache and the keys and values of the prompt; a 4D attention mask hides
    them from each other. If the model does not support such masks, the prompt is repeated, and its prefill is shared.

    Args:
        lm: the model.
        prompts: token ids of each prompt, of any length; with `max_new_tokens` they must fit the model's context.
        max_new_tokens: maximum length of a completion.
        batch_tokens: maximum tokens of a batch, including completions.
        choose: chooses the next tokens; sample numbers are `prompt * samples + sample`.
        samples: completions per prompt.

    Returns:
        `samples` completions for each prompt.

    Raises:
        InputError: a single prompt does not fit in memory.
    """
    if samples > 1 and not lm.takes_4d_masks:
        repeated = [prompt for prompt in prompts for _ in range(samples)]
        outputs = [completion for (completion,) in generate(lm, repeated, max_new_tokens, batch_tokens, choose)]
        return [outputs[i * samples : (i + 1) * samples] for i in range(len(prompts))]
    completions: dict[int, list[Completion]] = {}

    def process(batch: list[PrefixGroup]) -> None:
        completions.update(_decode(lm, batch, prompts, max_new_tokens, choose, samples))

    lengths = [len(prompt) + samples * max_new_tokens for prompt in prompts]
    _run_within_limit(lm, prompts, _prefix_limits(lm, prompts, lengths), lengths, batch_tokens, process)
    return [completions[i] for i in range(len(prompts))]


@torch.inference_mode()
def score_completions(
    lm: LanguageModel, prompts: Sequence[list[int]], completions: Sequence[list[int]], batch_tokens: int
) -> list[Completion]:
    """Compute the log-probability and entropy at each token of given completions, by teacher forcing.

    Args:
        lm: the model.
        prompts: token ids of the prompt of each completion; a common prefix of prompts is processed once.
        completions: token ids, at least one each.
        batch_tokens: maximum tokens of a batch.

    Returns:
        The `logprobs` and `entropies` of each completion. Logits are computed only at its tokens.

    Raises:
        InputError: a single prompt does not fit in memory.
    """
    scored = [Completion(list(ids)) for ids in completions]
    sequences = [prompt + ids[:-1] for prompt, ids in zip(prompts, completions, strict=True)]

    def process(batch: list[PrefixGroup]) -> None:
        members = [i for group in batch for i in group.members]
        longest = max(len(completions[i]) for i in members)
        _, _, logits = _prefill(lm, batch, sequences, longest)
        rows = [row for row, i in enumerate(members) for _ in completions[i]]
        columns = [column for i in members for column in range(longest - len(completions[i]), longest)]
        tokens = torch.tensor([token for i in members for token in completions[i]], device=lm.device)
        _, logprobs, entropies = choose_tokens(logits[rows, columns], lambda _, part: tokens[part])
        values = iter(zip(logprobs, entropies, strict=True))
        for i in members:
            scored[i].logprobs, scored[i].entropies = map(list, zip(*islice(values, len(completions[i])), strict=True))

    # Long completions cost more than their tokens, so that a batch has at most `LOGIT_ELEMENTS_PER_PASS` logits.
    vocabulary = lm.model.config.get_text_config().vocab_size
    token_cost = vocabulary * batch_tokens / LOGIT_ELEMENTS_PER_PASS[lm.device.type]
    costs = [max(len(s), int(len(ids) * token_cost)) for s, ids in zip(sequences, completions, strict=True)]
    limits = _prefix_limits(lm, prompts, [len(sequence) for sequence in sequences])
    _run_within_limit(lm, sequences, limits, costs, batch_tokens, process)
    return scored


def _run_within_limit(
    lm: LanguageModel,
    sequences: Sequence[list[int]],
    limits: Sequence[int],
    costs: Sequence[int],
    batch_tokens: int,
    process: Callable[[list[PrefixGroup]], None],
) -> None:
    """Call `run_batched` with at most `lm.batch_limit` tokens. If a batch does not fit in memory, `lm.batch_limit`
    remembers the budget that did."""
    budget = min(batch_tokens, lm.batch_limit or batch_tokens)
    fitting = run_batched(sequences, limits, costs, budget, process)
    if fitting < budget:
        lm.batch_limit = fitting


def _prefix_limits(lm: LanguageModel, prompts: Sequence[list[int]], lengths: Sequence[int]) -> list[int]:
    """Maximum length of the shared prefix of each prompt; 0 if padding could fill a sliding window: padded prefixes
    and padded suffixes are each at most as long as the longest sequence."""
    if lm.sliding_window is not None and lm.sliding_window < 2 * max(lengths, default=0):
        return [0] * len(prompts)
    return [len(prompt) - 1 for prompt in prompts]


def _padded(rows: Sequence[list[int]], value: int = 0, side: str = "right") -> Tensor:
    """Integers padded to a tensor [rows, longest row]."""
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=value, padding_side=side)


def _prefill(
    lm: LanguageModel, batch: list[PrefixGroup], sequences: Sequence[list[int]], output_columns: int
) -> tuple[Cache, Tensor, Tensor]:
    """Run the model on sequences: once on the prefix of each group, then on the suffix of each member.

    Prefixes are padded on the right, where no token sees the padding; suffixes are padded on the left, so that all
    sequences end in the last column.

    Args:
        lm: the model.
        batch: groups of sequences with a common prefix.
        sequences: token ids; `batch` contains positions in this list.
        output_columns: number of last columns whose logits are returned.

    Returns:
        The cache; the mask of the slots that each sequence sees, [sequences, slots]; the logits of the last columns,
        [sequences, output_columns, vocabulary].
    """
    cache, pad = new_cache(lm.model), lm.tokenizer.pad_token_id
    prefixes = _padded([sequences[group.members[0]][: group.prefix_length] for group in batch], pad)
    group_of_row = torch.tensor([number for number, group in enumerate(batch) for _ in group.members])
    if prefixes.shape[1]:
        lm.model(input_ids=prefixes.to(lm.device), past_key_values=cache, use_cache=True, logits_to_keep=1)
        if len(group_of_row) > len(batch):
            cache.batch_select_indices(group_of_row)  # indices on the CPU: layers may be on several GPUs
    prefix_lengths = torch.tensor([group.prefix_length for group in batch])[group_of_row, None]
    suffixes = [sequences[i][group.prefix_length :] for group in batch for i in group.members]
    real = _padded([[1] * len(suffix) for suffix in suffixes], side="left").bool()
    positions = (prefix_lengths + real.cumsum(-1) - 1).clamp(min=0)
    visible = torch.cat([torch.arange(prefixes.shape[1]) < prefix_lengths, real], -1).to(lm.device)
    output = lm.model(
        input_ids=_padded(suffixes, pad, "left").to(lm.device),
        attention_mask=visible.long(),
        position_ids=positions.to(lm.device),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=output_columns,
    )
    return cache, visible, output.logits


def _decode(
    lm: LanguageModel,
    batch: list[PrefixGroup],
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    choose: TokenSampler,
    samples: int,
) -> dict[int, list[Completion]]:
    """Decode a batch, with one row of the cache per prompt; returns prompt number -> completions."""
    cache, visible, logits = _prefill(lm, batch, prompts, 1)
    visible = visible[:, None].expand(-1, samples, -1)  # [rows, samples, slots]
    members = [i for group in batch for i in group.members]
    lengths = torch.tensor([[len(prompts[i])] for i in members], device=lm.device)
    completions = {i: [Completion() for _ in range(samples)] for i in members}
    running = [list(range(samples)) for _ in members]  # samples of each row that have not ended
    stop_ids = set(lm.stop_ids)
    for step in range(max_new_tokens):
        active = [(i, sample) for i, row in zip(members, running, strict=True) for sample in row]
        sample_numbers = torch.tensor([i * samples + sample for i, sample in active], device=lm.device)
        rows = [r for r, row in enumerate(running) for _ in row]
        # In step 0, the samples of a prompt share the single column of the prefill.
        columns = [column if step else 0 for row in running for column in range(len(row))]
        results = choose_tokens(
            logits[rows, columns],
            lambda logprobs, part, step=step, numbers=sample_numbers: choose(logprobs, step, numbers[part]),
        )
        for (i, sample), result in zip(active, zip(*results, strict=True), strict=True):
            completions[i][sample].append(*result, stop_ids)
        running = [
            [sample for sample in row if not completions[i][sample].ended]
            for i, row in zip(members, running, strict=True)
        ]
        if step + 1 == max_new_tokens or not any(running):
            break
        kept = [r for r, row in enumerate(running) if row]
        if len(kept) <= COMPACT_BELOW * len(running):
            index = torch.tensor(kept)  # on the CPU, as in `_prefill`
            cache.batch_select_indices(index)
            visible, lengths = visible[index], lengths[index]
            members, running = [members[r] for r in kept], [running[r] for r in kept]
        last = [[completions[i][sample].ids[-1] for sample in row] for i, row in zip(members, running, strict=True)]
        ids, sample_of = _padded(last).to(lm.device), _padded(running, -1).to(lm.device)  # [rows, columns]
        own = sample_of[:, None] == torch.arange(samples, device=lm.device)[:, None]
        visible = torch.cat([visible, own], -1)
        logits = lm.model(
            input_ids=ids,
            attention_mask=_attention_mask(visible, sample_of, lm.model.dtype),
            position_ids=(lengths + step).expand(-1, ids.shape[1]),
            past_key_values=cache,
            use_cache=True,
        ).logits
    return completions


def _attention_mask(visible: Tensor, sample_of: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask of a decoding step, [rows, slots] with one sample per prompt, else [rows, 1, columns, slots], from the
    slots that each sample sees [rows, samples, slots] and the sample of each token [rows, columns] (-1: padding)."""
    if visible.shape[1] == 1:
        return visible[:, 0].long()
    seen = visible.gather(1, sample_of.clamp(min=0)[..., None].expand(-1, -1, visible.shape[-1]))
    mask = torch.zeros(seen.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill(~seen, torch.finfo(dtype).min)[:, None]
