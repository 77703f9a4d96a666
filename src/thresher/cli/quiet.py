"""The libraries' own words, silenced while a command runs that is no job: jobs do it themselves."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_restoring: list[ExitStack] = [ExitStack()]  # of the process, and of the commands that run


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
    """No load reports and no progress bars of transformers until the command ends."""
    from thresher.quiet import quiet

    _restoring[-1].enter_context(quiet())
