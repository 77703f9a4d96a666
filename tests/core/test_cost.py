"""The cost model against counts made by hand and by walking through the matrix products."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.models.families import tiny_model
from thresher.core.cost import (
    EncoderShape,
    dense_macs,
    engine_macs,
    flops,
    paper_macs,
    relative_bit_operations,
    relative_flops,
    tokens_seen,
)
from thresher.core.layer import LayerSpec
from thresher.models.attach import encoder_shape

TINY = EncoderShape(layers=2, width=2, ffn_width=3)


@st.composite
def kept_counts(draw: st.DrawFn) -> tuple[EncoderShape, Tensor, Tensor]:
    """A shape, lengths (batch,) and kept (batch, layers) that never grow with depth and never reach zero."""
    shape = EncoderShape(
        layers=draw(st.integers(1, 6)), width=draw(st.integers(1, 64)), ffn_width=draw(st.integers(1, 256))
    )
    lengths, kept = [], []
    for _ in range(draw(st.integers(1, 4))):
        length = draw(st.integers(1, 300))
        lengths.append(length)
        row = []
        for _ in range(shape.layers):
            row.append(draw(st.integers(1, row[-1] if row else length)))
        kept.append(row)
    return shape, torch.tensor(lengths), torch.tensor(kept)


def matmul(rows: int, inner: int, columns: int) -> int:
    return rows * inner * columns


def walk(shape: EncoderShape, length: int, kept: list[int], *, engine: bool) -> int:
    """Count every matrix product of one sequence, in the order a program would run them."""
    total, seen, d = 0, length, shape.width
    for layer, keep in enumerate(kept):
        last = engine and layer == shape.layers - 1
        queries = 1 if last else seen
        after_attention = (1 if last else keep) if engine else seen
        in_ffn = 1 if last else keep
        total += matmul(queries, d, d) + 2 * matmul(seen, d, d)  # Q, K and V
        total += matmul(queries, d, seen) + matmul(queries, seen, d)  # QK and AV, summed over heads
        total += matmul(after_attention, d, d)  # output projection
        total += matmul(in_ffn, d, shape.ffn_width) + matmul(in_ffn, shape.ffn_width, d)
        seen = keep
    return total


def test_paper_macs_by_hand() -> None:
    """n = 3, keep 2 then 1, d = 2, ffn = 3: (2*2*9 + 4*4*3 + 2*2*3*2) + (2*2*4 + 4*4*2 + 2*2*3*1) = 108 + 60."""
    assert paper_macs(TINY, torch.tensor([3]), torch.tensor([[2, 1]])).tolist() == [168]


def test_dense_macs_by_hand() -> None:
    """2 layers of 2*2*9 + 4*4*3 + 2*2*3*3 = 120; length 1: 2 of 4 + 16 + 12 = 32."""
    assert dense_macs(TINY, torch.tensor([3, 1])).tolist() == [240, 64]


def test_engine_macs_by_hand() -> None:
    """Layer 1: 2*2*3*3 + 4*(2*3 + 3 + 2) + 2*2*3*2 = 104; layer 2, one query: 2*2*2*1 + 4*(2*2 + 1 + 1) + 12 = 44."""
    assert engine_macs(TINY, torch.tensor([3]), torch.tensor([[2, 1]])).tolist() == [148]
    assert engine_macs(TINY, torch.tensor([3]), torch.tensor([[2, 2]])).tolist() == [148], "the last layer runs for one"


def test_first_tokens_that_are_alone_by_hand() -> None:
    """3 layers, n = 3, all but one dropped in the first: a query for three keys, 2*2*3*1 + 4*(3 + 3 + 1 + 1) + 12 = 56;
    then twice value, output and FFN of one token, 4*2 + 12 = 20."""
    shape, lengths, kept = EncoderShape(layers=3, width=2, ffn_width=3), torch.tensor([3]), torch.tensor([[1, 1, 1]])
    assert engine_macs(shape, lengths, kept, alone=0).tolist() == [96]
    # Who does not know computes scores of all queries, and later queries and keys that nobody asks for.
    assert engine_macs(shape, lengths, kept).tolist() == [2 * 2 * 9 + 4 * 10 + 12 + 2 * (4 + 16 + 12)]
    assert engine_macs(shape, lengths, kept, alone=2).tolist() == engine_macs(shape, lengths, kept).tolist()


def test_bert_base_has_its_well_known_size() -> None:
    """BERT-base at 128 tokens is 22.4 GFLOPs, of which 12 * 7.08 M parameters * 128 * 2 are linear layers."""
    shape = EncoderShape(layers=12, width=768, ffn_width=3072)
    macs = dense_macs(shape, torch.tensor([128]))
    assert macs.item() == 12 * (128 * (4 * 768**2 + 2 * 768 * 3072) + 2 * 768 * 128**2)
    assert flops(macs).item() / 1e9 == pytest.approx(22.35, abs=0.01)


def test_tokens_seen_by_hand() -> None:
    seen = tokens_seen(torch.tensor([5, 4]), torch.tensor([[5, 3, 1], [2, 2, 2]]))
    assert seen.tolist() == [[5, 5, 3], [4, 2, 2]]


def test_relative_flops_is_a_ratio_of_sums() -> None:
    """Not a mean of ratios: long texts weigh more. (168 + 64) / (240 + 64)."""
    found = relative_flops(TINY, torch.tensor([3, 1]), torch.tensor([[2, 1], [1, 1]]))
    assert found.item() == pytest.approx(232 / 304)


def test_operations_of_a_mac() -> None:
    macs = torch.tensor([10])
    assert flops(macs).tolist() == [20]


@settings(max_examples=100, deadline=None)
@given(case=kept_counts())
def test_counts_equal_a_walk_through_the_products(case: tuple[EncoderShape, Tensor, Tensor]) -> None:
    shape, lengths, kept = case
    rows = list(zip(lengths.tolist(), kept.tolist(), strict=True))
    assert paper_macs(shape, lengths, kept).tolist() == [walk(shape, n, k, engine=False) for n, k in rows]
    assert engine_macs(shape, lengths, kept).tolist() == [walk(shape, n, k, engine=True) for n, k in rows]
    dense = [walk(shape, n, [n] * shape.layers, engine=False) for n in lengths.tolist()]
    assert dense_macs(shape, lengths).tolist() == dense


@settings(max_examples=100, deadline=None)
@given(case=kept_counts())
def test_cost_invariants(case: tuple[EncoderShape, Tensor, Tensor]) -> None:
    shape, lengths, kept = case
    everything = lengths[:, None].expand(-1, shape.layers)
    assert relative_flops(shape, lengths, everything).item() == 1.0
    assert 0 < relative_flops(shape, lengths, kept).item() <= 1.0
    assert (engine_macs(shape, lengths, kept) <= paper_macs(shape, lengths, kept)).all()
    less = (kept - 1).clamp(min=1)
    assert relative_flops(shape, lengths, less) <= relative_flops(shape, lengths, kept)
    if (kept > 1).any():
        assert (paper_macs(shape, lengths, less).sum() < paper_macs(shape, lengths, kept).sum()).all()


@settings(max_examples=30, deadline=None)
@given(case=kept_counts())
def test_floats_give_the_same_numbers_and_gradients(case: tuple[EncoderShape, Tensor, Tensor]) -> None:
    shape, lengths, kept = case
    before = kept.clone()
    expected = kept.double().requires_grad_(True)
    for count in (paper_macs, engine_macs):
        torch.testing.assert_close(count(shape, lengths, expected), count(shape, lengths, kept).double())
    relative_flops(shape, lengths, expected).backward()
    assert expected.grad is not None and (expected.grad > 0).all()
    assert torch.equal(kept, before), "the caller's counts were changed"


def test_gradient_by_hand() -> None:
    """d/dk_1 = 2*d*ffn + (4*d*k_1 + 4*d*d) of the next layer = 12 + 16 + 16; d/dk_2 = 2*d*ffn."""
    kept = torch.tensor([[2.0, 1.0]], requires_grad=True)
    paper_macs(TINY, torch.tensor([3]), kept).sum().backward()
    assert kept.grad is not None and kept.grad.tolist() == [[44.0, 12.0]]


def test_a_gated_feed_forward_has_three_matrices() -> None:
    plain, gated = (EncoderShape(layers=1, width=2, ffn_width=3, gated=gated) for gated in (False, True))
    lengths, kept = torch.tensor([5]), torch.tensor([[4]])
    for macs in (paper_macs, engine_macs):
        tokens = 4 if macs is paper_macs else 1
        assert int(macs(gated, lengths, kept) - macs(plain, lengths, kept)) == tokens * 2 * 3


def test_windows_bound_what_a_query_sees() -> None:
    """Two layers of 10 tokens; the second one sees 5 keys of each query's."""
    whole = EncoderShape(layers=2, width=2, ffn_width=3)
    local = EncoderShape(layers=2, width=2, ffn_width=3, reach=(None, 5))
    lengths, kept = torch.tensor([10]), torch.tensor([[8, 8]])
    assert int(paper_macs(whole, lengths, kept) - paper_macs(local, lengths, kept)) == 2 * 2 * 8 * (8 - 5)
    assert int(engine_macs(whole, lengths, kept, alone=2) - engine_macs(local, lengths, kept, alone=2)) == 2 * 2 * 8 * 3
    assert torch.equal(paper_macs(local, lengths, kept.double()), paper_macs(local, lengths, kept).double())


