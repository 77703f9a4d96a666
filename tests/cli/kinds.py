"""Tiny rerankers, embedding models and models of several labels, with texts for them, and runs that calibrate makes."""

import random
from pathlib import Path

from tests.cli import tiny
from tests.models.sentences import WORDS, cross_encoder_folder, embedder_folder

KINDS = ("embedder", "reranker", "labels")
LINEAR = "torch.nn.modules.linear.Identity"


def words(count: int) -> list[str]:
    """Different texts of the words that the sentence models know."""
    draw, some = random.Random(0), [word for word in WORDS if word.isalpha()]
    found = dict.fromkeys(" ".join(draw.choices(some, k=draw.randint(3, 10))) for _ in range(2 * count))
    return list(found)[:count]


def write_texts(file: Path, lines: list[str]) -> Path:
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def pair_lines(count: int) -> list[str]:
    """Queries with four documents each, and a tab between."""
    texts = words(count)
    return [f"{texts[i // 4]}\t{text}" for i, text in enumerate(texts)]


def save_models(place: Path) -> Path:
    """A model of each kind, and beside it a file of texts for it."""
    embedder_folder(place / "embedder")
    cross_encoder_folder(place / "reranker", sbert_ce_default_activation_function=LINEAR)
    names = ("cold", "long", "warm")
    tiny.save_model(place / "labels", tiny.classifier_config(names, problem_type="multi_label_classification"))
    write_texts(place / "embedder.txt", words(90))
    write_texts(place / "reranker.txt", pair_lines(96))
    write_texts(place / "labels.txt", [text for text, _ in tiny.sentences(90)])
    return place


def calibrated(place: Path) -> Path:
    """A run of each of these models, in runs/."""
    call = "calibrate {dir}/{kind} --texts {dir}/{kind}.txt --agreement 0.9 --out {dir}/runs/{kind}"
    for kind in KINDS:
        tiny.succeeds(call, dir=place, kind=kind)
    return place / "runs"
