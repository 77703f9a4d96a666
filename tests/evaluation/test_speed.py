"""What is made of the times, on a clock that only the contender moves: a second for every text."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from thresher.core.cost import EncoderShape
from thresher.evaluation import speed
from thresher.evaluation.contenders import Contender, Spec
from thresher.evaluation.rivals import Row
from thresher.tasks.encode import Encoded


def raced(monkeypatch: pytest.MonkeyPatch, *, texts: int, batch_size: int) -> speed.Speed:
    now = 0.0

    def run(rows: Sequence[Row]) -> tuple[Any, None]:
        nonlocal now
        now += len(rows)
        return np.zeros((len(rows), 2), np.float32), None

    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: now))
    contender = Contender(Spec("hugging face", "fp32", Path(), pad_id=0, threads=1), run)
    rows = [Encoded([2, 5, 3], None, 0)] * texts
    shape = EncoderShape(layers=2, width=8, ffn_width=16)
    return speed.race([contender], rows, None, shape=shape, batch_size=batch_size, rounds=2, latency_texts=1)[0]


@pytest.mark.parametrize(("texts", "seconds"), [(3, 2), (4, 2), (1, 1)])
def test_a_short_last_batch_does_not_count_unless_it_is_the_only_one(
    texts: int, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = raced(monkeypatch, texts=texts, batch_size=2)
    assert (found.ms_p50, found.texts_per_s) == (1000 * seconds, 1.0)
