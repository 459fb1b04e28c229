"""Build the document lists that `scoring.validity` compares: with and without a relevant document, and with random or
retrieved distractors."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.data_sources import SPLITS, data_sources
from core.errors import InputError
from core.progress import log
from core.records import GenerationInput, RewardInput, Turn
from core.settings import Settings
from retrieval.collection import Collection, open_collections
from retrieval.engines import PerDatasetRetriever
from rewriter.conversations import load_turns
from scoring.items import parse_item


@dataclass(frozen=True)
class Case:
    """A question of a turn or item, and its document lists by name."""

    id: str
    lists: dict[str, RewardInput]


def gold_and_without(
    relevant: set[str], hits: Sequence[str], k: int, rng: random.Random
) -> tuple[list[str], list[str]]:
    """Build two lists of k documents from the same retrieved documents, one with and one without a gold document.

    Args:
        relevant: ids of the gold documents.
        hits: retrieved ids in rank order; at least one is not relevant.
        k: length of the lists; they are shorter if `hits` has fewer documents that are not relevant.
        rng: draws the gold document and its position.
    """
    others = [doc for doc in hits if doc not in relevant][:k]
    k = len(others)
    place = rng.randrange(k)
    return [*others[:place], rng.choice(sorted(relevant)), *others[place : k - 1]], others


def build_cases(
    turns: Sequence[Turn], collections: Mapping[str, Collection], settings: Settings, seed: int
) -> list[Case]:
    """Build four lists for each turn with a gold document.

    `gold` has one gold document among retrieved ones and `without` has none; `random` and `retrieved` have one gold
    document and 4 distractors of that kind. The query is the turn's `rewrite`, or its question if it has no rewrite.

    Raises:
        InputError: no turn has a relevant document in the collection, or the collection has no other document.
    """
    rng = random.Random(seed)
    judged = [turn for turn in turns if any(doc in collections[turn.dataset] for doc in turn.gold)]
    if not judged:
        raise InputError("no turn has a `relevant` document in the collection.")
    queries = [(turn.dataset, turn.rewrite or turn.question) for turn in judged]
    hits = PerDatasetRetriever(settings.retrieval, collections).search(queries, 50)
    cases = []
    for turn, ranked in zip(judged, hits, strict=True):
        collection = collections[turn.dataset]
        relevant = set(turn.gold)
        retrieved = [hit.doc for hit in ranked]
        drawn = collection.ids(rng.sample(range(len(collection)), min(len(collection), 60)))
        spare = [doc for doc in drawn if doc not in relevant | set(retrieved)]
        gold = rng.choice(sorted(doc for doc in relevant if doc in collection))
        others = [doc for doc in retrieved if doc not in relevant]
        others += spare[len(others) :] if len(others) < 4 else []
        if not others:
            continue
        with_gold, without = gold_and_without({gold}, others, settings.retrieval.k, rng)
        lists = {
            "gold": with_gold,
            "without": without,
            "random": [gold, *spare[:4]],
            "retrieved": [gold, *others[:4]],
        }
        inputs = {
            name: RewardInput(
                GenerationInput.of(turn.history, turn.question, collection.contents(docs)),
                tuple(doc in relevant for doc in docs),
                turn.answers,
                reply=turn.logged_reply,
            )
            for name, docs in lists.items()
        }
        cases.append(Case(turn.id, inputs))
    if not cases:
        raise InputError("the collection has no documents other than the relevant ones of a turn.")
    return cases


def cases_of_items(items: Sequence[dict[str, Any]], seed: int) -> list[Case]:
    """Build two lists for each item with both kinds of passages: `gold` has one relevant passage, `without` none.

    Raises:
        InputError: no item has both a relevant passage and another one.
    """
    rng, cases = random.Random(seed), []
    for number, item in enumerate(items):
        gold = [passage for passage in item["passages"] if passage["is_relevant"]]
        others = [passage for passage in item["passages"] if not passage["is_relevant"]]
        if gold and others:
            place = rng.randrange(len(others))
            lists = {"gold": [*others[:place], gold[0], *others[place:-1]], "without": others}
            inputs = {
                name: parse_item(item | {"passages": passages}, f"item {number}", "validity").reward_input
                for name, passages in lists.items()
            }
            cases.append(Case(f"item {number}", inputs))
    if not cases:
        raise InputError("no item has both a passage with `is_relevant` true and a passage with `is_relevant` false.")
    if len(cases) < len(items):
        skipped = len(items) - len(cases)
        log.warning("skipped %d of %d items: all their passages are relevant, or none is", skipped, len(items))
    return cases


def labelled_turns(settings: Settings, limit: int | None) -> tuple[list[Turn], dict[str, Collection]]:
    """The labelled training turns, or else the labelled test turns, and the collections.

    Raises:
        InputError: no turn has relevant documents.
    """
    sources = data_sources(settings.data, settings.run.path)
    for split in SPLITS:
        if any(source.has(split) for source in sources):
            turns = [turn for turn in load_turns(sources, split, limit) if turn.relevant]
            if turns:
                return turns, open_collections(sources, settings.retrieval.cache, settings.data.on_bad)
    raise InputError("neither `data.train` nor `data.test` has turns with `relevant` documents.")
