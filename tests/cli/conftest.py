"""Models, rows and one finished run, made once for all tests of the command line."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers

from tests.cli import tiny


@dataclass(frozen=True)
class Stock:
    """What most commands start from. Tests never change these files; they copy what they want to damage."""

    head: Path  # a classifier with the classes negative and positive
    bare: Path  # an encoder without a head
    rows: Path  # CSV with text and label
    test: Path  # CSV of the same kind with other rows


@pytest.fixture(scope="package")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Stock:
    folder = tmp_path_factory.mktemp("stock")
    rows = [{"text": text, "label": label} for text, label in tiny.sentences(64)]
    return Stock(
        head=tiny.save_model(folder / "head", tiny.classifier_config()),
        bare=tiny.save_model(folder / "bare", tiny.config(), head=False),
        rows=tiny.write_rows(folder / "rows.csv", rows[:48]),
        test=tiny.write_rows(folder / "test.csv", rows[48:]),
    )


@pytest.fixture(scope="package")
def finished(stock: Stock, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the classifier; never changed."""
    out = tmp_path_factory.mktemp("finished") / "run"
    tiny.succeeds(
        f"prune {{model}} --train {{rows}} --out {{out}} {tiny.QUICK}", model=stock.head, rows=stock.rows, out=out
    )
    return out


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Runs of tiny models spend their time handing work to threads, the more so where others want the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def loud_libraries() -> Iterator[None]:
    """Commands silence transformers for their process; other tests in this process keep what they had."""
    before = transformers.logging.get_verbosity()
    yield
    transformers.logging.set_verbosity(before)
