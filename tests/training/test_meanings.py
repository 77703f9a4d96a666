"""Rerankers, embeddings and several labels a row: what they learn from, and what chooses their checkpoints."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.tiny import (
    FILLERS,
    Recorder,
    gated_model,
    keyword_task,
    quick,
    sentence,
    stock_model,
    tiny_tokenizer,
)
from thresher.baselines import method_named
from thresher.config import METHODS, PruneConfig
from thresher.core.heads import Head
from thresher.engine.engine import Engine
from thresher.errors import ConfigError, DataError, ModelError
from thresher.evaluation.quality import encoded_rows
from thresher.models.attach import gates_of, prune_
from thresher.models.defaults import prune_defaults
from thresher.models.embedder import Embedder, take_pooler_
from thresher.models.heads import head_of
from thresher.tasks.task import Example, Task, TaskSpec
from thresher.training.judge import one_answer_for_all
from thresher.training.trainer import Trainer

RERANK = TaskSpec("pairs", "query", "document", (), ("ndcg@10",), means="score")
EMBED = TaskSpec("texts", "text", None, (), ("spearman",), means="embedding")
TOPICS = TaskSpec("topics", "text", None, ("bad", "good"), ("micro_f1", "macro_f1"), means="labels")
SEGMENT: dict[str, Any] = {"protect": ("first", "first_segment"), "separator_id": 3}


def pairs(count: int, *, seed: int, labels: tuple[float | None, ...] = (None,)) -> list[Example]:
    """Queries of two words with four documents each."""
    draw = random.Random(seed)
    queries = [" ".join(draw.sample(FILLERS, 2)) for _ in range(-(-count // 4))]
    return [Example(queries[i // 4], sentence(draw, "good"), labels[i % len(labels)]) for i in range(count)]


def rerank_task(**labels: tuple[float | None, ...]) -> Task:
    train = pairs(64, seed=1, labels=labels.get("train", (None,)))
    return Task(RERANK, train, pairs(24, seed=2, labels=labels.get("selection", (None,))), {}, "made up")


def embed_task() -> Task:
    draw = random.Random(5)
    rows = [Example(sentence(draw), None, None) for _ in range(88)]
    return Task(EMBED, rows[:64], rows[64:], {}, "made up")


def topic_task(count: int = 64) -> Task:
    draw = random.Random(6)
    marks = [(draw.randint(0, 1), draw.randint(0, 1)) for _ in range(count + 24)]
    rows = [
        Example(sentence(draw, *(n for n, m in zip(TOPICS.labels, mark, strict=True) if m)), None, mark)
        for mark in marks
    ]
    return Task(TOPICS, rows[:count], rows[count:], {}, "made up")


def embedder(reads: str = "mean", *, dropout: float = 0.0, **settings: Any) -> Any:
    """A tiny sentence embedder with gates."""
    from transformers import AutoModel

    encoder = AutoModel.from_config(stock_model(dropout=dropout).config)
    model = Embedder(encoder, Head(reads=reads, means="embedding", normalised=True, **settings))
    take_pooler_(model.encoder)
    prune_(model, PruneConfig(**prune_defaults(model.head, tiny_tokenizer())))
    return model


def fitted(
    model: Any, task: Task, recorder: Recorder | None = None, *, finetune: bool = False, **changes: Any
) -> Trainer:
    config = quick(**changes)
    trainer = Trainer(
        model,
        tiny_tokenizer(),
        task,
        config,
        method=method_named(config.method),
        finetune=finetune,
        progress=recorder,
        device="cpu",
    )
    trainer.fit()
    return trainer


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_a_reranker_without_labels(method: str) -> None:
    changes: dict[str, Any] = {"method": method, "target_flops": 0.95}  # the query alone costs a good part
    changes |= {"search_rounds": 1} if method == "lat" else {}
    trainer = fitted(gated_model(outputs=1, **SEGMENT), rerank_task(), max_steps=3, **changes)
    assert trainer.state.dense["score"] == pytest.approx(1.0)
    assert {"pearson", "spearman", "top1"} <= trainer.state.history[-1].keys()
    assert trainer.state.best_score is not None and -1 <= trainer.state.best_score <= 1


def test_a_reranker_comes_nearer_to_the_dense_model() -> None:
    """Whatever share of distillation is asked for: there is nothing else to learn from."""
    recorder, settings = Recorder(), {"method": "thresher", "max_steps": 200, "hard_epochs": 25.0, "distill": 0.0}
    trainer = fitted(gated_model(outputs=1, dropout=0.0, **SEGMENT), rerank_task(), recorder, **settings)
    losses = recorder.losses("hard")
    assert np.mean(losses[-20:]) < 0.5 * np.mean(losses[:20])
    scores = [row["score"] for row in trainer.state.history if row["stage"] == "hard"]
    assert trainer.state.best_score == pytest.approx(max(scores)) and max(scores) > 0.85


def test_the_query_is_whole_and_stays() -> None:
    """Long documents are cut on their own side, and the query's tokens are never dropped."""
    task = rerank_task()
    long = [replace(row, pair=" ".join(["word" + "a"] * 60)) for row in task.train]
    trainer = fitted(gated_model(outputs=1, **SEGMENT), replace(task, train=long), max_length=16, max_steps=2)
    assert trainer.rows.truncation()[0] == "64 training rows truncated to 16 tokens"
    assert all(row.input_ids.index(3) == 3 for row in trainer.rows.train.rows)  # [CLS] and two words before [SEP]
    rows, batch = trainer.judge.batches[0]
    trainer.model(**{name: value for name, value in batch.items() if name != "labels"})
    trace = gates_of(trainer.model).trace
    assert trace is not None and int(trace.kept()[:, -1].min()) >= 4


