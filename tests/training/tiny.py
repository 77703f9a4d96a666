"""Tiny models, a tokenizer of thirty words and tasks that such models can learn in seconds."""

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification

import thresher
from tests.words import SPECIAL, word_tokenizer
from thresher.config import PruneConfig, TrainConfig
from thresher.models.attach import gates_of
from thresher.tasks.task import Example, Task, TaskSpec
from thresher.training.progress import Silent
from thresher.training.trainer import Trainer

LAYERS, WIDTH, FFN_WIDTH, HEADS, POSITIONS = 4, 32, 64, 4, 40
FILLERS = [f"word{letter}" for letter in "abcdefghijklmnopqrstuvwx"]
WORDS = ["good", "bad", *FILLERS]
VOCABULARY = [*SPECIAL, *WORDS]

CLASSES = TaskSpec(name="keywords", text_column="text", pair_column=None, labels=("bad", "good"), metrics=("accuracy",))
VALUES = TaskSpec(name="values", text_column="text", pair_column=None, labels=(), metrics=("pearson", "spearman"))

# Everything a test does not care about: plain float32 on the CPU, short stages.
QUICK: dict[str, Any] = {
    "method": "ltp",  # the one with all stages
    "precision": "fp32",
    "batch_size": 8,
    "max_length": 32,
    "lr": 1e-3,
    "target_flops": 0.6,
    "evals_per_stage": 2,
    "save_seconds": 0.0,
    "max_steps": 6,
}


def tiny_tokenizer() -> Any:
    return word_tokenizer(WORDS)


def tokenizer_for(name: str) -> Any:
    """MPNet has no token types, and its forward pass takes none."""
    tokenizer = tiny_tokenizer()
    if name == "mpnet":
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer


def sentence(draw: random.Random, *keywords: str, words: tuple[int, int] = (3, 14)) -> str:
    """Filler words with the keywords at random places."""
    found = draw.choices(FILLERS, k=draw.randint(*words))
    for keyword in keywords:
        found.insert(draw.randint(0, len(found)), keyword)
    return " ".join(found)


def keyword_rows(count: int, *, seed: int) -> list[Example]:
    """The label is which of two keywords occurs, somewhere among the fillers; both classes equally often."""
    draw = random.Random(seed)
    return [Example(sentence(draw, CLASSES.labels[index % 2]), None, index % 2) for index in range(count)]


def value_rows(count: int, *, seed: int) -> list[Example]:
    draw = random.Random(seed)
    return [Example(sentence(draw, ("bad", "good")[index % 2]), None, (-1.0, 1.0)[index % 2]) for index in range(count)]


class Untouchable(dict[str, list[Example]]):
    """Test rows that nobody may look at."""

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("training has touched the test rows")

    __getitem__ = __iter__ = __len__ = __contains__ = _refuse  # type: ignore[assignment]
    get = keys = values = items = _refuse  # type: ignore[assignment]


def keyword_task(rows: int = 64, *, selection: int = 24, test: dict[str, list[Example]] | None = None) -> Task:
    return Task(
        spec=CLASSES,
        train=keyword_rows(rows, seed=1),
        selection=keyword_rows(selection, seed=2),
        test=Untouchable() if test is None else test,
        source="made up",
    )


def value_task(rows: int = 64) -> Task:
    test = Untouchable()
    return Task(spec=VALUES, train=value_rows(rows, seed=1), selection=value_rows(24, seed=2), test=test, source="")


def stock_model(
    name: str = "bert", *, outputs: int = 2, dropout: float = 0.1, seed: int = 0, layers: int = LAYERS
) -> Any:
    """Random weights, larger than usual, so that attention is far from uniform from the start."""
    sizes: dict[str, Any] = {"hidden_size": WIDTH, "num_hidden_layers": layers, "num_attention_heads": HEADS}
    sizes |= {"intermediate_size": FFN_WIDTH, "max_position_embeddings": POSITIONS, "vocab_size": len(VOCABULARY)}
    sizes |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout, "initializer_range": 0.2}
    sizes |= {"classifier_dropout": dropout, "classifier_dropout_prob": dropout, "pad_token_id": 0}
    if name == "albert":
        sizes["embedding_size"] = 16
    if name == "distilbert":
        sizes |= {"dropout": dropout, "attention_dropout": dropout, "seq_classif_dropout": dropout}
        sizes["hidden_dim"] = FFN_WIDTH
    config = AutoConfig.for_model(name, num_labels=outputs, **sizes)
    torch.manual_seed(seed)
    return AutoModelForSequenceClassification.from_config(config)


def gated_model(
    name: str = "bert",
    *,
    thresholds: Sequence[float] | None = None,
    outputs: int = 2,
    dropout: float = 0.1,
    seed: int = 0,
    layers: int = LAYERS,
    **settings: Any,
) -> Any:
    """A tiny model with gates that judge by attention, whatever the method; `settings` are PruneConfig's."""
    model = stock_model(name, outputs=outputs, dropout=dropout, seed=seed, layers=layers)
    thresher.prune_(model, PruneConfig(**{"score": "attention", **settings}))
    if thresholds is not None:
        gates_of(model).set_thresholds(thresholds)
    return model


def quick(**changes: Any) -> TrainConfig:
    return TrainConfig(**{**QUICK, **changes})


def trainer_for(model: Any, config: TrainConfig | None = None, **changes: Any) -> Trainer:
    """A trainer on the keyword task and the CPU, unless `changes` say otherwise."""
    arguments: dict[str, Any] = {"tokenizer": tiny_tokenizer(), "task": keyword_task(), "device": "cpu"} | changes
    config = config or quick()
    return Trainer(model, arguments.pop("tokenizer"), arguments.pop("task"), config, **arguments)


def weights_of(model: Any) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def differing(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> list[str]:
    """Names of tensors that are not the same to the bit."""
    assert ours.keys() == theirs.keys()
    return [name for name, value in ours.items() if not torch.equal(value, theirs[name])]


class Recorder(Silent):
    """Remembers what a trainer reports: (stage, numbers) for every step, and the notes."""

    def __init__(self) -> None:
        self.stage = ""
        self.begun: list[tuple[str, int, int]] = []
        self.steps: list[tuple[str, dict[str, float | None]]] = []
        self.notes: list[str] = []

    def begin(self, name: str, *, total: int, done: int = 0) -> None:
        self.stage = name
        self.begun.append((name, total, done))

    def step(self, **numbers: float | None) -> None:
        self.steps.append((self.stage, numbers))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def losses(self, stage: str) -> list[float]:
        return [numbers["loss"] for name, numbers in self.steps if name == stage and numbers.get("loss") is not None]  # type: ignore[misc]
