"""Settings refuse what breaks their rule, and say the value, the rule and the next step."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thresher.config import (
    RECIPES,
    PruneConfig,
    Settings,
    TrainConfig,
    check_read,
    given_settings,
    read_toml,
    without_flag,
)
from thresher.errors import ConfigError, ThresherError
from thresher.methods import FORMER_METHODS, METHODS, with_methods_today


def refused(text: str) -> Any:
    return pytest.raises(ConfigError, match=f"^{re.escape(text)}")


# --- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"batch_size": "32"}, "batch_size = '32' is of type str; it must be int"),
        ({"widths": []}, "widths is empty; give at least one number of layers"),
        ({"floors": []}, "floors is empty; give at least one share"),
        ({"widths": [3, "5"]}, "widths = '5' is of type str; it must be float"),
        ({"widths": [True]}, "widths = True is of type bool; it must be float"),
        ({"widths": [3, 0]}, "widths = 0.0 must be greater than 0.0"),
        ({"batch_size": 32.0}, "batch_size = 32.0 is of type float; it must be int"),
        ({"batch_size": True}, "batch_size = True is of type bool; it must be int"),
        ({"batch_size": None}, "batch_size = None is of type NoneType; it must be int"),
        ({"lr": "fast"}, "lr = 'fast' is of type str; it must be float"),
        ({"lr": True}, "lr = True is of type bool; it must be float"),
        ({"lr": [1e-5]}, "lr = [1e-05] is of type list; it must be float"),
        ({"max_steps": 1.5}, "max_steps = 1.5 is of type float; it must be int or nothing"),
        ({"freeze_embeddings": 1}, "freeze_embeddings = 1 is of type int; it must be bool"),
        ({"soft_mask": 3}, "soft_mask = 3 is of type int; it must be str"),
        ({"batch_size": 0}, "batch_size = 0 is below 1, the smallest allowed value"),
        ({"soft_epochs": -0.5}, "soft_epochs = -0.5 is below 0.0, the smallest allowed value"),
        ({"max_length": 3}, "max_length = 3 is below 4, the smallest allowed value"),
        ({"seed": -1}, "seed = -1 is below 0, the smallest allowed value"),
        ({"warmup": 1.5}, "warmup = 1.5 is above 1.0, the largest allowed value"),
        ({"distill": 1.1}, "distill = 1.1 is above 1.0, the largest allowed value"),
        ({"target_flops": 2}, "target_flops = 2.0 is above 1.0, the largest allowed value"),
        ({"target_flops": 0}, "target_flops = 0.0 must be greater than 0.0"),
        ({"lr": 0}, "lr = 0.0 must be greater than 0.0"),
        ({"temperature": -1}, "temperature = -1.0 must be greater than 0.0"),
        ({"lr": math.nan}, "lr = nan must be a finite number"),
        ({"weight_decay": math.inf}, "weight_decay = inf must be a finite number"),
        ({"soft_mask": "soft"}, "soft_mask = 'soft' is not one of: cumulative, plain"),
        ({"precision": "fp16"}, "precision = 'fp16' is not one of: auto, fp32, bf16"),
        ({"recipe": "mine"}, "recipe = 'mine' is not one of: default, paper"),
        ({"lambda_": 0.1}, "target_flops = 0.5 and lambda_ = 0.1: give exactly one of them"),
        ({"target_flops": None}, "target_flops = None and lambda_ = None: give exactly one of them"),
        ({"batch_size": 4, "accumulate": 8}, "accumulate = 8 is larger than batch_size = 4"),
    ],
)
def test_training_rules(values: dict[str, Any], text: str) -> None:
    with refused(text):
        TrainConfig(**values)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"scale": "absolute"}, "scale = 'absolute' is not one of: relative, paper"),
        ({"ramp": "steep"}, "ramp = 'steep' is not one of: late, plain"),
        ({"protect": "first"}, "protect = 'first' is of type str; it must be tuple"),
        ({"protect": ("first", "last")}, "protect = 'last' is not one of: first, separators, first_segment, none"),
        ({"protect": (1,)}, "protect = 1 is not one of: first, separators"),
        ({"protect": ()}, "protect is empty; write protect = ['none'] to protect no token"),
        (
            {"protect": ("first", "none")},
            "protect = ['first', 'none'] mixes 'none' with other tokens; give one or the other",
        ),
        (
            {"protect": ("first", "separators")},
            "protect = ['first', 'separators'] needs separator_id; set it to tokenizer.sep_token_id",
        ),
        ({"protect": ("first", "first_segment")}, "protect = ['first', 'first_segment'] needs separator_id"),
        (
            {"protect": ("none",)},
            "collapse_last keeps only protected tokens, so the first token must be protected; add",
        ),
        ({"score_queries": -1}, "score_queries = -1 is below 0, the smallest allowed value"),
        ({"score_queries": "first"}, "score_queries = 'first' is of type str; it must be int"),
        (
            {"score_queries": 8, "protect": ("separators",), "separator_id": 2, "collapse_last": False},
            "score_queries = 8 counts on the first token, which must be protected; add 'first' to protect or set",
        ),
        ({"separator_id": -1}, "separator_id = -1 is below 0, the smallest allowed value"),
        ({"separator_id": "[SEP]"}, "separator_id = '[SEP]' is of type str; it must be int or nothing"),
        ({"final_threshold": -0.1}, "final_threshold = -0.1 is below 0.0, the smallest allowed value"),
        ({"final_threshold": math.inf}, "final_threshold = inf must be a finite number"),
        ({"final_threshold": math.nan}, "final_threshold = nan must be a finite number"),
        ({"collapse_last": "yes"}, "collapse_last = 'yes' is of type str; it must be bool"),
    ],
)
def test_pruning_rules(values: dict[str, Any], text: str) -> None:
    with refused(text):
        PruneConfig(**values)


def test_edges_are_allowed() -> None:
    config = TrainConfig(target_flops=1, warmup=1, distill=0, batch_size=1, max_length=4, lr=1, soft_epochs=0)
    assert isinstance(config.target_flops, float) and isinstance(config.lr, float), "int is accepted for float"
    assert PruneConfig(final_threshold=0).final_threshold == 0.0
    assert PruneConfig(protect=["none"], collapse_last=False).protect == ("none",), "list is accepted for tuple"
    assert PruneConfig(protect=("first", "separators"), separator_id=0).separator_id == 0
    segment = PruneConfig(protect=("first_segment",), separator_id=0, score_queries=0, collapse_last=False)
    assert segment.score_queries == 0, "the first token is in the first segment"
    assert TrainConfig(method="ltp", target_flops=None, lambda_=0).lambda_ == 0.0


def test_settings_are_frozen_and_by_name_only() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        PruneConfig().scale = "paper"  # type: ignore[misc]
    with pytest.raises(TypeError):
        PruneConfig("paper")  # type: ignore[misc]
    assert issubclass(ConfigError, ThresherError)


@given(lr=st.floats(allow_nan=True, allow_infinity=True))
def test_a_rate_is_finite_and_positive_or_refused(lr: float) -> None:
    if math.isfinite(lr) and lr > 0:
        assert TrainConfig(lr=lr).lr == lr
    else:
        with pytest.raises(ConfigError, match="^lr = "):
            TrainConfig(lr=lr)


# --- dictionaries ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        PruneConfig(),
        PruneConfig(protect=("first", "separators"), separator_id=102, scale="paper", final_threshold=0.01),
        TrainConfig(),
        TrainConfig.recipe_named("paper", max_steps=3),
    ],
)
def test_round_trip_through_json(config: Settings) -> None:
    written = json.loads(json.dumps(config.to_dict(), allow_nan=False))
    assert type(config).from_dict(written) == config
    assert list(written) == [item.name for item in dataclasses.fields(config)]


def test_unknown_setting() -> None:
    with refused("unknown setting 'sacle' for PruneConfig; known settings: score, scale, score_queries, protect, "):
        PruneConfig.from_dict({"sacle": "paper"})
    with refused("unknown setting 'lambda' for TrainConfig; known settings: recipe, method, target_flops, lambda_"):
        TrainConfig.from_dict({"lambda": 0.1})


@pytest.mark.parametrize("kind", [PruneConfig, TrainConfig])
def test_every_setting_has_help(kind: type[Settings]) -> None:
    for item in dataclasses.fields(kind):
        assert len(kind.help_for(item.name)) > 10, item.name
        assert kind.help_for(item.name) == item.metadata["help"]


def test_settings_that_a_method_does_not_read() -> None:
    check_read({"lr", "distill", "scale"}, method="thresher")
    check_read({"temperature", "ramp", "threshold_lr"}, method="ltp")
    with refused("final_threshold is a setting of method ltp and manual; method thresher does not read it"):
        check_read({"final_threshold"}, method="thresher")
    with refused("length_drop is a setting of method lat; method spatten does not read it"):
        check_read({"lr", "length_drop"}, method="spatten")


def test_a_former_name_of_a_method_is_read_from_files_and_refused_from_users(tmp_path: Path) -> None:
    for former, present in FORMER_METHODS.items():
        with refused(f"method = '{former}' is now called '{present}'; give that name"):
            TrainConfig(method=former)
        file = tmp_path / "run.toml"
        file.write_text(f'[train]\nmethod = "{former}"\n', encoding="utf-8")
        assert read_toml(file) == {"train": {"method": present}}
        assert present in METHODS and former not in METHODS


def test_saved_names_of_methods_are_made_present_and_nothing_else() -> None:
    row = {"method": "soft", "variant": "soft-plain-mask", "stage": "soft", "seed": 0}
    assert with_methods_today(row) == {**row, "method": "ltp"}
    assert with_methods_today(row, "method", "variant") == {**row, "method": "ltp", "variant": "ltp-plain-mask"}
    assert with_methods_today({"method": "lat"}) == {"method": "lat"}
    assert with_methods_today({"method": None}) == {"method": None} and with_methods_today({}) == {}


def test_settings_of_some_methods_name_methods_that_exist() -> None:
    for kind in (PruneConfig, TrainConfig):
        for item in dataclasses.fields(kind):
            assert set(item.metadata["of"]) <= set(METHODS), item.name


# --- recipes ---------------------------------------------------------------------------------------------------------


def test_default_recipe_is_the_defaults() -> None:
    assert TrainConfig.recipe_named("default") == TrainConfig()


def test_paper_recipe() -> None:
    """Appendix of the paper: temperatures from {1,2,5,10,20}e-4, rates 2e-5 and {0.5,1,2}e-5, batch 64, no target."""
    config = TrainConfig.recipe_named("paper")
    assert config.recipe == "paper"
    assert (config.target_flops, config.soft_mask, config.batch_size) == (None, "plain", 64)
    assert config.lambda_ is not None and config.lambda_ > 0
    assert config.temperature == config.final_temperature
    assert any(math.isclose(config.temperature, value) for value in (1e-4, 2e-4, 5e-4, 1e-3, 2e-3))
    assert config.lr == 2e-5 and config.hard_lr in (5e-6, 1e-5, 2e-5)
    assert 1 <= config.soft_epochs <= 10 and config.hard_epochs == 10
    prune = PruneConfig(**RECIPES["paper"]["prune"])
    assert (prune.scale, prune.ramp, prune.final_threshold, prune.collapse_last) == ("paper", "plain", 0.01, False)


def test_a_lambda_replaces_the_target_and_the_other_way_round() -> None:
    by_lambda = TrainConfig.recipe_named("default", lambda_=0.2)
    assert (by_lambda.lambda_, by_lambda.target_flops) == (0.2, None)
    by_target = TrainConfig.recipe_named("paper", target_flops=0.4)
    assert (by_target.lambda_, by_target.target_flops) == (None, 0.4)
    assert TrainConfig.recipe_named("default", lambda_=None) == TrainConfig()
    with refused("target_flops = 0.4 and lambda_ = 0.2: give exactly one of them"):
        TrainConfig.recipe_named("default", lambda_=0.2, target_flops=0.4)


def test_overrides_win_over_the_recipe() -> None:
    assert TrainConfig.recipe_named("paper", batch_size=8, lr=1e-3).batch_size == 8
    with refused("unknown setting 'speed' for TrainConfig"):
        TrainConfig.recipe_named("paper", speed=1)


def test_unknown_recipe() -> None:
    with refused("recipe = 'best' is not one of: default, paper"):
        TrainConfig.recipe_named("best")


# --- files -----------------------------------------------------------------------------------------------------------


def test_toml(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        '[prune]\nprotect = ["first", "separators"]\nseparator_id = 3\n[train]\nlr = 1e-4\nbatch_size = 8\n'
    )
    tables = read_toml(file)
    assert PruneConfig.from_dict(tables["prune"]).protect == ("first", "separators")
    assert TrainConfig.from_dict(tables["train"]).batch_size == 8
    file.write_text("")
    assert read_toml(file) == {}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"[prune\n", "is not valid TOML: "),
        (b"lr = \n", "is not valid TOML: "),
        (b"[train]\nlr = 1\nlr = 2\n", "is not valid TOML: "),
        (b'name = "\xff"\n', "is not valid TOML: "),
        (b"[model]\nlayers = 3\n", "has 'model'; only the tables [prune] and [train] are known"),
        (b"lr = 0.1\n", "has 'lr'; only the tables [prune] and [train] are known"),
        (b"train = 3\n", "has 'train'; only the tables [prune] and [train] are known"),
    ],
)
def test_unusable_toml(tmp_path: Path, content: bytes, text: str) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(content)
    with refused(f"configuration file {file} {text}"):
        read_toml(file)


def test_absent_toml(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", tmp_path):
        with refused(f"configuration file {path} does not exist"):
            read_toml(path)


def test_settings_given_as_words() -> None:
    train, prune = given_settings(["clip=0.5", "record=false", "ramp=plain", "protect=['first', 'separators']"])
    assert train == {"clip": 0.5, "record": False}
    assert prune == {"ramp": "plain", "protect": ["first", "separators"]}
    for word in ("clip", "recipe=paper", "nothing=1", "=1"):
        with refused(f"--set {word}: give NAME=VALUE with one of method, target_flops, "):  # recipe has its flag
            given_settings([word])


def test_a_setting_has_a_flag_or_is_set() -> None:
    assert without_flag("clip") and without_flag("ramp")
    assert not any(without_flag(name) for name in ("lr", "protect", "recipe", "device"))
