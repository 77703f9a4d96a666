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


@pytest.mark.parametrize(
    ("rates", "agree"),
    [
        ([100.0, 104.0], True),
        ([5552.0, 10_078.0, 16_203.0], False),
        ([100.0, 102.0, 300.0], True),  # one slow or quick spell of the machine does not move a median
        ([60.0, 100.0, 101.0, 99.0, 30.0], True),
        ([60.0, 100.0, 140.0, 99.0, 30.0], False),
        ([80.0, 125.0], False),
        ([100.0], False),  # nothing to agree with
    ],
)
def test_a_row_settles_where_most_rounds_agree(rates: list[float], agree: bool) -> None:
    assert speed.settled(rates) == agree