@pytest.mark.parametrize("means", ["embedding", "score", "classes"])
def test_no_text_is_longer_than_the_folder_of_a_reranker_or_an_embedder_says(means: str) -> None:
    """In training, evaluation and the engine, as in sentence-transformers; a classifier's folder says nothing."""
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length = 8
    model = {
        "embedding": embedder,
        "score": lambda: gated_model(outputs=1, **SEGMENT),
        "classes": gated_model,
    }[means]()
    task = {"embedding": embed_task, "score": rerank_task, "classes": keyword_task}[means]()
    trainer = Trainer(model, tokenizer, task, quick(max_length=24, max_steps=1, target_flops=0.95), device="cpu")
    gates_of(model).about = {"recipe": {"max_length": 24}}
    wanted = 24 if means == "classes" else 8
    assert (trainer.rows.train.max_length, trainer.rows.selection.max_length) == (wanted, wanted)
    assert encoded_rows(model, tokenizer, task, task.selection, max_length=24).max_length == wanted
    assert Engine.from_model(model, tokenizer, device="cpu", dtype="fp32").max_length == wanted
    assert Engine.from_model(model, tokenizer, device="cpu", dtype="fp32", max_length=20).max_length == 20


def test_rows_that_judge_nothing_are_refused_before_training() -> None:
    task = replace(rerank_task(), selection=pairs(8, seed=3, labels=(0.0,)))
    with pytest.raises(DataError, match="task pairs has 8 rows and no relevant one among them"):
        Trainer(gated_model(outputs=1, **SEGMENT), tiny_tokenizer(), task, quick(), device="cpu")


def test_labels_of_0_and_1_are_mixed_in_and_graded_ones_are_not() -> None:
    trainer = fitted(gated_model(outputs=1, **SEGMENT), rerank_task(train=(1.0, 0.0)), max_steps=2)
    assert trainer.labelled and trainer.rows.train.rows[0].label == 1.0
    graded = fitted(gated_model(outputs=1, **SEGMENT), rerank_task(train=(2.0, 0.0)), max_steps=2)
    assert not graded.labelled and len(graded.teacher_logits) == 64


def test_labelled_selection_rows_choose_by_their_order() -> None:
    trainer = fitted(gated_model(outputs=1, **SEGMENT), rerank_task(selection=(1.0, 0.0, 0.0, 0.0)), max_steps=2)
    assert {"ndcg@10", "mrr@10", "map"} <= trainer.state.history[-1].keys()
    assert trainer.state.history[-1]["score"] == trainer.state.history[-1]["ndcg@10"]


