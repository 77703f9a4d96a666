"""Settings: frozen dataclasses whose help, range and choices are written once and used by the CLI and the docs."""

import dataclasses
import tomllib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from thresher.errors import ConfigError
from thresher.methods import LEARNING_METHODS, METHODS, check_method, score_of, with_methods_today
from thresher.settings import Settings, setting

AUTO = "auto"
QUESTION_WINDOW = 384  # tokens of a question and the part of its context that are read together, unless told otherwise


@dataclass(frozen=True, kw_only=True)
class PruneConfig(Settings):
    """What is pruned: the score's scale, the protected tokens and the initial thresholds."""

    score: str = setting(
        AUTO,
        "what a token is judged by: 'attention' it receives (the paper's), 'value', that attention times the length "
        "of the value vector that it moves, or 'auto', the method's own: value for thresher, attention for all others",
        choices=(AUTO, "attention", "value"),
    )
    scale: str = setting(
        "relative",
        "unit of scores and thresholds: 'relative' (mean score of a live token is 1, independent of length) "
        "or 'paper' (mean 1/n)",
        choices=("relative", "paper"),
    )
    score_queries: int = setting(
        1,
        "whose attention counts: 1 that of all tokens, k that of one token in k, by its place in the text, and so of "
        "the first, 0 that of the first token alone; fewer cost less on long texts",
        low=0,
        high=2**31 - 1,
    )
    protect: tuple[str, ...] = setting(
        ("first",),
        "tokens that are never dropped: first ([CLS]), separators, first_segment (say, a reranker's query), none",
        choices=("first", "separators", "first_segment", "none"),
    )
    ramp: str = setting(
        "late",
        "initial thresholds: 'late' leaves the first quarter of the layers unpruned and then rises linearly, "
        "'plain' rises linearly from the first layer (the paper's), 'falling' leaves shares that fall over a quarter "
        "of the layers, where the target needs it",
        choices=("late", "plain", "falling"),
        of=("ltp",),
    )
    final_threshold: float = setting(
        1.0, "initial threshold of the last layer, to which the ramp rises", low=0.0, of=("ltp", "manual")
    )
    collapse_last: bool = setting(
        True, "let the last layer keep only protected tokens; lossless for heads that read the first token"
    )
    rejoin: int | None = setting(
        None,
        "layers at the end that dropped tokens take part in again, with the states that they left behind, for heads "
        "that read every token, or their mean; nothing means 2 for method thresher and embeddings that are a mean (a "
        "third of less than six layers), and 0 for all others",
        low=0,
        high=1000,
    )
    separator_id: int | None = setting(
        None, "token id of the separator; needed to protect separators or the first segment", low=0, high=2**31 - 1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.protect:
            raise ConfigError("protect is empty; write protect = ['none'] to protect no token")
        if "none" in self.protect and len(self.protect) > 1:
            raise ConfigError(f"protect = {list(self.protect)} mixes 'none' with other tokens; give one or the other")
        if self.separator_id is None and {"separators", "first_segment"} & set(self.protect):
            raise ConfigError(f"protect = {list(self.protect)} needs separator_id; set it to tokenizer.sep_token_id")
        if self.score_queries != 1 and not {"first", "first_segment"} & set(self.protect):
            raise ConfigError(
                f"score_queries = {self.score_queries} counts on the first token, which must be protected; add 'first' "
                "to protect or set score_queries = 1"
            )
        if self.collapse_last and "first" not in self.protect:
            raise ConfigError(
                "collapse_last keeps only protected tokens, so the first token must be protected; "
                "add 'first' to protect or set collapse_last = false"
            )

    @property
    def rejoined(self) -> int:
        """Layers at the end with all tokens; none while that is open."""
        return self.rejoin or 0

    def for_method(self, method: str) -> "PruneConfig":
        """With the method's own score, where none was chosen."""
        return dataclasses.replace(self, score=score_of(method)) if self.score == AUTO else self


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Settings):
    """How it is learned. `TrainConfig.recipe_named("paper")` gives the other recipe's defaults."""

    recipe: str = setting(
        "default",
        "which defaults to start from: default, or paper for the paper's own recipe",
        choices=("default", "paper"),
    )
    method: str = setting(
        "thresher",
        "how tokens are chosen: thresher (thresholds that hold a falling share of tokens, in a shape found on the "
        "way), ltp (the paper's: thresholds learned by gradient in a soft stage), or a rival: manual (a fixed ramp), "
        "spatten (top-k by share), lat (LengthDrop and search), power (PoWER-BERT), collapse (first token only, from "
        "one layer on), random, dense (no pruning, trained on as long)",
        choices=METHODS,
    )
    target_flops: float | None = setting(0.5, "relative FLOPs to reach (0.5 = half the cost)", above=0.0, high=1.0)
    lambda_: float | None = setting(
        None, "the paper's way: weight of the L1 regulariser, instead of a FLOPs target", low=0.0
    )
    finetune_epochs: float = setting(
        3.0, "epochs of dense fine-tuning when the model has no head for the task", low=0.0
    )
    soft_epochs: float = setting(
        2.0,
        "epochs of the soft stage, which learns thresholds and weights; methods without one add them to the hard stage",
        low=0.0,
    )
    hard_epochs: float = setting(3.0, "epochs of the hard stage, which fine-tunes weights at fixed thresholds", low=0.0)
    max_steps: int | None = setting(
        None, "at most this many optimizer steps for each of finetune_epochs, soft_epochs and hard_epochs", low=1
    )
    batch_size: int = setting(32, "sequences per optimizer step, over all processes", low=1)
    accumulate: int = setting(1, "split each step into this many micro-batches to save memory", low=1)
    lr: float = setting(3e-5, "peak learning rate of the weights", above=0.0)
    hard_lr: float | None = setting(
        None, "peak learning rate of the hard stage; nothing means the same as lr", above=0.0
    )
    threshold_lr: float = setting(
        3e-3, "learning rate of the thresholds in the soft stage", above=0.0, of=("ltp", "power")
    )
    warmup: float = setting(0.06, "share of each stage's steps with rising learning rate", low=0.0, high=1.0)
    weight_decay: float = setting(0.01, "AdamW weight decay (matrices only)", low=0.0)
    clip: float = setting(1.0, "gradient norm limit", above=0.0)
    soft_mask: str = setting(
        "cumulative",
        "soft gate: 'cumulative' fades a token's keys in later layers, 'plain' scales the layer's output (the "
        "paper's), 'straight' drops tokens and takes the gradient of 'cumulative' for the thresholds",
        choices=("cumulative", "plain", "straight"),
        of=("ltp",),
    )
    temperature: float = setting(
        0.3, "temperature of the soft gate at the start, in the unit of the scores", above=0.0, of=("ltp",)
    )
    final_temperature: float = setting(
        0.03, "temperature of the soft gate at the end (geometric decay)", above=0.0, of=("ltp",)
    )
    budget_weight: float = setting(
        10.0, "weight of the squared distance to the FLOPs target in the soft stage", low=0.0, of=("ltp", "power")
    )
    dual_rate: float = setting(
        0.0,
        "what the price of FLOPs gains at every step of the soft stage for each unit above the target, and loses below "
        "it: a Lagrangian multiplier, in place of budget_weight; 0 means none",
        low=0.0,
        of=("ltp",),
    )
    distill: float = setting(
        0.5, "share of distillation from the dense teacher in the hard stage's loss", low=0.0, high=1.0
    )
    distill_temperature: float = setting(2.0, "temperature of the teacher's probabilities", above=0.0)
    distill_hidden: float = setting(0.0, "weight of matching the teacher's hidden states in the hard stage", low=0.0)
    distill_states: str = setting(
        "first_token",
        "hidden states to match: 'first_token' (its states), 'kept' (those of all tokens that a layer keeps) or "
        "'embeddings' (of every live token; the paper's)",
        choices=("first_token", "kept", "embeddings"),
    )
    distill_layers: str = setting(
        "every",
        "layers whose states of first or kept tokens are matched: 'every' one, or the 'last'",
        choices=("every", "last"),
    )
    more_ratio: float = setting(
        1.0,
        "rows of --more-texts in a batch of the hard stage for each row with a label; these come on top of batch_size",
        above=0.0,
    )
    average: float = setting(
        0.0, "share of the hard stage's steps, its last, over which weights are averaged", low=0.0, high=0.9
    )
    widths: tuple[float, ...] | None = setting(
        None,
        "layers of a 12-layer model, scaled to others, over which the tokens fall: a shape for each, of which the one "
        "nearest to the dense model is trained to the end; nothing means 1, 3, 5, 8; 8, 24, 48 for embeddings; 1, 3 "
        "for heads that read every token",
        above=0.0,
        of=("thresher",),
    )
    floors: tuple[float, ...] | None = setting(
        None,
        "share of the target that every layer leaves at least: a shape for each, of every width; nothing means 0, "
        "where only protected tokens reach the end; 0, 0.4 for heads that read every token",
        low=0.0,
        high=0.9,
        of=("thresher",),
    )
    race_end: float = setting(
        0.3,
        "share of the hard stage's steps after which one shape is left; at half of it the worse half of them goes",
        above=0.0,
        high=0.9,
        of=("thresher",),
    )
    narrow_later: bool = setting(
        False,
        "the narrowest shape is not judged halfway to race_end, but at it: it has most to recover from",
        of=("thresher",),
    )
    cumulative_scores: bool = setting(
        False, "rank tokens by the sum of their scores in all layers so far", of=("spatten",)
    )
    length_drop: float = setting(
        0.2,
        "largest share of its tokens that a layer drops in training (published: 0.2 to 0.4)",
        above=0.0,
        high=0.9,
        of=("lat",),
    )
    layer_drop: float = setting(0.2, "probability that training leaves out a layer", low=0.0, high=0.9, of=("lat",))
    search_rounds: int = setting(
        30, "rounds of the search for lengths, each with up to 60 passes over the selection rows", low=0, of=("lat",)
    )
    dropout: bool | None = setting(
        None, "train with the model's own dropout; nothing means where rows have labels: it blurs what a teacher says"
    )
    freeze_embeddings: bool = setting(True, "keep the word embeddings as they are")
    max_length: int | None = setting(
        128,
        "longest sequence in tokens, and of windows (for answers 384); longer ones are truncated and counted",
        low=4,
    )
    precision: str = setting(
        "auto",
        "arithmetic of training: auto, fp32 or bf16 (scores and thresholds are always fp32)",
        choices=("auto", "fp32", "bf16"),
    )
    record: bool = setting(
        True, "on one GPU, replay steps as CUDA graphs, one for every length of batch: faster where batches are small"
    )
    evals_per_stage: int = setting(4, "evaluations on the selection rows in each stage", low=1)
    save_seconds: float = setting(
        60.0, "after an evaluation, save the state to resume from if the last is this many seconds old", low=0.0
    )
    seed: int = setting(0, "seed of data order, dropout and new weights", low=0, high=2**63 - 1)

    def __post_init__(self) -> None:
        check_method(self.method)
        super().__post_init__()
        if (self.target_flops is None) == (self.lambda_ is None):
            raise ConfigError(
                f"target_flops = {self.target_flops} and lambda_ = {self.lambda_}: give exactly one of them"
            )
        if self.lambda_ is not None and self.method not in (*LEARNING_METHODS, "dense"):
            raise ConfigError(
                f"method = '{self.method}' learns nothing that lambda_ = {self.lambda_} could price"
                f"{' (recipe paper has it)' if self.recipe == 'paper' else ''}; give target_flops, or method ltp"
            )
        for name, what in (("widths", "number of layers"), ("floors", "share")):
            if getattr(self, name) == ():
                raise ConfigError(f"{name} is empty; give at least one {what}")
        if self.accumulate > self.batch_size:
            raise ConfigError(f"accumulate = {self.accumulate} is larger than batch_size = {self.batch_size}")

    @classmethod
    def recipe_named(cls, name: str, **overrides: Any) -> "TrainConfig":
        """The recipe's defaults with `overrides` on top; a lambda replaces the FLOPs target and the other way round.

        A lambda is a price for what gradients learn, so it comes with method ltp unless another is named."""
        if not isinstance(name, str) or name not in RECIPES:
            raise ConfigError(f"recipe = {name!r} is not one of: {', '.join(RECIPES)}")
        if overrides.get("lambda_") is not None:
            overrides = {"target_flops": None, "method": "ltp", **overrides}
        if overrides.get("target_flops") is not None:
            overrides.setdefault("lambda_", None)
        return cls.from_dict({"recipe": name, **RECIPES[name]["train"], **overrides})