def test_distances_and_a_convolution_are_products_too() -> None:
    plain = EncoderShape(layers=1, width=2, ffn_width=3)
    more = EncoderShape(layers=1, width=2, ffn_width=3, relative_rows=6, kernel=3)
    for length, rows in ((2, 3), (3, 5), (50, 6)):
        lengths = torch.tensor([length])
        found = int(dense_macs(more, lengths) - dense_macs(plain, lengths))
        assert found == 2 * rows * 2 * length + 3 * 2 * 2 * length


@pytest.mark.parametrize(
    ("by", "queries", "keys"), [(("queries",), 1, 0), (("keys",), 0, 1), (("queries", "keys"), 1, 1)]
)
def test_each_product_with_distances_is_counted_by_itself(by: tuple[str, ...], queries: int, keys: int) -> None:
    """One layer of 4 tokens, width 2, 6 embeddings of distances: 6 x 2 of every query, or key; in the engine's last
    layer one query is there, and all keys."""
    plain, lengths = EncoderShape(layers=1, width=2, ffn_width=3), torch.tensor([4])
    shape = EncoderShape(layers=1, width=2, ffn_width=3, relative_rows=6, relative_by=by)
    assert int(dense_macs(shape, lengths) - dense_macs(plain, lengths)) == 6 * 2 * 4 * (queries + keys)
    kept = torch.tensor([[4]])
    found = int(engine_macs(shape, lengths, kept) - engine_macs(plain, lengths, kept))
    assert found == 6 * 2 * (1 * queries + 4 * keys)


