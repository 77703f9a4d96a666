"""Every job with models that answer questions or tag words: what is saved is what was measured, and is served."""

from pathlib import Path
from typing import Any

import pytest

import thresher
from tests.training.test_tokens import model_for, task
from tests.training.tiny import tiny_tokenizer
from thresher.engine.engine import Engine
from thresher.errors import ModelError
from thresher.models.attach import unprune_
from thresher.models.checkpoint import read_manifest
from thresher.tasks.squad_score import shared_words

SETTINGS: dict[str, Any] = {"max_steps": 12, "batch_size": 16, "max_length": 32, "lr": 3e-3, "device": "cpu"}
MEANS = ("span", "tags")


@pytest.fixture(scope="module", params=MEANS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Any]:
    """What the head means, a run that was made of an encoder, and what pruning said of it."""
    folder = tmp_path_factory.mktemp(request.param)
    model = model_for(request.param)
    unprune_(model)
    model.base_model.save_pretrained(folder / "encoder")
    tiny_tokenizer().save_pretrained(folder / "encoder")
    rows = task(request.param, 256)
    result = thresher.prune(folder / "encoder", out=folder / "run", task=rows, target_flops=0.7, **SETTINGS)
    return request.param, folder / "run", result


def test_a_run_is_what_was_measured(made: tuple[str, Path, Any]) -> None:
    means, run, result = made
    quality = result.quality["test"]
    head = read_manifest(run)["head"]
    assert (head["reads"], head["means"]) == ("tokens", means)
    if means == "span":
        assert head["null_threshold"] == quality["pruned"].metrics["null_threshold"]
        assert {"f1", "exact", "hasans_f1", "noans_f1"} <= set(quality["dense"].metrics)
        assert read_manifest(run)["prune"]["protect"] == ["first", "first_segment"]
    again = thresher.evaluate_run(run, task=task(means, 256), device="cpu").splits["test"]
    assert again["pruned"].metrics == pytest.approx(quality["pruned"].metrics)
    assert again["dense"].metrics == pytest.approx(quality["dense"].metrics)
    assert again["pruned"].relative_flops == pytest.approx(quality["pruned"].relative_flops)


def test_the_engine_gives_the_answers_that_were_measured(made: tuple[str, Path, Any]) -> None:
    means, run, result = made
    rows = task(means, 256).test["test"]
    engine = Engine.load(run, device="cpu", dtype="fp32")
    if means == "span":
        found = engine.answer([row.text for row in rows], [row.pair or "" for row in rows])
        right = [shared_words((*row.label.texts, "")[0], one.text) for row, one in zip(rows, found, strict=True)]  # type: ignore[union-attr]
        total = sum(right)
        assert total / len(rows) == pytest.approx(result.quality["test"]["pruned"].metrics["f1"], abs=0.05)
    else:
        tags = [found.tags for found in engine.tag([row.words for row in rows])]
        names = engine.labels
        gold = [tuple(names[number] for number in row.label) for row in rows]  # type: ignore[union-attr]
        both = [(a, b) for one, other in zip(tags, gold, strict=True) for a, b in zip(one or (), other, strict=True)]
        assert sum(a == b for a, b in both) / len(both) > 0.6


@pytest.mark.parametrize("means", MEANS)
def test_a_head_of_another_kind_is_not_replaced_in_silence(means: str, tmp_path: Path) -> None:
    model = model_for("tags" if means == "span" else "span")
    unprune_(model)
    model.save_pretrained(tmp_path / "other")
    tiny_tokenizer().save_pretrained(tmp_path / "other")
    with pytest.raises(ModelError, match="has a head, but not for"):
        thresher.prune(tmp_path / "other", out=tmp_path / "run", task=task(means), **SETTINGS)


def test_search(made: tuple[str, Path, Any], tmp_path: Path) -> None:
    means, run, _ = made
    found = thresher.search(
        run / "dense", out=tmp_path / "found", task=task(means, 64), max_drop=0.5, max_trials=2, **SETTINGS
    )
    assert found.held_out_drop["test"].rows == 32 and (tmp_path / "found" / "pareto.json").is_file()
    head = read_manifest(tmp_path / "found")["head"]
    assert ("null_threshold" in head) == (means == "span")