@dataclass(frozen=True, kw_only=True)
class SearchConfig(Settings):
    """What is searched for, how surely, and with how much work."""

    max_drop: float = setting(
        0.01, "largest drop of the score against the dense model (0.01 = 1 point of 100)", low=0.0, high=0.5
    )
    confidence: float = setting(
        0.8, "one-sided confidence that the drop to expect is within the limit", low=0.5, high=0.99
    )
    start_flops: float = setting(0.6, "relative FLOPs of the first trial, the only full run", above=0.0, high=0.95)
    trial_share: float = setting(0.5, "epochs of every further trial, as a share of the hard stage's", above=0.0)
    max_trials: int = setting(6, "at most this many trials", low=1)
    budget_minutes: float | None = setting(None, "stop training after this many minutes, with the best so far", above=0)
    workers: int = setting(1, "trials that run at the same time, each in a process of its own", low=1)


# The paper's appendix: plain ramp to 0.01 (paper scale), plain soft mask, L1 with lambda, T from {1,2,5,10,20}e-4,
# lr 2e-5 soft and {0.5,1,2}e-5 hard, batch 64, 1-10 soft and 10 hard epochs, no distillation.
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "default": {"prune": {}, "train": {}},
    "paper": {
        "prune": {"scale": "paper", "ramp": "plain", "final_threshold": 0.01, "collapse_last": False},
        "train": {
            "method": "ltp",
            "target_flops": None,
            "lambda_": 0.1,
            "soft_epochs": 5.0,
            "hard_epochs": 10.0,
            "batch_size": 64,
            "lr": 2e-5,
            "hard_lr": 1e-5,
            "threshold_lr": 2e-5,
            "soft_mask": "plain",
            "temperature": 1e-3,
            "final_temperature": 1e-3,
            "distill": 0.0,
            "distill_states": "embeddings",
            "freeze_embeddings": False,
        },
    },
}


