"""Generation, and scoring of given completions, with the log-probability and the entropy of every token.

Transformers' `generate` keeps the logits of all steps if it is asked for them, and reads a prompt once per sample.
Here both figures are taken from the raw logits of a step as it appears, prompts that begin alike share the pass over
their common prefix, the samples of one prompt share its keys and values, and a sample depends on the seed and its
prompt alone, not on the rest of the batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from core.batching import PrefixGroup, group_by_prefix, run_batched
from core.kv_cache import new_cache
from core.language_model import LanguageModel

ROWS_IN_FLOAT32 = (1 << 22, 1 << 27)  # elements of logits converted to float32 at once, on a CPU and on a GPU
LOGITS_PER_PASS = (1 << 26, 1 << 28)  # elements of logits of one pass, on a CPU and on a GPU


@dataclass
class Completion:
    """A completion without its end-of-turn token.

    `logprobs` and `entropies` [tokens] describe the model's distribution before temperature and top-p, in nats.
    `ended` tells whether the model ended the turn itself; `end_logprob` is the log-probability of that token.
    """

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    ended: bool = False
    end_logprob: float = 0.0


TokenSampler = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Chooses next tokens: (log-probabilities [rows, vocabulary], steps [rows], row numbers [rows]) -> token ids [rows].
The choice of a row is independent of the rest of the batch."""


def greedy(logprobs: Tensor, steps: Tensor, numbers: Tensor) -> Tensor:
    """Choose the most likely token of each row."""
    return logprobs.argmax(-1)


def entropy(logprobs: Tensor) -> Tensor:
    """Entropy of each row of log-probabilities.

    Args:
        logprobs: [rows, vocabulary], float32.

    Returns:
        [rows] `H = -sum p log p` in nats; tokens of probability zero add 0 (arXiv 2601.23129, section 3).
    """
    return torch.special.entr(logprobs.exp()).sum(-1)


