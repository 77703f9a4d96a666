import numpy as np
import pytest

from thresher.errors import DataError
from thresher.tasks import Example, Task, TaskSpec, load_task

CLASSES = TaskSpec("films", "text", None, ("bad", "good"), ("accuracy", "f1"))
NUMBERS = TaskSpec("stars", "text", "title", (), ("pearson", "spearman"))


def test_number_of_outputs() -> None:
    assert (CLASSES.num_labels, CLASSES.regression) == (2, False)
    assert (NUMBERS.num_labels, NUMBERS.regression) == (1, True)


def test_metrics_must_fit_the_labels() -> None:
    with pytest.raises(ValueError, match="regression knows pearson, spearman"):
        TaskSpec("stars", "text", None, (), ("accuracy",))
    with pytest.raises(ValueError, match="classification knows accuracy, f1"):
        TaskSpec("films", "text", None, ("bad", "good"), ())


def test_f1_is_for_two_labels() -> None:
    for labels in (("bad", "fair", "good"), ("good",)):
        rule = rf"metrics = \('f1',\) of task films: f1 needs two labels, and there are {len(labels)}; use accuracy"
        with pytest.raises(ValueError, match=rule):
            TaskSpec("films", "text", None, labels, ("f1",))
        TaskSpec("films", "text", None, labels, ("accuracy",))


def test_score_is_the_specs_metrics() -> None:
    rows = [Example("a film", None, 1)]
    task = Task(CLASSES, rows, rows, {"test": rows}, "by hand")
    assert task.score(np.array([[0.0, 1.0], [0.0, 1.0]]), [1, 0]) == pytest.approx(
        {"accuracy": 0.5, "f1": 2 / 3, "score": (0.5 + 2 / 3) / 2}
    )


def test_load_task_names_what_it_knows(tmp_path) -> None:
    with pytest.raises(DataError, match="unknown task 'sst3'; known tasks: movies, mnli, qnli, sst2"):
        load_task("sst3", data=None)
    with pytest.raises(DataError, match="read with --train FILE or --test FILE, in Python with load_file_task"):
        load_task("sst3", data=None)
    with pytest.raises(DataError, match="movies carries its own data.*leave --data out, in Python data="):
        load_task("movies", data=tmp_path)
