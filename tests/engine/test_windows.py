"""Attention inside windows on the CPU: ranges of live rows against a mask over all of them; and texts around the sizes
of windows and buckets of all newer families."""

import pytest
import torch

from tests.engine.makers import cpu, engine_with, reference
from tests.engine.test_engine import SCORES, sequences
from tests.engine.test_parity import EPSILON, Layers, _within_twice, own, prepared
from tests.models.families import SOME, pruned_model, ragged
from thresher.engine.backends.attention import LOG2_E, Tiles, laid_out
from thresher.engine.backends.windows import QUERIES, in_windows, window_bias

HEADS, WIDTH = 2, 16
LONG = (64, 65, 66, 128, 129, 130, 255, 256, 257, 1000, 20, 1)
PUBLISHED: dict[str, dict[str, int]] = {
    "nomic_bert": {},
    "modernbert": {"local_attention": 128},
    "deberta-v2": {"position_buckets": 256, "max_relative_positions": 512},
}


def positions_of(tokens: int, *, gaps: bool) -> torch.Tensor:
    """In order; with gaps, as if most tokens had been dropped, in places all of a stretch."""
    torch.manual_seed(tokens)
    if not gaps:
        return torch.arange(tokens)
    return torch.cat(
        [torch.randperm(3 * tokens)[: tokens // 2], 9 * tokens + torch.arange(tokens - tokens // 2)]
    ).sort()[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("window", [1, 7, 64, 5000])
@pytest.mark.parametrize("tokens", [1, QUERIES - 1, QUERIES, QUERIES + 1, 300])
def test_ranges_are_what_a_mask_gives(tokens: int, window: int, gaps: bool, dtype: torch.dtype) -> None:
    positions = positions_of(tokens, gaps=gaps)
    parts = torch.randn(3, 1, HEADS, tokens, WIDTH)
    query, key, value = (part[0].double() for part in parts.to(dtype))
    inside = (positions[:, None] - positions[None, :]).abs() <= window
    weights = torch.softmax((query @ key.transpose(1, 2) / LOG2_E).masked_fill(~inside, -torch.inf), dim=-1)
    out = torch.empty(1, HEADS, tokens, WIDTH)
    given = laid_out(parts.to(dtype), dtype)
    received = in_windows(Tiles(), *given, positions, window=window, out=out, scored=True)
    assert received is not None
    loose = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.05, "rtol": 0.05}
    torch.testing.assert_close(out[0].double(), weights @ value, **loose)
    torch.testing.assert_close(received.double(), weights.sum(dim=1), **loose)
    assert in_windows(Tiles(), *given, positions, window=window, out=out, scored=False) is None


def test_no_bias_where_all_keys_are_inside() -> None:
    places = torch.arange(5)[None]
    assert window_bias(places, places, window=4) is None
    bias = window_bias(places, places, window=3, heads=2)
    assert bias is not None and bias(slice(None)).isinf().sum() == 2 * 2 and bias(slice(1, 2)).shape == (1, 2, 1, 5)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", PUBLISHED)
def test_long_texts_keep_the_parity_rules(name: str, score: str) -> None:
    model = pruned_model(name, score=score, changes={"max_position_embeddings": 1024, **PUBLISHED[name]})
    exact = Layers(engine_with(model, reference(torch.float64)), sequences(ragged(model, LONG)))
    for dtype in ("fp32", "bf16", "int8"):
        fast = prepared(model, cpu(dtype))
        plain = prepared(model, reference(torch.bfloat16 if dtype == "bf16" else torch.float32))
        for index, (hidden, runs, scores, context) in enumerate(exact.seen):
            found = fast.attend(index, own(fast, hidden), runs, scored=True)
            assert found[1] is not None
            if dtype != "int8":
                plainly = plain.attend(index, own(plain, hidden), runs, scored=True)
                _within_twice(found[0], plainly[0], context)
                _within_twice(found[1], plainly[1], scores)
            differ = (found[1] > SOME[index]) != (scores > SOME[index])
            assert bool(((scores - SOME[index]).abs()[differ] < EPSILON[dtype]).all())