def token_logprobs_and_entropies(
    logits: Tensor, choose: Callable[[Tensor, slice], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose a token per row, and take its log-probability and the entropy of the row, in float32.

    Args:
        logits: [rows, vocabulary], raw, of any dtype; a few rows are converted at a time.
        choose: (log-probabilities [part, vocabulary], slice of the rows) -> token ids [part].

    Returns:
        Token ids, log-probabilities and entropies, each [rows].
    """
    size = max(1, ROWS_IN_FLOAT32[logits.is_cuda] // logits.shape[-1])
    parts = []
    for start in range(0, len(logits), size):
        rows = slice(start, start + size)
        logprobs = logits[rows].float().log_softmax(-1)
        tokens = choose(logprobs, rows)
        parts.append((tokens, logprobs.gather(-1, tokens[:, None])[:, 0], entropy(logprobs)))
    tokens, logprobs, entropies = map(torch.cat, zip(*parts, strict=True))
    return tokens, logprobs, entropies


@torch.inference_mode()
def generate(
    lm: LanguageModel,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    batch_tokens: int,
    choose: TokenSampler = greedy,
    samples: int = 1,
) -> list[list[Completion]]:
    """Continue each prompt.

    The samples of a prompt are branches of one row: they share its keys and values, and a 4D attention mask hides
    them from each other. Where a model takes no such mask, the prompt is repeated, and its pass shared.

    Args:
        lm: the model.
        prompts: token ids of each prompt, of any lengths; with `max_new_tokens` they must fit the model's context.
        max_new_tokens: longest completion.
        batch_tokens: most tokens of a batch, completions included.
        choose: chooses the next tokens; row numbers are `prompt * samples + sample`.
        samples: completions per prompt.

    Returns:
        `samples` completions for each prompt.

    Raises:
        InputError: a prompt alone does not fit in memory.
    """
    if samples > 1 and not lm.takes_4d_masks:
        repeated = [prompt for prompt in prompts for _ in range(samples)]
        rows = [completion for (completion,) in generate(lm, repeated, max_new_tokens, batch_tokens, choose)]
        return [rows[i * samples : (i + 1) * samples] for i in range(len(prompts))]
    completions = [[Completion() for _ in range(samples)] for _ in prompts]
    lengths = [len(prompt) + samples * max_new_tokens for prompt in prompts]

    def process(batch: list[PrefixGroup]) -> None:
        members = [i for group in batch for i in group.members]
        rows = [[SequenceState(i * samples + sample) for sample in range(samples)] for i in members]
        _decode(lm, batch, prompts, rows, max_new_tokens, choose)
        for i, row in zip(members, rows, strict=True):
            completions[i] = [state.completion for state in row]

    limits = [len(prompt) - 1 for prompt in prompts]
    run_batched(_groups(lm, prompts, limits, lengths), lengths, batch_tokens, process)
    return completions


@torch.inference_mode()
def score_completions(
    lm: LanguageModel, prompts: Sequence[list[int]], completions: Sequence[list[int]], batch_tokens: int
) -> list[Completion]:
    """Log-probability and entropy at each token of given completions, by teacher forcing.

    Args:
        lm: the model.
        prompts: token ids of the prompt of each completion; what prompts share at their beginnings is read once.
        completions: token ids, at least one each.
        batch_tokens: most tokens of a batch.

    Returns:
        For each completion its `logprobs` and `entropies`. Logits are computed at its tokens only.

    Raises:
        InputError: a prompt alone does not fit in memory.
    """
    scored = [Completion(ids) for ids in completions]
    sequences = [prompt + ids[:-1] for prompt, ids in zip(prompts, completions, strict=True)]
    limits = [len(prompt) - 1 for prompt in prompts]

    def process(batch: list[PrefixGroup]) -> None:
        members = [i for group in batch for i in group.members]
        kept = max(len(completions[i]) for i in members)
        _, _, logits = _prefill(lm, batch, sequences, kept)
        rows = [row for row, i in enumerate(members) for _ in completions[i]]
        columns = [column for i in members for column in range(kept - len(completions[i]), kept)]
        tokens = torch.tensor([token for i in members for token in completions[i]], device=lm.device)
        _, logprobs, entropies = token_logprobs_and_entropies(logits[rows, columns], lambda _, part: tokens[part])
        logprobs, entropies = logprobs.tolist(), entropies.tolist()
        start = 0
        for i in members:
            end = start + len(completions[i])
            scored[i].logprobs, scored[i].entropies = logprobs[start:end], entropies[start:end]
            start = end

    # A row counts as at least its share of the logits that one pass may hold.
    logits_per_token = lm.model.config.get_text_config().vocab_size * batch_tokens / LOGITS_PER_PASS[lm.on_gpu]
    lengths = [
        max(len(sequence), int(len(ids) * logits_per_token))
        for sequence, ids in zip(sequences, completions, strict=True)
    ]
    run_batched(_groups(lm, sequences, limits, [len(s) for s in sequences]), lengths, batch_tokens, process)
    return scored


@dataclass
class SequenceState:
    """A completion in progress. `number` identifies it to the sampler."""

    number: int
    running: bool = True
    completion: Completion = field(default_factory=Completion)

    def append(self, token: int, logprob: float, entropy: float, ends: bool) -> None:
        """Add the next token, or end the completion."""
        if ends:
            self.running, self.completion.ended, self.completion.end_logprob = False, True, logprob
            return
        self.completion.ids.append(token)
        self.completion.logprobs.append(logprob)
        self.completion.entropies.append(entropy)


def _groups(
    lm: LanguageModel, sequences: Sequence[list[int]], limits: Sequence[int], lengths: Sequence[int]
) -> list[PrefixGroup]:
    """Groups that share a prefix; none where padding could fill a sliding window."""
    window = lm.sliding_window
    if window is not None and window < 2 * max(lengths, default=0):
        return [PrefixGroup(0, (i,)) for i in range(len(sequences))]
    return group_by_prefix(sequences, limits)


def _prefill(
    lm: LanguageModel, batch: list[PrefixGroup], sequences: Sequence[list[int]], kept: int
) -> tuple[Cache, Tensor, Tensor]:
    """Read sequences: the prefix of each group once, then what follows it in each member.

    Prefixes are padded on the right, where no token sees the padding; what follows is padded on the left, so that
    all sequences end in the last column.

    Returns:
        The cache; which of its slots each sequence sees, [sequences, slots]; the logits of the last `kept` columns,
        [sequences, kept, vocabulary].
    """
    cache, pad = new_cache(lm.model), lm.tokenizer.pad_token_id
    prefixes = [sequences[group.members[0]][: group.prefix_length] for group in batch]
    width = max(map(len, prefixes))
    group_of_row = torch.tensor([number for number, group in enumerate(batch) for _ in group.members])
    if width:
        ids = torch.tensor([prefix + [pad] * (width - len(prefix)) for prefix in prefixes], device=lm.device)
        lm.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        if len(group_of_row) > len(batch):
            cache.batch_select_indices(group_of_row.to(lm.device))
    prefix_lengths = torch.tensor([len(prefix) for prefix in prefixes])[group_of_row, None]
    suffixes = [sequences[i][group.prefix_length :] for group in batch for i in group.members]
    length = max(map(len, suffixes))
    ids = torch.tensor([[pad] * (length - len(suffix)) + suffix for suffix in suffixes], device=lm.device)
    real = torch.tensor([[False] * (length - len(suffix)) + [True] * len(suffix) for suffix in suffixes])
    positions = (prefix_lengths + real.cumsum(-1) - 1).clamp(min=0)
    visible = torch.cat([torch.arange(width) < prefix_lengths, real], -1).to(lm.device)
    output = lm.model(
        input_ids=ids,
        attention_mask=visible.long(),
        position_ids=positions.to(lm.device),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=kept,
    )
    return cache, visible, output.logits


def _decode(
    lm: LanguageModel,
    batch: list[PrefixGroup],
    prompts: Sequence[list[int]],
    rows: list[list[SequenceState]],
    max_new_tokens: int,
    choose: TokenSampler,
) -> None:
    """Decode a batch: a row of samples for each prompt, in the order of the groups' members."""
    cache, visible, logits = _prefill(lm, batch, prompts, 1)
    stop_ids, samples = set(lm.stop_ids), len(rows[0])
    visible = visible[:, None].expand(-1, samples, -1)  # [rows, samples, slots]
    lengths = torch.tensor([len(prompts[i]) for group in batch for i in group.members], device=lm.device)
    running = [list(enumerate(row)) for row in rows]  # (sample, state) of those that have not ended
    columns = [[0] * samples for _ in rows]  # of the logits, for each of them
    for step in range(max_new_tokens):
        states = [state for row in running for _, state in row]
        numbers = torch.tensor([state.number for state in states], device=lm.device)
        steps = torch.full_like(numbers, step)
        picked = logits[[r for r, row in enumerate(columns) for _ in row], [c for row in columns for c in row]]
        facts = token_logprobs_and_entropies(
            picked, lambda logprobs, part, steps=steps, numbers=numbers: choose(logprobs, steps[part], numbers[part])
        )
        for state, token, logprob, token_entropy in zip(states, *(fact.tolist() for fact in facts), strict=True):
            state.append(token, logprob, token_entropy, token in stop_ids)
        running = [[(sample, state) for sample, state in row if state.running] for row in running]
        if step + 1 == max_new_tokens or not any(running):
            return
        kept = [r for r, row in enumerate(running) if row]
        if len(kept) <= 0.75 * len(running):
            index = torch.tensor(kept, device=lm.device)
            cache.batch_select_indices(index)
            visible, lengths, running = visible[index], lengths[index], [running[r] for r in kept]
        width = max(map(len, running))
        columns = [list(range(len(row))) for row in running]
        ids, sample_of, real = (torch.zeros(len(running), width, dtype=torch.long) for _ in range(3))
        for r, row in enumerate(running):
            for c, (sample, state) in enumerate(row):
                ids[r, c], sample_of[r, c], real[r, c] = state.completion.ids[-1], sample, 1
        ids, sample_of, real = ids.to(lm.device), sample_of.to(lm.device), real.to(lm.device)
        own = (sample_of[:, None] == torch.arange(samples, device=lm.device)[:, None]) & real[:, None].bool()
        visible = torch.cat([visible, own], -1)
        if samples == 1:
            mask = visible[:, 0].long()
        else:
            seen = visible.gather(1, sample_of[..., None].expand(-1, -1, visible.shape[-1]))
            mask = torch.zeros(seen.shape, dtype=lm.model.dtype, device=lm.device)
            mask = mask.masked_fill(~seen, torch.finfo(mask.dtype).min)[:, None]
        logits = lm.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(lengths[:, None] + step).expand(-1, width),
            past_key_values=cache,
            use_cache=True,
        ).logits
