"""A run: its settings, its data sets, and the inputs that its stages share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from core.artifacts import read_json
from core.data_sources import DataSource, data_sources, with_pools
from core.distributed import process, wait_for_all
from core.errors import InputError
from core.model_spec import ModelSpec, generator_spec, rewriter_spec
from core.schema import validate
from core.settings import ROUND_STAGES, Settings
from retrieval.collection import Collection, open_collections
from rewriter.conversations import TurnSet, load_turns
from train.pool import make_pools
from train.tiny.world import make_quickstart_data
from train.tracking import RunTracker

RUN_FILE = "run.json"  # the command and the settings of a run
EVALUATION = "evaluation"


def stage_names(rounds: int) -> list[str]:
    """The names of all stages, in order."""
    names = [f"round-{n}/{name}" for n in range(1, rounds + 1) for name in ROUND_STAGES if n == 1 or name != "sft"]
    return [*names, EVALUATION]


def split_stage(stage: str) -> tuple[int, str]:
    """The round and the name of a stage, such as 1 and `pairs`; the evaluation has round 0."""
    prefix, _, name = stage.rpartition("/")
    return int(prefix.removeprefix("round-") or 0), name


@dataclass
class Run:
    """A run: its settings, its data sets, and the inputs that its stages share, loaded on first use."""

    settings: Settings
    sources: Sequence[DataSource]
    command: str = ""
    tracker: RunTracker | None = None

    @property
    def path(self) -> Path:
        return self.settings.run.path

    @cached_property
    def train_turns(self) -> TurnSet:
        return load_turns(self.sources, "train", self.settings.run.limit)

    @cached_property
    def test_turns(self) -> TurnSet:
        return load_turns(self.sources, self.settings.data.evaluate_on, self.settings.run.limit)

    @cached_property
    def collections(self) -> dict[str, Collection]:
        return open_collections(self.sources, self.settings.retrieval.cache, self.settings.data.on_bad)

    @property
    def base(self) -> ModelSpec:
        """The rewriter before training."""
        return rewriter_spec(self.settings.rewriter)

    @property
    def generator(self) -> ModelSpec:
        return generator_spec(self.settings.generator, self.settings.rewriter)

    def trained(self, stage: str) -> ModelSpec:
        """The rewriter with the adapter of a training stage."""
        return replace(self.base, adapter=str(self.path / stage / "adapter"))


def prepare_data(settings: Settings) -> list[DataSource]:
    """Open the data sets of a run; build the tiny world and the pooled collections if the settings need them.

    Raises:
        InputError: a file or collection is missing or invalid.
    """
    data, run_dir = settings.data, settings.run.path
    if data.format == "tiny_world" and process()[0] == 0:
        make_quickstart_data(run_dir / "data", data.world_seed)
    wait_for_all()
    sources = data_sources(data, run_dir)
    for source in sources:
        source.check_corpus()
    return make_pools(sources, settings) if data.pool else sources


def load_run_folder(run_dir: Path) -> Run:
    """Load a run of train/dpo.py, to read its results. Does not build or check its tiny world and its pools.

    Raises:
        InputError: the folder is not a run folder.
    """
    if not (run_dir / RUN_FILE).exists():
        raise InputError(f"{run_dir} is not a run folder: it has no {RUN_FILE}, which train/dpo.py writes.")
    values = read_json(run_dir / RUN_FILE, "command", "settings")
    settings = validate(Settings, values["settings"])
    settings.run.dir = str(run_dir)  # the folder may have been moved
    sources = data_sources(settings.data, run_dir)
    return Run(settings, with_pools(sources, run_dir) if settings.data.pool else sources, values["command"])
