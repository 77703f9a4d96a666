"""Questions that question answering is trained, chosen and tested on, in SQuAD's own layout.

    python -m thresher.experiments.squad_rows --data DIR --out DIR

`--data` has squad_v2 (its development set) and squad_shifts. SQuAD's training set is not among them: articles of the
development set are split by the hash of their titles into train, selection and test, and training also gets questions
of SQuADShifts, most of them with their answer, some with another paragraph of the same domain, BM25's first that has
none of its answers. No article of selection or test is trained on, nor any of its paragraphs.
"""

import json
import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from thresher.errors import DataError
from thresher.experiments.bm25 import BM25
from thresher.experiments.rows import chosen, prepared_by_command
from thresher.records import write_json
from thresher.tasks.questions import QuestionColumns, question_rows, without_misplaced
from thresher.tasks.readers import read_table
from thresher.tasks.squad import by_article
from thresher.tasks.task import Example
from thresher.tasks.truth import Answers

# Questions of each domain with an answer, and those that are made unanswerable.
SHARES = {
    "new_wiki": (5500, 2400),
    "nyt": (4500, 1800),
    "reddit": (2000, 700),
    "amazon_reviews": (2000, 700),
}
CANDIDATES = 10  # paragraphs that a made question is tried with
FILES = {"train": "train", "selection": "selection", "validation": "dev"}


def prepare(data: Path, out: Path) -> dict[str, int]:
    """Write train, selection and dev; returns the number of questions of each, and of those that were left out."""
    rows, _, _ = _read(data / "squad_v2" / "dev-v2.0.json.xz")
    parts = by_article(rows)
    held = [row for part in ("selection", "validation") for row in parts[part]]
    titles, contexts = {row.group for row in held}, {row.pair for row in held}
    counts = {f"squad_v2 {part}": len(found) for part, found in parts.items()}
    for domain, (answerable, made) in SHARES.items():
        own, lost, questions = _read(data / "squad_shifts" / f"{domain}_v1.0.json.xz")
        free = [row for row in own if row.group not in titles and row.pair not in contexts]
        both = chosen(free, answerable + made, key=_identity, salt=domain)
        paired = list(unanswerable(both[answerable:], free))
        parts["train"] += [*both[:answerable], *paired]
        counts |= {
            f"{domain} with an answer": len(both[:answerable]),
            f"{domain} made unanswerable": len(paired),
            f"{domain} answers not in their place": lost,
            f"{domain} questions left out for it": questions,
            f"{domain} questions of articles that are tested": len(own) - len(free),
        }
    for part, name in FILES.items():
        write_squad(out / "squad_v2" / f"{name}.json.xz", parts[part])
        counts[f"{part} in all"] = len(parts[part])
    write_json(out / "squad_v2" / "about.json", counts)
    return counts


def unanswerable(rows: Sequence[Example], corpus: Sequence[Example]) -> Iterator[Example]:
    """Each question with the first paragraph that BM25 finds for it, other than its own, that has none of its answers;
    a question without such a paragraph among the first ten is left out."""
    paragraphs = list(dict.fromkeys(row.pair or "" for row in corpus))
    search = BM25(paragraphs)
    for row in rows:
        assert isinstance(row.label, Answers)
        for index in search.top(row.text, CANDIDATES):
            other = paragraphs[index]
            if other != row.pair and not any(text.lower() in other.lower() for text in row.label.texts):
                yield Example(row.text, other, Answers(), f"made: {row.group}")
                break


def write_squad(path: Path, rows: Sequence[Example]) -> None:
    """SQuAD's layout, packed: articles, paragraphs, questions, in the order in which they first come."""
    articles: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for number, row in enumerate(rows):
        assert isinstance(row.label, Answers)
        answers = [{"text": t, "answer_start": s} for t, s in zip(row.label.texts, row.label.starts, strict=True)]
        asked = {"id": str(number), "question": row.text, "answers": answers, "is_impossible": not answers}
        articles.setdefault(str(row.group), {}).setdefault(row.pair or "", []).append(asked)
    data = [
        {"title": title, "paragraphs": [{"context": context, "qas": asked} for context, asked in found.items()]}
        for title, found in articles.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt", preset=9, encoding="utf-8") as file:
        json.dump({"version": "v2.0", "data": data}, file, ensure_ascii=False)


def _read(file: Path) -> tuple[list[Example], int, int]:
    """Rows, answers that are not in their place, and questions that had no other."""
    if not file.is_file():
        raise DataError(f"{file} does not exist; see the page of the experiment for where it is from")
    table, lost, questions = without_misplaced(read_table(file))
    return question_rows(table, QuestionColumns()), lost, questions


def _identity(row: Example) -> str:
    return f"{row.text}\n{row.pair}"


if __name__ == "__main__":
    prepared_by_command(prepare, __doc__)
