"""Bad input to the Python interface: one clear error of ours, before any work starts."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import thresher
from tests.cli import tiny
from tests.cli.conftest import Stock
from thresher.config import PruneConfig, TrainConfig
from thresher.errors import CheckpointError, ConfigError, DataError, ModelError, RunError, ThresherError

# ---- the same through Python


def classifier(stock: Stock, *, pruned: bool = True) -> tuple[Any, Any]:
    from thresher.models.checkpoint import load_dense

    model, tokenizer = load_dense(stock.head)
    if pruned:
        thresher.prune_(model)
    return model, tokenizer


def rows_of(stock: Stock, **changes: Any) -> Any:
    from thresher.tasks import load_file_task

    return load_file_task(stock.rows, test=None, **{"text_column": "text", "label_column": "label", **changes})


def three_way(stock: Stock) -> Any:
    from dataclasses import replace

    task = rows_of(stock)
    return replace(task, spec=replace(task.spec, labels=("a", "b", "c")))


def other_thresholds(stock: Stock, values: list[float]) -> None:
    thresher.gates_of(classifier(stock)[0]).set_thresholds(values)


def decoder(stock: Stock) -> None:
    from transformers import AutoModelForSequenceClassification

    config = tiny.classifier_config(is_decoder=True)
    thresher.prune_(AutoModelForSequenceClassification.from_config(config))


def headless() -> None:
    from transformers import AutoModel

    thresher.prune_(AutoModel.from_config(tiny.config()))


def padded_left(stock: Stock) -> None:
    import torch

    model, _ = classifier(stock)
    model(input_ids=torch.tensor([[0, 2, 4, 3]]), attention_mask=torch.tensor([[0, 1, 1, 1]]))


CALLS: list[tuple[str, Callable[[Stock, Path], Any], type[ThresherError], tuple[str, ...]]] = [
    ("unknown scale", lambda s, t: PruneConfig(scale="log"), ConfigError, ("scale = 'log'", "relative, paper")),
    ("no protection", lambda s, t: PruneConfig(protect=()), ConfigError, ("protect is empty", "['none']")),
    (
        "separators without their id",
        lambda s, t: PruneConfig(protect=("first", "separators")),
        ConfigError,
        ("separators", "tokenizer.sep_token_id"),
    ),
    (
        "negative threshold",
        lambda s, t: PruneConfig(final_threshold=-1.0),
        ConfigError,
        ("final_threshold = -1.0", "below 0.0"),
    ),
    (
        "number as text",
        lambda s, t: TrainConfig.from_dict({"batch_size": "32"}),
        ConfigError,
        ("batch_size = '32'", "must be int"),
    ),
    (
        "yes as a number",
        lambda s, t: TrainConfig.from_dict({"seed": True}),
        ConfigError,
        ("seed = True", "must be int"),
    ),
    ("no goal", lambda s, t: TrainConfig(target_flops=None), ConfigError, ("lambda_ = None", "exactly one")),
    ("unknown recipe", lambda s, t: TrainConfig.recipe_named("soup"), ConfigError, ("'soup'", "default, paper")),
    (
        "unknown mode",
        lambda s, t: thresher.gates_of(classifier(s)[0]).set_mode("warm"),
        ConfigError,
        ("'warm'", "hard"),
    ),
    ("too few thresholds", lambda s, t: other_thresholds(s, [0.1]), ConfigError, ("1 thresholds", "4 layers")),
    ("NaN threshold", lambda s, t: other_thresholds(s, [0, 0, math.nan, 1]), ConfigError, ("contain NaN", "infinity")),
    ("pruned twice", lambda s, t: thresher.prune_(classifier(s)[0]), ModelError, ("already has gates", "unprune_")),
    (
        "never pruned",
        lambda s, t: thresher.unprune_(classifier(s, pruned=False)[0]),
        ModelError,
        ("no gates", "prune_"),
    ),
    ("not a model", lambda s, t: thresher.prune_("bert"), ModelError, ("str is not a Hugging Face model",)),  # type: ignore[arg-type]
    ("no head", lambda s, t: headless(), ModelError, ("BertModel", "AutoModelForSequenceClassification")),
    ("decoder", lambda s, t: decoder(s), ModelError, ("configured as a decoder", "only encoders")),
    ("padding on the left", lambda s, t: padded_left(s), ModelError, ("starts with padding", "pad on the right")),
    ("no such run", lambda s, t: thresher.load(t / "no"), CheckpointError, ("/no is not a thresher run", "prune")),
    (
        "saved without gates",
        lambda s, t: thresher.save(*classifier(s, pruned=False), t / "out"),
        ModelError,
        ("no gates", "prune_"),
    ),
    ("unknown task", lambda s, t: thresher.load_task("sst3", data=None), DataError, ("'sst3'", "known tasks")),
    ("column given twice", lambda s, t: rows_of(s, label_column="text"), DataError, ("'text' is given twice",)),
    (
        "model for other classes",
        lambda s, t: thresher.Trainer(*classifier(s), three_way(s)),
        DataError,
        ("2 outputs", "num_labels=3"),
    ),
    (
        "target out of reach",
        lambda s, t: thresher.Trainer(*classifier(s), rows_of(s), TrainConfig(target_flops=0.01)),
        ConfigError,
        ("target_flops = 0.01", "ask for more"),
    ),
    (
        "resume from nowhere",
        lambda s, t: thresher.Trainer(*classifier(s), rows_of(s), resume=True, device="cpu"),
        RunError,
        ("resume needs the work folder",),
    ),
    (
        "explained to nothing",
        lambda s, t: thresher.explain(*classifier(s), "a film", max_length=2),
        DataError,
        ("max_length = 2", "at least 3"),
    ),
    ("half a character", lambda s, t: thresher.explain(*classifier(s), "\udc80"), DataError, ("\\udc80", "remove it")),
]


@pytest.mark.parametrize(("call", "kind", "says"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS])
def test_bad_call_raises_our_error(
    call: Callable[[Stock, Path], Any], kind: type[ThresherError], says: tuple[str, ...], stock: Stock, tmp_path: Path
) -> None:
    with pytest.raises(kind) as caught:
        call(stock, tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    for words in says:
        assert words in message
    assert tiny.tree(tmp_path) == set()
