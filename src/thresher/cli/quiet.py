"""The libraries' own words, silenced while a command runs: our output says what matters, and theirs would bury it."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

# What processes that a command starts are told; in this one transformers is already imported.
FOR_CHILDREN = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
_restoring: list[ExitStack] = []  # of the command that runs


@contextmanager
def loud_afterwards() -> Iterator[None]:
    """For the length of a command: what it silences speaks again afterwards, as a caller in the same process had it."""
    with ExitStack() as stack:
        _restoring.append(stack)
        try:
            yield
        finally:
            _restoring.pop()


def quiet_libraries() -> None:
    """No load reports and no progress bars of transformers, here and in processes that are started from here."""
    import transformers

    logging = transformers.logging
    if _restoring:
        verbosity = logging.get_verbosity()
        _restoring[-1].callback(logging.set_verbosity, verbosity)
        if logging.is_progress_bar_enabled():
            _restoring[-1].callback(logging.enable_progress_bar)
        for name in FOR_CHILDREN:
            _restoring[-1].callback(_set, name, os.environ.get(name))
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # transformers leaves both untyped
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    for name, value in FOR_CHILDREN.items():
        os.environ.setdefault(name, value)


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
