"""An executor of a server: few sizes, all prepared at the start, and no graph is captured while somebody waits."""

import random
from typing import Any

import pytest

from tests.engine.test_cuda_executor import DEVICE, assert_same, expected_of, needs_triton, pruned, texts  # noqa: F401
from thresher.engine.cuda import executor as module
from thresher.engine.cuda.batch import Layout
from thresher.engine.cuda.executor import OFTEN, STEADY_GRAPHS, TOKEN_BUDGET, CudaExecutor
from thresher.engine.cuda.graphs import REMEMBERED, bucket_of
from thresher.engine.cuda.ladder import LEAST, few_buckets, rung_above, rung_below, typical_sizes
from thresher.engine.cuda.later import ENOUGH_TOKENS, Later, guessed
from thresher.engine.cuda.shelf import Demand, Shelf
from thresher.engine.weights import read_weights
from thresher.models.plan import plan_of
from thresher.tokenizing.tokens import Tokens

RUNGS = [64, 128, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768]
OTHER = Layout(tokens=3072, sequences=96, max_length=128, typed=True)


def steady(model: Any, **options: Any) -> CudaExecutor:
    how: Any = {"dtype": "fp32", "mode": "graph", "device": DEVICE, "steady": True, **options}
    return CudaExecutor(read_weights(model), plan_of(model), **how)


def few(tokens: int, sequences: int, longest: int) -> Layout:
    return few_buckets(tokens=tokens, sequences=sequences, longest=longest, positions=512, typed=True)


def test_the_ladder() -> None:
    assert sorted({rung_above(tokens) for tokens in range(1, TOKEN_BUDGET + 1)}) == RUNGS
    assert RUNGS[-1] == TOKEN_BUDGET, "a full batch ends at a rung"
    for tokens in range(1, TOKEN_BUDGET + 1, 7):
        above, below = rung_above(tokens), rung_below(tokens)
        assert tokens <= above <= max(LEAST, 2 * tokens if tokens <= 2048 else tokens * 1.5)
        assert below in RUNGS and (below <= tokens or below == LEAST)
    assert [rung_below(rung) for rung in RUNGS] == RUNGS == [rung_above(rung) for rung in RUNGS]


def test_room_of_few_sizes_holds_the_batch() -> None:
    draw = random.Random(0)
    for _ in range(2000):
        lengths = [draw.randint(1, draw.choice((8, 60, 500))) for _ in range(draw.randint(1, 60))]
        found = few(sum(lengths), len(lengths), max(lengths))
        assert found.tokens >= sum(lengths) and found.tokens >= found.sequences >= len(lengths)
        assert 512 >= found.max_length >= max(lengths)


def test_all_batches_of_ordinary_texts_are_prepared_for() -> None:
    """QNLI's lengths, about: a hundred thousand fine sizes would be a few hundred buckets."""
    sizes = typical_sizes(budget=TOKEN_BUDGET, longest=512)
    layouts = [few(texts * length, texts, length) for texts, length in sizes]
    assert sizes[0][0] * sizes[0][1] == TOKEN_BUDGET, "the first measurement is made with a full batch"
    assert len(set(layouts)) == len(layouts) == 49 < STEADY_GRAPHS
    draw, fine = random.Random(1), set()
    for _ in range(2000):
        lengths = [min(512, 15 + int(draw.expovariate(1 / 36))) for _ in range(draw.randint(1, 600))]
        size = {"tokens": sum(lengths), "sequences": len(lengths), "longest": max(lengths)}
        assert few(*size.values()) in layouts
        fine.add(bucket_of(**size, positions=512, typed=True))
    assert len(fine) > 2 * len(layouts)


def test_short_texts_alone_need_fewer_sizes() -> None:
    sizes = typical_sizes(budget=TOKEN_BUDGET, longest=48)
    assert len(sizes) == 26 and max(length for _, length in sizes) == 48


def test_often_enough() -> None:
    shelf: Shelf[int, str] = Shelf(2, Demand(most=100))
    asked = []
    for _ in range(4):
        shelf.demand.note(1)
        asked.append(shelf.admits(1, often=3))
    assert asked == [False, False, True, True] and shelf.admits(1) and shelf.made == 0
    shelf.put(1, "one")
    assert shelf.made == 1 and 1 in shelf
    shelf.drop(1)
    assert 1 not in shelf and len(shelf) == 0
    assert 16 * OFTEN <= REMEMBERED, "a size of every sixteenth batch gets there before it is forgotten"


def test_made_up_texts_do_not_make_the_library_compute_what_is_dropped() -> None:
    assert guessed(OTHER, [3072, 3072, 100]) == [3072, 2688, 100]


