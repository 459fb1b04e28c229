"""Shared fixtures: small random models made from config, and the real data beside the project where they are."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data for tests; not part of the project."""
    if not SHARED.is_dir():
        pytest.skip(f"real test data are not at {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def random_llama(tmp_path_factory) -> Path:
    """A random Llama with the tiny world's tokenizer and chat template, saved as safetensors."""
    from train.tiny_lessons import make_tokenizer
    from train.tiny_model import new_model

    folder = tmp_path_factory.mktemp("llama")
    tokenizer = make_tokenizer(0, size=600, episodes=60)
    tokenizer.save_pretrained(folder)
    new_model(tokenizer, seed=1, width=64, layers=2).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def lm(random_llama):
    from core.language_model import load_language_model

    return load_language_model(str(random_llama))
