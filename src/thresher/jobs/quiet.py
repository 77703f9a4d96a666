"""Our own words say what matters; the libraries' load reports and progress bars would bury them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

# What processes that a job starts are told; in this one transformers is already imported.
FOR_CHILDREN = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def quiet_libraries() -> None:
    """For the rest of the process, and in processes that it starts."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # transformers leaves both untyped
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    for name, value in FOR_CHILDREN.items():
        os.environ.setdefault(name, value)


@contextmanager
def quiet() -> Iterator[None]:
    """For the time of a job, here and in processes that it starts; the caller's own settings come back."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    told = {name: os.environ.get(name) for name in FOR_CHILDREN}
    quiet_libraries()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
        for name, value in told.items():
            if value is None:
                os.environ.pop(name, None)
