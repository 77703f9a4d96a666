"""A thresher.json that somebody else wrote: one clear line each, and never other answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.models.families import tiny_model
from tests.models.saved import THRESHOLDS, edit, refused
from thresher import records
from thresher.config import PruneConfig
from thresher.errors import CheckpointError, ConfigError
from thresher.models.attach import gates_of, prune_
from thresher.models.checkpoint import MANIFEST, load, read_manifest, save
from thresher.models.manifest import UNSAID

SETTINGS = PruneConfig().to_dict()
TASK = {"name": "reviews", "labels": ["no", "yes"], "columns": {"text": "text", "pair": None, "label": "label"}}


def test_what_was_written_before_scores_had_a_choice_loads(saved: Path) -> None:
    """Format 1 and 2 alike: these are the settings that their first versions wrote."""
    old = {name: SETTINGS[name] for name in SETTINGS if name not in UNSAID}
    assert set(old) == {"scale", "protect", "ramp", "final_threshold", "collapse_last", "separator_id"}
    edit(saved, prune=old)
    found = load(saved)
    assert found.manifest["prune"] == old
    assert {name: getattr(gates_of(found.model).config, name) for name in UNSAID} == UNSAID


@pytest.mark.parametrize("name", sorted(set(SETTINGS) - set(UNSAID)))
def test_a_setting_that_every_run_has_may_not_be_missing(saved: Path, name: str) -> None:
    edit(saved, prune={key: value for key, value in SETTINGS.items() if key != name})
    with refused(CheckpointError, MANIFEST, f"lacks the settings {name} in 'prune'"):
        load(saved)


def test_no_settings_at_all(saved: Path) -> None:
    edit(saved, prune={})
    with refused(CheckpointError, "lacks the settings scale, protect, ramp, final_threshold, collapse_last, separator"):
        load(saved)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"base_model": 7}, "base_model"),
        ({"base_model": ["a"]}, "base_model"),
        ({"recipe": {"max_length": "128"}}, "recipe.max_length"),
        ({"recipe": {"max_length": [128]}}, "recipe.max_length"),
        ({"recipe": {"max_length": 31.5}}, "recipe.max_length"),
        ({"recipe": {"max_length": True}}, "recipe.max_length"),
        ({"recipe": {"max_length": -1}}, "recipe.max_length"),
        ({"task": {**TASK, "name": ["sst2"]}}, "task.name"),
        ({"task": {**TASK, "labels": 5}}, "task.labels"),
        ({"task": {**TASK, "labels": None}}, "task.labels"),
        ({"task": {**TASK, "labels": "no, yes"}}, "task.labels"),
        ({"task": {**TASK, "labels": [["no"], ["yes"]]}}, "task.labels"),
        ({"task": {**TASK, "columns": None}}, "task.columns"),
        ({"task": {**TASK, "columns": ["text", "label"]}}, "task.columns"),
        ({"task": {**TASK, "columns": {"text": 3}}}, "task.columns"),
    ],
)
def test_a_story_of_wrong_types(saved: Path, changes: dict[str, Any], name: str) -> None:
    edit(saved, **changes)
    with refused(CheckpointError, MANIFEST, f"has no valid '{name}'; the file is damaged"):
        load(saved)


def test_a_story_in_the_callers_own_words_loads(saved: Path) -> None:
    """`save(about=...)` takes what the caller has; only what commands read must be of its kind."""
    edit(saved, recipe="mine", task="reviews", base_model="somebody/model")
    assert read_manifest(saved)["task"] == "reviews"
    edit(saved, recipe={"max_length": 64}, task=TASK)
    assert read_manifest(saved)["task"] == TASK


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a":' * 100_000, "lie too deep in one another"),
        ("[" * 100_000, "lie too deep in one another"),
        ('{"format_version": ' + "9" * 5000 + "}", "is not valid JSON"),
        ('{"format_version": 1', "is not valid JSON"),
    ],
)
def test_json_that_its_reader_cannot_take(saved: Path, text: str, says: str) -> None:
    (saved / MANIFEST).write_text(text, encoding="utf-8")
    with refused(CheckpointError, MANIFEST, says):
        load(saved)


def test_json_that_is_too_large_is_not_read(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LARGEST_JSON", 100)
    with refused(CheckpointError, MANIFEST, "bytes; such a file has at most 100, so it is something else"):
        load(saved)


def test_json_that_cannot_be_read(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(path: Path, **how: Any) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", forbidden)
    with refused(CheckpointError, MANIFEST, "cannot be read: Permission denied; check its permissions"):
        read_manifest(saved)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"name": "top_share", "shares": [10**400] * 4}, "needs a list 'shares' of 4 numbers"),
        ({"name": "top_count", "counts": [10**400] * 4}, "needs a list 'counts' of 4 numbers"),
        ({"name": "top_share", "shares": [1.0] * 4, "seed": 10**400}, "it must be a whole number from 0 on"),
        ({"name": "top_share", "shares": [1.0] * 4, "order": ["score"]}, "order = ['score'] is not one of"),
    ],
)
def test_rules_beyond_all_numbers(saved: Path, rule: dict[str, Any], says: str) -> None:
    edit(saved, rule=rule, format_version=2)
    with refused(CheckpointError, MANIFEST, says):
        load(saved)


def test_settings_beyond_all_numbers(saved: Path) -> None:
    with refused(ConfigError, "final_threshold = inf must be a finite number"):
        PruneConfig(final_threshold=10**400)
    edit(saved, prune={**SETTINGS, "final_threshold": 10**400})
    with refused(CheckpointError, MANIFEST, "final_threshold = inf must be a finite number"):
        load(saved)
    with refused(ConfigError, "separator_id = ", "is above"):
        PruneConfig(separator_id=10**30)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({}, {}),
        ({"rejoin": None}, {}),
        ({"score": "value", "score_queries": 4}, {"score": "value", "score_queries": 4}),
    ],
)
def test_what_save_writes_is_complete_and_older_versions_read_it(
    given: dict[str, Any], written: dict[str, Any], tokenizer: Any, tmp_path: Path
) -> None:
    """Settings that came later are said where they are on; any version knows the others."""
    model = tiny_model("bert").float()
    prune_(model, PruneConfig(**{**UNSAID, **given}))
    gates_of(model).set_thresholds(THRESHOLDS)
    save(model, tokenizer, tmp_path / "run")
    prune = json.loads((tmp_path / "run" / MANIFEST).read_text(encoding="utf-8"))["prune"]
    assert prune == {**{name: SETTINGS[name] for name in set(SETTINGS) - set(UNSAID)}, **written}
    found = gates_of(load(tmp_path / "run").model).config
    assert found == PruneConfig(**{**UNSAID, **written})
