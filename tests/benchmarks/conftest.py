"""The benchmark scripts are no package: like `python benchmarks/NAME.py`, tests import them from their folder."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from tests.cli import tiny
from thresher.config import PruneConfig
from thresher.models.attach import gates_of, prune_
from thresher.models.checkpoint import load_dense, save

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture(scope="package")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pruned tiny model of 32 positions that was never trained."""
    folder = tmp_path_factory.mktemp("benchmarks")
    model, tokenizer = load_dense(tiny.save_model(folder / "model", tiny.classifier_config()), whole=True)
    prune_(model, PruneConfig())
    gates_of(model).set_thresholds([0.5, 0.8, 0.9, 0.9])
    save(model, tokenizer, folder / "run")
    return folder / "run"


@pytest.fixture(scope="package")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rows") / "test.csv"
    return tiny.write_rows(file, [{"text": text, "label": label} for text, label in tiny.sentences(16)])


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """The scripts set threads and silence libraries for their process; other tests keep what they had."""
    threads, verbosity = torch.get_num_threads(), transformers.logging.get_verbosity()
    yield
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity(verbosity)
