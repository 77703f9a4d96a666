"""Errors a user can act on: each message gives the value, the rule and the next step.

The command line prints them as one line without a traceback; everything else is a bug and keeps its traceback.
"""


class ThresherError(Exception):
    """Base of every error that is the input's fault rather than ours."""


class ConfigError(ThresherError):
    """A setting has a value outside its rule."""


class DataError(ThresherError):
    """A data file, row, column or label cannot be used."""


class ModelError(ThresherError):
    """A model cannot be loaded, is of an unsupported family, or has the wrong head."""


class PredictionError(ModelError):
    """A model's predictions are NaN or infinite, or its gradients were too often."""


class CheckpointError(ThresherError):
    """A saved folder is missing, damaged, or from a newer format."""


class RunError(ThresherError):
    """A run folder is in the way, or there is nothing to resume."""


class Interrupted(RunError):
    """Somebody told the program to end; the message says what is left of its work."""


def is_failure(error: BaseException) -> bool:
    """Whether a library failed at its work, and was not told to end. A panic in Rust is no Exception, but a failure."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