# Settings that `thresher prune` has a flag of their own for; the others are given in a file or with --set.
TRAIN_FLAGS = (
    *("method", "target_flops", "lambda_", "finetune_epochs", "soft_epochs", "hard_epochs", "max_steps", "batch_size"),
    *("accumulate", "lr", "temperature", "distill", "max_length", "precision", "seed"),
)
PRUNE_FLAGS = ("protect", "scale")


def without_flag(name: str) -> bool:
    """Whether this is a setting that only --set and files can give."""
    known = {item.name for kind in (TrainConfig, PruneConfig) for item in fields(kind)}
    return name in known - {*TRAIN_FLAGS, *PRUNE_FLAGS, "recipe"}


def check_read(names: Container[str], *, method: str) -> None:
    """Refuse settings that this method does not read: whoever gives one expects it to do something."""
    for kind in (TrainConfig, PruneConfig):
        for item in fields(kind):
            if item.name in names and item.metadata["of"] and method not in item.metadata["of"]:
                readers = " and ".join(item.metadata["of"])
                raise ConfigError(f"{item.name} is a setting of method {readers}; method {method} does not read it")


def given_settings(words: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of TrainConfig and of PruneConfig in words such as clip=0.5; values as TOML writes them."""
    train, prune = ({item.name: item for item in fields(kind)} for kind in (TrainConfig, PruneConfig))
    found: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name == "recipe" or name not in {**train, **prune}:
            names = [one for one in (*train, *prune) if one != "recipe"]
            raise ConfigError(f"--set {word}: give NAME=VALUE with one of {', '.join(names)}")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError):  # not TOML, or too deep and too long for its reader
            value = text  # a word needs no quotes
        found[name not in train][name] = value
    return found


def read_toml(path: Path) -> dict[str, dict[str, Any]]:
    """Read a configuration file with the tables [prune] and [train]."""
    if not path.is_file():
        raise ConfigError(f"configuration file {path} does not exist")
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise ConfigError(f"configuration file {path} is not valid TOML: it is too deep") from error
    except ValueError as error:  # also bytes that are not UTF-8, and numbers of thousands of digits
        raise ConfigError(f"configuration file {path} is not valid TOML: {error}") from error
    for name, table in tables.items():
        if name not in ("prune", "train") or not isinstance(table, dict):
            raise ConfigError(f"configuration file {path} has '{name}'; only the tables [prune] and [train] are known")
    return {name: with_methods_today(table) if name == "train" else table for name, table in tables.items()}


def trained_length(manifest: Mapping[str, Any]) -> int | None:
    """The longest sequence in training, in tokens, if the run's description has it."""
    recipe = manifest.get("recipe")
    return recipe.get("max_length") if isinstance(recipe, dict) else None