def test_real_texts_say_what_to_expect() -> None:
    later = Later(4, prunings=2)
    assert later.better(OTHER, [3072, 2688, 100]) is None, "nothing was seen yet"
    later.count([ENOUGH_TOKENS, ENOUGH_TOKENS // 2, ENOUGH_TOKENS // 8])
    assert later.better(OTHER, [3072, 2688, 100]) == [3072, 1536, 384]
    assert later.better(OTHER, [3072, 1700, 300]) is None, "near enough"
    assert later.better(OTHER, None) is None


def test_a_new_size_is_computed_at_once_and_captured_while_nobody_waits() -> None:
    model = pruned("bert")
    engine, ids = steady(model), texts(model, (5, 9))
    before = engine.stalls
    assert_same(engine.compute(ids), expected_of(model, ids))
    assert [len(lane.captured) for lane in engine.lanes] == [0, 0, 0]
    assert engine.stalls == before + 1, "it may have compiled"
    assert_same(engine.compute(ids), expected_of(model, ids))
    assert engine.stalls == before + 1
    engine.catch_up()
    assert [len(lane.captured) for lane in engine.lanes] == [1, 1, 1] and engine.describe()["graphs"] == 3
    again = engine.stalls
    assert_same(engine.compute(ids), expected_of(model, ids))
    engine.catch_up()
    assert engine.stalls == again and engine.describe()["graphs"] == 3, "there is nothing more to do"


def test_what_comes_often_is_captured_in_the_midst_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OFTEN", 3)
    model = pruned("bert")
    engine, ids = steady(model), texts(model, (5, 9))
    for captured in (0, 0, 1, 1):
        assert_same(engine.compute(ids), expected_of(model, ids))
        assert engine.describe()["graphs"] == captured


def test_warm_up_captures_in_every_lane_and_its_sizes_cost_nothing_then() -> None:
    model = pruned("bert")
    engine = steady(model)
    engine.warm_up([Tokens.of(texts(model, (30, 30)))])
    assert [len(lane.captured) for lane in engine.lanes] == [1, 1, 1]
    before = engine.stalls
    for lengths in ((5,), (12, 3, 9), (60,), (20, 20, 20)):
        ids = texts(model, lengths)
        assert_same(engine.compute(ids), expected_of(model, ids))
    assert engine.stalls == before and engine.describe()["graphs"] == 3


def test_graphs_follow_what_texts_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    model = pruned("bert")
    engine, ids = steady(model), texts(model, (30, 30))
    engine.warm_up([Tokens.of(ids)])
    ((layout, expected),) = engine._expected.items()
    seen = engine.compute(ids).kept[:, list(engine.plan.pruning_layers)].sum(0).tolist()
    assert expected == guessed(layout, [60, *seen])
    assert engine.later is not None
    engine.later.count([10**6, *([0] * len(seen))])
    engine.catch_up()
    assert engine._expected[layout] == [60, *([0] * len(seen))] and engine.describe()["graphs"] == 6
    assert [len(lane.captured) for lane in engine.lanes] == [1, 1, 1]
    engine.catch_up()
    assert engine.describe()["graphs"] == 6
    assert_same(engine.compute(ids), expected_of(model, ids))


def test_another_kind_of_texts_expects_what_is_known_for_as_many_tokens() -> None:
    model = pruned("bert")
    engine = steady(model)
    engine.warm_up([Tokens.of(texts(model, (30, 30)))])
    engine.compute(texts(model, (2,) * 20))
    first, second = engine._expected.items()
    assert first[0].tokens == second[0].tokens and first[0].sequences < second[0].sequences and first[1] == second[1]


def test_a_stream_captures_at_once_as_before() -> None:
    model = pruned("bert")
    engine, ids = steady(model, steady=False), texts(model, (5, 9))
    engine.compute(ids)
    assert engine.describe()["graphs"] == 1 and engine.fitting(1000) == 1000 and engine.later is None
    assert len(engine.typical_sizes(512)) == 1
    engine.catch_up()
    assert engine.describe()["graphs"] == 1


def test_another_dial_is_as_steady() -> None:
    model = pruned("bert")
    engine = steady(model)
    other = engine.with_plan(engine.plan.at_dial(1.5))
    assert other.steady and other.fitting(30_000) == 24_576 and other.later is not engine.later


@pytest.mark.gpu
def test_many_sizes_on_a_gpu_capture_nothing_after_the_warm_up() -> None:
    from thresher.engine.executor import made_up_texts

    model = pruned("bert")
    engine = steady(model, device="cuda")
    for size in engine.typical_sizes(64)[-8:]:
        engine.warm_up(made_up_texts(engine, [size]))
    draw, graphs = random.Random(0), engine.describe()["graphs"]
    for _ in range(40):
        ids = texts(model, tuple(draw.randint(1, 60) for _ in range(draw.randint(1, 8))))
        assert_same(engine.compute(ids), expected_of(model, ids))
    assert engine.describe()["graphs"] == graphs
    for _ in range(20):
        engine.catch_up()
    assert_same(engine.compute(ids), expected_of(model, ids))
