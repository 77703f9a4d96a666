"""Tiny random models as Hugging Face folders, tiny data, and a way to call the command line and see all it says."""

import contextlib
import io
import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tests.words import word_tokenizer
from thresher.cli import main

GOOD = ("good", "fine", "great", "warm", "clever")
BAD = ("bad", "dull", "poor", "cold", "clumsy")
NOUNS = ("film", "plot", "cast", "score", "scene", "ending", "joke")
WORDS = (*GOOD, *BAD, *NOUNS, "a", "the", "very", "and", "is", "##s", "with")
LAYERS = 4

# Two steps a stage: enough to pass every branch of a run, and no more.
QUICK = "--max-steps 2 --batch-size 8 --target-flops 0.6 --precision fp32 --device cpu"


@dataclass(frozen=True)
class Said:
    """What a command left behind: its exit code and the text of both streams."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one JSON line that --json promises on standard output."""
        lines = self.out.splitlines()
        assert len(lines) == 1, f"--json must print one line, it printed {len(lines)}: {self.out[:500]}"
        return json.loads(lines[0])


def thresher(command: str, **places: object) -> Said:
    """Run a command line in this process, through the same entry point as the installed script.

    `{name}` in the command stands for a path or text given by that name, spaces and all.
    """
    words = [word.format(**places) for word in shlex.split(command)]
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["thresher", *words]),
    ):
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return Said(code, out.getvalue(), err.getvalue())


def succeeds(command: str, **places: object) -> Said:
    done = thresher(command, **places)
    assert done.code == 0, done.err[-2000:]
    return done


def tokenizer() -> Any:
    return word_tokenizer(WORDS, model_max_length=32)


def config(**changes: Any) -> Any:
    from transformers import BertConfig

    sizes: dict[str, Any] = {
        "vocab_size": len(WORDS) + 4,
        "hidden_size": 32,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 32,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        # Wide weights make attention far from uniform, so that thresholds have something to tell apart.
        "initializer_range": 0.3,
    }
    return BertConfig(**{**sizes, **changes})


def classifier_config(labels: tuple[str, ...] = ("negative", "positive"), **changes: Any) -> Any:
    names = dict(enumerate(labels))
    return config(num_labels=len(names), id2label=names, label2id={name: i for i, name in names.items()}, **changes)


def save_model(
    folder: Path,
    model_config: Any,
    *,
    head: bool = True,
    seed: int = 0,
    kind: str = "AutoModelForSequenceClassification",
) -> Path:
    """Write a random model and the tokenizer as a Hugging Face folder."""
    import transformers

    torch.manual_seed(seed)
    made: Any = getattr(transformers, kind if head else "AutoModel")
    made.from_config(model_config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def sentences(count: int) -> list[tuple[str, str]]:
    """(text, label) pairs, all different, of 3 to 9 words; the label is the mood of most adjectives."""
    found = []
    for index in range(count):
        mood, label = (GOOD, "positive") if index % 2 else (BAD, "negative")
        noun, other = NOUNS[index % len(NOUNS)], NOUNS[(index // 7) % len(NOUNS)]
        text = f"the {noun} is {mood[index % 5]}" + f" and {mood[(index // 5) % 5]}" * (index % 3)
        found.append((text + f" with a {other}" * (index % 2 + index // 49), label))
    assert len({text for text, _ in found}) == count
    return found


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows in the format that the extension names."""
    import csv

    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return path


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "thresher.json").read_text(encoding="utf-8"))
    return found


def tree(folder: Path) -> set[str]:
    """Every file and folder below, hidden ones included."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