@pytest.mark.parametrize("reads", ["first", "mean"])
@pytest.mark.parametrize("method", ["thresher", "ltp"])
def test_embeddings_stay_near_the_dense_models(method: str, reads: str) -> None:
    recorder = Recorder()
    trainer = fitted(embedder(reads), embed_task(), recorder, method=method, max_steps=40, distill_hidden=0.01)
    assert trainer.state.best_score is not None and trainer.state.best_score > 0.8
    assert {"cosine", "neighbours"} <= trainer.state.history[-1].keys()
    assert all(0 <= loss <= 2.1 for loss in recorder.losses("hard"))


def test_every_pass_before_the_first_step_shows_how_far_it_is() -> None:
    """Of texts without labels the teacher reads all of them, which takes minutes."""
    recorder, task = Recorder(), embed_task()
    fitted(embedder(), replace(task, train=task.train * 30), recorder, method="thresher", max_steps=1)
    before = [begun for begun in recorder.begun if begun[0] != "hard"]
    assert [name for name, _, _ in before] == ["dense", "teacher", "shares"]
    for name, total, _ in before[:2]:
        assert total == len([stage for stage, _ in recorder.steps if stage == name])
    assert before[1][1] > 1, "in batches"


def test_embeddings_choose_among_wide_falls() -> None:
    """Of 12 layers 8, 24 and 48, so that tokens are left in the last of the four; a reranker has narrow ones."""
    found = fitted(embedder(), embed_task(), method="thresher", max_steps=40).gates.about["race"]
    assert list(found[0]["divergence_by_width"]) == ["2.67", "8", "16"]
    model = gated_model(outputs=1, **SEGMENT)
    found = fitted(model, rerank_task(), method="thresher", max_steps=40).gates.about["race"]
    assert list(found[0]["divergence_by_width"]) == ["1", "1.67", "2.67"]


def test_pairs_of_texts_are_embedded_one_by_one() -> None:
    task = embed_task()
    texts = [row.text for row in task.train]
    train = [Example(one, other, 3.0) for one, other in zip(texts[::2], texts[1::2], strict=True)]
    held = [Example(row.text, "good " + row.text, float(i)) for i, row in enumerate(task.selection)]
    trainer = fitted(embedder(), replace(task, train=train, selection=held))
    assert len(trainer.rows.train.rows) == 64 and not trainer.labelled
    assert len(trainer.rows.selection.rows) == 2 * len(held)
    assert "spearman" in trainer.state.history[-1]


def test_several_labels_are_learned() -> None:
    model = gated_model(dropout=0.0)
    model.config.problem_type = "multi_label_classification"
    trainer = fitted(model, topic_task(128), max_steps=400, target_flops=0.8, finetune_epochs=25.0, finetune=True)
    assert trainer.rows.train.rows[0].label in ((0, 0), (0, 1), (1, 0), (1, 1))
    found = trainer.state.history[-1]
    assert found["score"] == pytest.approx((found["micro_f1"] + found["macro_f1"]) / 2)
    assert trainer.state.dense["micro_f1"] > 0.9 and trainer.state.best_score > 0.8  # type: ignore[operator]


def test_a_prompt_stands_before_every_text() -> None:
    prompts: dict[str, Any] = {"prompts": {"query": "good "}, "default_prompt": "query"}
    trainer = fitted(embedder(**prompts), embed_task(), max_steps=1)
    assert all(row.input_ids[1] == 4 for row in [*trainer.rows.train.rows, *trainer.rows.selection.rows])


def test_heads_of_another_kind_are_refused_and_a_number_becomes_a_score() -> None:
    with pytest.raises(ModelError, match="are one class of several, and the rows are for several labels a row; give"):
        fitted(gated_model(), topic_task())
    model = gated_model()
    model.config.problem_type = "multi_label_classification"
    with pytest.raises(ModelError, match="are several labels a row, and the rows are for one class of several"):
        fitted(model, keyword_task())
    with pytest.raises(ModelError, match="of Embedder are an embedding, and the rows are for a reranker's score"):
        number = embedder()
        number.config.num_labels = 1
        fitted(number, rerank_task())
    model = gated_model(outputs=1, **SEGMENT)
    assert head_of(model).means == "value"
    fitted(model, rerank_task(), max_steps=1)
    assert head_of(model).means == "score"


