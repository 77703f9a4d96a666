"""Our own words say what matters; the libraries' load reports and progress bars would bury them."""

from collections.abc import Iterator
from contextlib import contextmanager


def quiet_libraries() -> None:
    """For the rest of the process."""
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # transformers leaves both untyped
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def quiet() -> Iterator[None]:
    """For the time of a job; the caller's own settings come back."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    quiet_libraries()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