def test_a_convolution_in_groups_by_hand() -> None:
    """5 tokens, width 4, kernel 3: a number of the result is made of 3 x 4 numbers, in two groups of 3 x 2."""
    plain, lengths = EncoderShape(layers=1, width=4, ffn_width=3), torch.tensor([5])
    for groups, products in ((1, 5 * 4 * 12), (2, 5 * 4 * 6)):
        shape = EncoderShape(layers=1, width=4, ffn_width=3, kernel=3, groups=groups)
        assert int(dense_macs(shape, lengths) - dense_macs(plain, lengths)) == products


def test_deberta_is_counted_by_its_configuration() -> None:
    for kinds, by in ((["c2p"], ("queries",)), (["p2c"], ("keys",)), (["p2c", "c2p"], ("queries", "keys"))):
        model = tiny_model("deberta-v2", pos_att_type=kinds, conv_kernel_size=3, conv_groups=4)
        shape = encoder_shape(model)
        assert (shape.relative_rows, shape.relative_by, shape.kernel, shape.groups) == (16, by, 3, 4)


def test_a_shape_follows_from_the_layers() -> None:
    def layer(**more: object) -> LayerSpec:
        return LayerSpec(heads=2, width=8, ffn_width=16, activation=torch.relu, **more)  # type: ignore[arg-type]

    assert EncoderShape.of([layer()] * 3) == EncoderShape(layers=3, width=8, ffn_width=16)
    mixed = EncoderShape.of([layer(gated=True), layer(gated=True, window=64)])
    assert mixed.gated and mixed.reach == (None, 129)


def test_bit_operations_by_hand() -> None:
    """One layer, four tokens that all stay: 2 x 2 x 4 x 4 = 64 products inside attention, 4 x 2 x 2 x 4 + 2 x 2 x 3 x 4
    = 112 with weights. In 8 bits these cost a quarter, and those in attention what they cost before."""
    shape, lengths, kept = EncoderShape(layers=1, width=2, ffn_width=3), torch.tensor([4]), torch.tensor([[4]])
    assert relative_bit_operations(shape, lengths, kept, bits=16) == 1.0
    assert relative_bit_operations(shape, lengths, kept, bits=8) == pytest.approx((64 + 112 / 4) / 176)


@given(kept_counts())
def test_in_16_bits_operations_are_flops(case: tuple[EncoderShape, Tensor, Tensor]) -> None:
    shape, lengths, kept = case
    flops_left = float(relative_flops(shape, lengths, kept))
    assert relative_bit_operations(shape, lengths, kept, bits=16) == pytest.approx(flops_left, rel=1e-5)
    eight = relative_bit_operations(shape, lengths, kept, bits=8)
    assert flops_left / 4 * (1 - 1e-5) <= eight <= flops_left * (1 + 1e-5)
