"""Heads that read every token, trained: answers and tags are learned, and kept where most tokens are dropped."""

import random
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig

import thresher
from tests.training.tiny import FFN_WIDTH, FILLERS, HEADS, LAYERS, QUICK, VOCABULARY, WIDTH, Recorder, tiny_tokenizer
from thresher.config import PruneConfig, TrainConfig
from thresher.errors import ConfigError
from thresher.evaluation.quality import chosen_threshold, evaluate
from thresher.models.attach import gates_of
from thresher.models.defaults import prune_defaults
from thresher.models.heads import auto_class, head_of
from thresher.tasks.task import Example, Task, TaskSpec
from thresher.tasks.truth import Answers
from thresher.training.progress import Silent
from thresher.training.trainer import Trainer

QUESTIONS = TaskSpec("where", "question", "context", (), ("f1",), means="span")
TAGS = TaskSpec("keywords", "tokens", None, ("O", "B-GOOD", "B-BAD"), ("f1",), means="tags")
SPECS = {"span": QUESTIONS, "tags": TAGS}


def question(draw: random.Random) -> Example:
    """Where is the keyword? A third of the contexts do not have it. Most are longer than a window."""
    asked, words = draw.choice(["good", "bad"]), draw.choices(FILLERS, k=draw.randint(8, 40))
    if draw.random() < 0.33:
        return Example(asked, " ".join(words), Answers())
    place = draw.randint(0, len(words))
    words.insert(place, asked)
    start = len(" ".join(words[:place])) + (place > 0)
    return Example(asked, " ".join(words), Answers((asked,), (start,)))


def tagged(draw: random.Random) -> Example:
    words = draw.choices([*FILLERS[:6], "good", "bad"], k=draw.randint(3, 14))
    tags = tuple({"good": 1, "bad": 2}.get(word, 0) for word in words)
    return Example(" ".join(words), None, tags, words=tuple(words))


def task(means: str, rows: int = 64) -> Task:
    draw = random.Random(7)
    made = [question(draw) if means == "span" else tagged(draw) for _ in range(rows + 64)]
    return Task(SPECS[means], made[64:], made[:32], {"test": made[32:64]}, "made up")


def model_for(means: str, **settings: Any) -> Any:
    sizes: dict[str, Any] = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    sizes |= {"intermediate_size": FFN_WIDTH, "max_position_embeddings": 40, "vocab_size": len(VOCABULARY)}
    sizes |= {"initializer_range": 0.2, "pad_token_id": 0, "num_labels": SPECS[means].num_labels}
    torch.manual_seed(0)
    model = auto_class(means).from_config(AutoConfig.for_model("bert", **sizes))
    own = prune_defaults(head_of(model), tiny_tokenizer())
    thresher.prune_(model, PruneConfig(**{**own, **settings}))
    return model


def trained(
    means: str, *, rows: int = 64, finetune: bool = True, progress: Silent | None = None, **settings: Any
) -> Trainer:
    config = TrainConfig(**{**QUICK, "method": "thresher", **settings})
    trainer = Trainer(
        model_for(means),
        tiny_tokenizer(),
        task(means, rows),
        config,
        finetune=finetune,
        progress=progress or Silent(),
        device="cpu",
    )
    trainer.fit()
    return trainer


@pytest.mark.parametrize("method", ["thresher", "ltp", "manual", "spatten", "lat", "power", "random", "dense"])
@pytest.mark.parametrize("means", SPECS)
def test_every_method_that_applies_trains(means: str, method: str) -> None:
    extra = {"search_rounds": 1} if method == "lat" else {}
    target = 0.95 if method in ("spatten", "random") else 0.7  # their first layers keep all
    trainer = trained(means, method=method, target_flops=target, **extra)
    found = trainer.judge.evaluate(pruned=True)
    assert 0 <= found["score"] <= 1
    if method != "dense":
        assert found["relative_flops"] < 0.99
    assert not gates_of(trainer.model).config.collapse_last
    assert bool(torch.isfinite(trainer.teacher_logits).all())


def test_every_layers_output_says_where_its_tokens_are() -> None:
    """The last one has all tokens in their places, those that were left out among them."""
    model = model_for("tags", score="attention").eval()
    gates = gates_of(model)
    gates.set_thresholds([0.7, 0.9, 1.0, 1.2])
    ids = torch.randint(6, len(VOCABULARY), (5, 24), generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    whole = model(**inputs, output_hidden_states=True).hidden_states[1:]
    with gates.shortening():
        short = model(**inputs, output_hidden_states=True).hidden_states[1:]
    assert gates.trace is not None
    assert short[-2].shape[1] < short[-1].shape[1] == 24, "something was left out before the end"
    for ours, theirs, (places, live) in zip(short, whole, gates.trace.outputs_at(), strict=True):
        assert places is not None and live.shape == ours.shape[:2]
        wanted = theirs.gather(1, places[:, :, None].expand_as(ours))
        torch.testing.assert_close(ours[live], wanted[live], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("means", SPECS)
def test_collapse_is_refused_by_name(means: str) -> None:
    with pytest.raises(ConfigError, match="'collapse' leaves first tokens alone, and the head reads every token"):
        trained(means, method="collapse")


@pytest.mark.parametrize(("means", "steps", "least"), [("span", 150, 0.85), ("tags", 120, 0.95)])
def test_it_is_learned_and_kept(means: str, steps: int, least: float) -> None:
    """Also by what was never seen, at a fraction of the cost."""
    trainer = trained(means, rows=512, max_steps=steps, finetune_epochs=20, target_flops=0.6, lr=3e-3, batch_size=32)
    model, made = trainer.model, trainer.task
    threshold = chosen_threshold(model, tiny_tokenizer(), made)
    dense = trainer.state.dense["score"]
    found = evaluate(model, tiny_tokenizer(), made, null_threshold=threshold)
    assert dense > least, "the dense model has learned it"
    assert found.metrics["f1"] > least - 0.05
    assert found.relative_flops is not None and found.relative_flops < 0.65


def test_rows_without_labels_learn_from_the_dense_model() -> None:
    trainer = trained("tags", max_steps=20)
    rows = trainer.task
    nameless = Task(rows.spec, [replace(row, label=None) for row in rows.train], rows.selection, rows.test, "")
    again = Trainer(
        trainer.model, tiny_tokenizer(), nameless, TrainConfig(**{**QUICK, "method": "thresher"}), device="cpu"
    )
    again.fit()
    assert 0 <= again.judge.evaluate(pruned=True)["score"] <= 1


@pytest.mark.parametrize("means", SPECS)
def test_some_of_the_context_reaches_the_end(means: str) -> None:
    """Where every token is read, no layer leaves protected tokens alone; a floor is a share of the target."""
    trainer = trained(means, target_flops=0.7, max_steps=12, widths=[3], floors=[0.3])
    thresholds = gates_of(trainer.model).thresholds
    assert not torch.isinf(thresholds).any(), "every layer leaves some"
    heard = Recorder()
    raced = trained(means, target_flops=0.7, max_steps=12, progress=heard)
    names = list(raced.gates.about["race"][0]["divergence_by_width"])
    assert names == ["1", "1 to 0.4"]  # three of twelve layers are one of four
    assert any(re.search(r"over which tokens fall: 1: [\d.]+, 1 with floor 0.4: [\d.]+$", note) for note in heard.notes)
