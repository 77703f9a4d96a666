"""What is lost where a tagger gets strings, and not the words that it was trained and measured on.

    python -m thresher.experiments.ner_strings --model DIR --data DIR --out DIR

`--model` is a tagger, such as the folder dense/ of a run of this experiment; `--data` has conll2003. Its test sentences
are given as words, as strings with a space between two words, and as strings that people would write; strings are
divided by the tokenizer, and as `tokenizing.words` does it. F1 is of entities by their characters. The line is added
to DIR/strings.jsonl.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from thresher.core.heads import WORDS
from thresher.engine.engine import Engine
from thresher.experiments.rows import Row, prepared_by_command
from thresher.models.checkpoint import load_dense
from thresher.models.heads import head_of, set_head_
from thresher.records import append_record, provenance
from thresher.tasks.conll import load_conll
from thresher.tasks.of_tokens import entity_scores
from thresher.tokenizing.tags import chunks

Place = tuple[str, int, int]  # label, first character and the one after the last
BEFORE = (*".,;:!?)%", "'s", "n't", "'re", "'ve", "'ll", "'d", "'m")  # what has no space before it
AFTER = ("(", "$")  # and what has none after it
QUOTE = '"'
COMMAND = "python -m thresher.experiments.ner_strings --model runs/OUT/dense --data data --out experiments/ner"


def measure(model: Path, data: Path, out: Path) -> dict[str, int]:
    """Append the record; returns the number of sentences."""
    task = load_conll(data)
    sentences = [(row.words, chunks([task.spec.labels[tag] for tag in row.label])) for row in task.test["test"]]  # type: ignore[union-attr]
    found: Row = {}
    for division in WORDS:
        loaded, tokenizer = load_dense(model, whole=True)
        set_head_(loaded, replace(head_of(loaded), words=division))
        engine = Engine.from_model(loaded, tokenizer, device="cpu")
        for name, write in (("spaced", spaced), ("written", written)):
            texts = [write(words) for words, _ in sentences]
            right = [
                {(label, spans[a][0], spans[b - 1][1]) for label, a, b in entities}
                for (_, spans), (_, entities) in zip(texts, sentences, strict=True)
            ]
            found[f"{name}_by_{division}_f1"] = f1_of(engine, [text for text, _ in texts], right)
            if (division, name) == (WORDS[0], "spaced"):
                found["words_f1"] = f1_of(engine, [list(words) for words, _ in sentences], right)
    about = {**provenance(device="cpu", seed=None), "command": COMMAND}  # this machine's folders say nothing
    append_record(out / "strings.jsonl", {**about, "sentences": len(sentences), **found})
    for name, score in found.items():
        print(f"{name}: {100 * score:.2f}")
    return {"sentences": len(sentences)}


def f1_of(engine: Engine, texts: Sequence[Any], right: Sequence[set[Place]]) -> float:
    tagged = [{(one.label, one.start, one.end) for one in found.entities} for found in engine.tag(texts)]
    both = sum(len(ours & theirs) for ours, theirs in zip(tagged, right, strict=True))
    return entity_scores([both, sum(map(len, tagged)), sum(map(len, right))])["f1"]


def spaced(words: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """The words with a space between two, and where each is."""
    return _joined(words, [" "] * len(words))


def written(words: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """The words as people write them: punctuation stands by its word, inside of quotes and brackets."""
    gaps, quoted = list[str](), False
    for before, word in zip(["", *words], words, strict=False):
        opened = before in AFTER or (before == QUOTE and quoted)
        quoted ^= word == QUOTE
        gaps.append("" if opened or word in BEFORE or (word == QUOTE and not quoted) else " ")
    return _joined(words, gaps)


def _joined(words: Sequence[str], gaps: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    text, spans = "", list[tuple[int, int]]()
    for gap, word in zip(gaps, words, strict=True):
        text += gap if text else ""
        spans.append((len(text), len(text) + len(word)))
        text += word
    return text, spans


if __name__ == "__main__":
    prepared_by_command(measure, __doc__, folders=("model", "data"))
