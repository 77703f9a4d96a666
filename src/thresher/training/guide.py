"""What code outside a training run may decide in it: where pruning starts, what is kept of the teacher, when to end."""

from collections.abc import Callable

from torch import Tensor


class Stopped(Exception):
    """Training ended before its last step because the guide gave a reason to; nothing more was saved."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Guide:
    """As it stands: training starts from the dense model, predicts its teacher and runs to the end.

    Of processes that share a training run each has its own guide; these must decide alike.
    """

    def first_weights(self) -> dict[str, Tensor]:
        """Weights that replace the dense model's, by name, once that model is the teacher."""
        return {}

    def teacher_logits(self, predict: Callable[[], Tensor]) -> Tensor:
        """(rows, outputs) logits of the teacher on the training rows: what `predict` gives, or gave before."""
        return predict()

    def reason_to_stop(self, stage: str, score: float | None) -> str | None:
        """Asked after every step of a stage but its last, and after those of the search for a target before it.
        `score` is of an evaluation just made. With a reason, the trainer raises `Stopped`."""
        return None
