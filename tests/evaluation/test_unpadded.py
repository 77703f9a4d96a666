"""The unpadded rival computes what the Hugging Face model computes, for every family and however attention is done."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.models.families import FAMILIES, LENGTHS, one, ragged, tiny_model
from thresher.engine.weights import read_weights
from thresher.evaluation.unpadded import UnpaddedDense

HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}


def texts(inputs: dict[str, Tensor]) -> list[list[int]]:
    return [one(inputs, row)["input_ids"][0].tolist() for row in range(len(LENGTHS))]


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "deberta-v2"])
def test_it_agrees_with_hugging_face(family: str) -> None:
    model = tiny_model(family).float()
    inputs = ragged(model)
    rival = UnpaddedDense(read_weights(model), dtype="fp32", device="cpu")
    with torch.inference_mode():
        expected = model(**inputs).logits
    torch.testing.assert_close(rival.logits(texts(inputs)), expected, atol=1e-4, rtol=1e-4)
    assert rival.attention.startswith("SDPA of one text at a time")
    assert ("position bias" in rival.attention) == (family == "mpnet")


def test_token_types_count() -> None:
    model = tiny_model("bert").float()
    inputs = ragged(model)
    kinds = torch.arange(inputs["input_ids"].shape[1]).expand_as(inputs["input_ids"]) % 2
    rival = UnpaddedDense(read_weights(model), dtype="fp32", device="cpu")
    with torch.inference_mode():
        expected = model(**inputs, token_type_ids=kinds).logits
    given = [row[:length].tolist() for row, length in zip(kinds, LENGTHS, strict=True)]
    torch.testing.assert_close(rival.logits(texts(inputs), given), expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(rival.logits(texts(inputs)), expected, atol=1e-2)


def test_runs_are_handed_over_as_torch_wants_them() -> None:
    """Queries, keys and values (total, heads, head width), int32 starts, the longest run: here for a stand-in."""

    def stand_in(query: Tensor, key: Tensor, value: Tensor, starts: Tensor, same: Tensor, longest: int, _: int) -> Any:
        assert query.shape == key.shape == value.shape and starts.dtype == torch.int32 and starts is same
        assert longest == max(LENGTHS)
        mask = torch.block_diag(*(torch.ones(int(size), int(size)) for size in starts.diff())).bool()
        by_head = [part.transpose(0, 1) for part in (query, key, value)]
        return F.scaled_dot_product_attention(*by_head, attn_mask=mask).transpose(0, 1)

    model = tiny_model("roberta").float()
    inputs = ragged(model)
    rival = UnpaddedDense(read_weights(model), dtype="fp32", device="cpu")
    expected = rival.logits(texts(inputs))
    rival.varlen = stand_in
    torch.testing.assert_close(rival.logits(texts(inputs)), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(HALF))
@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "nomic_bert", "modernbert"])
def test_it_agrees_on_the_device(family: str, dtype: str) -> None:
    """Its error is no more than twice that of Hugging Face in the same arithmetic."""
    model = tiny_model(family).float()
    inputs = ragged(model)
    weights = read_weights(model)
    with torch.inference_mode():
        exact = model(**inputs).logits
        there = {name: value.cuda() for name, value in inputs.items()}
        stock = model.to("cuda", HALF[dtype])(**there).logits.float().cpu()
    rival = UnpaddedDense(weights, dtype=dtype, device="cuda")
    if "knows no windows" not in rival.attention:  # as in older versions of torch
        assert (rival.attention == "torch.nn.attention.varlen") == (family != "mpnet")
    error = (rival.logits(texts(inputs)) - exact).abs().mean()
    assert error <= 2 * (stock - exact).abs().mean() + 1e-2
