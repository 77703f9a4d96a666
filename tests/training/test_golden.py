"""The first losses of a fixed run, so that no change of the arithmetic goes unnoticed.

Dropout and the FLOPs target are off: random masks and the search could differ from one processor to another, the rest
differs by rounding only (2e-6 between one and two threads, and between AVX and plain code). If a change is meant to
alter the losses, run this file and copy what the failure shows.
"""

import pytest

from tests.training.tiny import Recorder, gated_model, keyword_task, quick, tiny_tokenizer, tokenizer_for
from thresher.training.method import Ltp
from thresher.training.trainer import Trainer

GOLDEN: dict[str, dict[str, list[float]]] = {
    "bert": {
        "finetune": [0.77569, 0.69998, 0.70966],
        "soft": [1.06339, 1.03955, 1.0469],
        "hard": [0.36384, 0.34642, 0.34533],
    },
    "mpnet": {
        "finetune": [0.82627, 0.72888, 0.71675],
        "soft": [1.0942, 1.06471, 1.06187],
        "hard": [0.36544, 0.34897, 0.34905],
    },
    "albert": {
        "finetune": [0.71144, 0.70848, 0.69188],
        "soft": [1.02908, 1.05917, 1.06096],
        "hard": [0.34936, 0.34793, 0.34411],
    },
}


@pytest.mark.parametrize("name", ["bert", "mpnet", "albert"])
def test_first_losses(name: str) -> None:
    recorder = Recorder()
    config = quick(target_flops=None, lambda_=0.5, max_steps=3, evals_per_stage=1, lr=1e-4, distill_hidden=0.1)
    Trainer(
        gated_model(name, dropout=0.0),
        tokenizer_for(name),
        keyword_task(),
        config,
        method=Ltp,
        finetune=True,
        progress=recorder,
        device="cpu",
    ).fit()
    found = {stage: [round(loss, 5) for loss in recorder.losses(stage)] for stage in ("finetune", "soft", "hard")}
    assert found == {stage: pytest.approx(losses, abs=1e-4) for stage, losses in GOLDEN[name].items()}


def test_the_tokenizer_is_the_recorded_one() -> None:
    """If this changes, so do the losses above, and for no fault of training."""
    assert tiny_tokenizer()("good worda bad")["input_ids"] == [2, 4, 6, 5, 3]
