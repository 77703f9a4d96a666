"""Rows from whole documents: JSON, the SQuAD layout among it, and words with tags in columns."""

import json
from pathlib import Path
from typing import Any

from thresher.errors import DataError

Rows = tuple[list[dict[str, Any]], list[int] | None]  # and the line where each begins, where that says something
DOCUMENT = "-DOCSTART-"  # a line of CoNLL's files between two documents
COLUMN_ENDINGS = (".conll", ".bio", ".iob", ".iob2")


def json_rows(path: Path, text: str) -> Rows:
    """A list of objects, or SQuAD's articles, whose questions become rows: title, context, question, answers, id."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON: {error}; one object a line goes into a .jsonl file") from error
    if isinstance(found, dict) and isinstance(found.get("data"), list):
        return _questions(path, found["data"]), None
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise DataError(f"{path} must hold a list of JSON objects, or SQuAD's layout: data, paragraphs, qas")
    return found, None


def _questions(path: Path, articles: list[Any]) -> list[dict[str, Any]]:
    rows = []
    try:
        for number, article in enumerate(articles):
            title = article.get("title", f"article {number + 1}")
            for paragraph in article["paragraphs"]:
                for asked in paragraph["qas"]:
                    row = {"title": title, "context": paragraph["context"], "question": asked["question"]}
                    # Version 2 marks what has no answer; plausible answers are beside the point.
                    answers = [] if asked.get("is_impossible") else asked.get("answers", [])
                    rows.append({**row, "answers": answers, "id": asked.get("id")})
    except (AttributeError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}, article {len({row['title'] for row in rows}) + 1} is not in SQuAD's layout: {error!r}; it needs "
            "paragraphs with a context and qas, each with a question and answers"
        ) from error
    return rows


def column_rows(path: Path, text: str) -> Rows:
    """CoNLL's layout: a word a line, its tag in the last column, an empty line between two sentences."""
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        parts = line.split()
        if parts and parts[0] != DOCUMENT:
            if len(parts) < 2:
                raise DataError(f"{path}, line {number} has one column, {parts[0]!r}; it needs a word and its tag")
            if not words:
                lines.append(number)
            words.append(parts[0])
            tags.append(parts[-1])
        elif words:
            rows.append({"tokens": words, "tags": tags})
            words, tags = [], []
    return rows, lines
