"""The models, rows and finished run of the command line's tests, for the functions behind it."""

from tests.cli.conftest import finished, loud_libraries, one_thread, stock

__all__ = ["finished", "loud_libraries", "one_thread", "stock"]