def test_what_cannot_be_trained() -> None:
    with pytest.raises(ConfigError, match="task pairs have none to train on; give a model whose head is trained"):
        fitted(gated_model(outputs=1, **SEGMENT), rerank_task(), finetune=True)
    task = rerank_task()
    with pytest.raises(DataError, match="1 of 64 rows have no label; give all rows of a split one, or none"):
        mixed = [Example("worda", "wordb", None), *pairs(63, seed=3, labels=(1.0,))]
        fitted(gated_model(outputs=1, **SEGMENT), replace(task, train=mixed))
    alone = [Example("worda", None, None)] * 8
    with pytest.raises(DataError, match="for a reranker, whose rows are a query and a document"):
        fitted(gated_model(outputs=1, **SEGMENT), replace(task, train=alone))


def test_an_interrupted_run_without_labels_goes_on(tmp_path: Any) -> None:
    """The reference of the selection rows is the dense model's, not that of the weights so far."""
    from tests.training.tiny import differing, weights_of

    def train(work: Any, *, resume: bool = False, stop: int | None = None) -> Any:
        class Stop(Recorder):
            def step(self, **numbers: float | None) -> None:
                super().step(**numbers)
                if self.stage == "hard" and len(self.losses("hard")) == stop:
                    raise KeyboardInterrupt

        model = gated_model(outputs=1, **SEGMENT)
        trainer = Trainer(
            model,
            tiny_tokenizer(),
            rerank_task(),
            quick(method="thresher", max_steps=4, evals_per_stage=4),
            work=work,
            resume=resume,
            progress=Stop(),
            device="cpu",
        )
        if stop is None:
            return trainer.fit(), weights_of(model)
        with pytest.raises(KeyboardInterrupt):
            trainer.fit()
        return None

    whole, weights = train(tmp_path / "whole")
    train(tmp_path / "cut", stop=5)
    state, resumed = train(tmp_path / "cut", resume=True)
    assert [row["score"] for row in state.history] == [row["score"] for row in whole.history]
    assert differing(weights, resumed) == []


def test_models_with_one_answer_for_all_are_named() -> None:
    assert one_answer_for_all(RERANK, np.full((4, 1), 2.0)) == [
        "the dense model gives the same score to every selection row: nothing can be lost; it needs more training: "
        "more rows, more epochs (--finetune-epochs), or a higher --lr"
    ]
    assert "gives the same embedding to" in one_answer_for_all(EMBED, np.ones((4, 3)))[0]
    assert "gives no label to every" in one_answer_for_all(TOPICS, np.full((4, 2), -1.0))[0]
    assert "gives good to every" in one_answer_for_all(TOPICS, np.array([[-1.0, 1.0]] * 3))[0]
    assert (
        one_answer_for_all(RERANK, np.arange(4.0)[:, None])
        == one_answer_for_all(EMBED, np.eye(3))
        == one_answer_for_all(TOPICS, np.eye(2) - 0.5)
        == []
    )


def test_losses_by_hand() -> None:
    from thresher.core.losses import distillation_loss, task_loss

    logits, teacher = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [-1.0]])
    assert distillation_loss(logits, teacher, temperature=2.0, means="score").item() == pytest.approx(5.0)
    expected = -(np.log(0.5) + np.log(1 - 1 / (1 + np.exp(-2.0)))) / 2
    assert task_loss(logits, torch.tensor([1, 0]), means="score").item() == pytest.approx(expected)
    one, other = torch.tensor([[3.0, 0.0], [1.0, 1.0]]), torch.tensor([[0.0, 2.0], [2.0, 2.0]])
    assert distillation_loss(one, other, temperature=1.0, means="embedding").item() == pytest.approx(0.5)
    marks = torch.tensor([[1.0, 0.0]])
    assert task_loss(torch.zeros(1, 2), marks, means="labels").item() == pytest.approx(np.log(2))
    same = distillation_loss(one, one, temperature=2.0, means="labels")
    assert same.item() == pytest.approx(0.0, abs=1e-6)
    # KL of (3/4, 1/4) from (1/2, 1/2), softened by 2 and scaled back
    soft = distillation_loss(torch.zeros(1, 1), torch.tensor([[2 * np.log(3.0)]]), temperature=2.0, means="labels")
    assert soft.item() == pytest.approx(4 * (0.75 * np.log(1.5) + 0.25 * np.log(0.5)), rel=1e-5)
    with pytest.raises(ValueError, match="means = 'embedding' has no labels to learn from"):
        task_loss(one, torch.tensor([1.0, 2.0]), means="embedding")
