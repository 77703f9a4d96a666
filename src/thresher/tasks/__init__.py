"""Data in, metric out: GLUE, SQuAD, CoNLL-2003, the demo's movie reviews and the user's own files."""

from pathlib import Path

from thresher.errors import DataError
from thresher.tasks.conll import CONLL, load_conll
from thresher.tasks.files import load_file_task, load_test_file
from thresher.tasks.glue import GLUE_TASKS, load_glue
from thresher.tasks.movies import load_movies
from thresher.tasks.squad import SQUAD_TASKS, load_squad
from thresher.tasks.task import Example, Task, TaskSpec

__all__ = ["Example", "Task", "TaskSpec", "load_file_task", "load_task", "load_test_file", "task_names"]


def task_names() -> list[str]:
    return ["movies", *GLUE_TASKS, *SQUAD_TASKS, CONLL.name]


def load_task(name: str, *, data: str | Path | None = None) -> Task:
    """A task by its name: 'movies', conll2003 from the folder `data`, or a GLUE task or SQuAD from there (from the
    Hugging Face hub without a folder)."""
    if name == "movies":
        if data is not None:
            raise DataError(
                f"task movies carries its own data and reads nothing from {data}; leave --data out, in Python data="
            )
        return load_movies()
    folder = None if data is None else Path(data)
    if name in SQUAD_TASKS:
        return load_squad(name, folder)
    if name == CONLL.name:
        return load_conll(folder)
    if name not in GLUE_TASKS:
        known = ", ".join(task_names())
        raise DataError(
            f"unknown task '{name}'; known tasks: {known}; your own files are read with --train FILE or --test FILE, "
            "in Python with load_file_task"
        )
    return load_glue(name, folder)
