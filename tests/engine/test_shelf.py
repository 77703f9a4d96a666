"""Thousands of sizes neither make graphs for ever nor fill the memory; the sizes that come again get theirs."""

import random

import pytest
import torch

from tests.engine.test_cuda_executor import assert_same, executor, expected_of, needs_triton, pruned, texts  # noqa: F401
from thresher.engine.cuda import graphs
from thresher.engine.cuda.shelf import Demand, Shelf

ROOM, MOST = 8, 256


def shelf() -> Shelf[int, str]:
    return Shelf(ROOM, Demand(most=MOST))


def ask(given: Shelf[int, str], key: int) -> bool:
    """Whether something was made for the key, as a lane does it."""
    given.demand.note(key)
    if given.get(key) is not None or not given.admits(key):
        return False
    given.put(key, f"graph {key}")
    return True


def test_thousands_of_sizes_are_not_made_again_and_again() -> None:
    found, made = shelf(), 0
    draw = random.Random(0)
    for _ in range(20_000):
        made += ask(found, draw.randrange(5000))
        assert len(found) <= ROOM and len(found.demand.counts) <= MOST
    assert made < 20_000 / 10


def test_many_sizes_in_turn() -> None:
    """All are asked for equally often: whichever came first stay, and the rest go without."""
    found = shelf()
    assert sum(ask(found, key) for _ in range(10) for key in range(20)) == ROOM


def test_what_comes_often_gets_in() -> None:
    found = shelf()
    for key in range(100):
        ask(found, key)
    for _ in range(3):
        ask(found, 1000)
    assert 1000 in found and found.get(1000) == "graph 1000"
    for _ in range(5):
        for key in (2000, 2001, 2002):
            ask(found, key)
    assert all(key in found for key in (2000, 2001, 2002)), "another workload pushes out the one before"


def test_the_least_recently_used_goes_first() -> None:
    found = shelf()
    for key in range(ROOM):
        ask(found, key)
    assert found.get(0) is not None
    found.put(99, "graph 99")
    assert 0 in found and 1 not in found and len(found) == ROOM


def test_old_demand_is_forgotten() -> None:
    demand: Demand[int] = Demand(most=100)
    for _ in range(99):
        demand.note(1)
    assert demand.counts[1] == 99
    demand.note(2)
    assert demand.counts[1] == 49 and demand.counts[2] == 0


def test_every_lane_gives_the_same() -> None:
    """More batches are launched than there are lanes; each result comes back to its own batch, in any order."""
    model = pruned("bert")
    engine = executor(model, "graph")
    batches = [texts(model, lengths) for lengths in ((5, 9), (3,), (7, 2, 4), (5, 9), (6,))]
    begun = [engine.launch(engine.pack(ids)) for ids in batches]
    assert len(begun) > engine.in_flight and len(engine._flying) == engine.in_flight
    for one, ids in reversed(list(zip(begun, batches, strict=True))):
        assert_same(engine.finish(one), expected_of(model, ids))
    assert not engine._flying and len(engine._idle) == engine.in_flight
    assert_same(engine.finish(begun[0]), expected_of(model, batches[0])), "finished twice is the same"


def test_a_launch_that_fails_gives_its_lane_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model = pruned("bert")
    engine, ids = executor(model, "graph"), texts(model, (5, 9))

    def fails(*given: object, **options: object) -> None:
        raise RuntimeError("out of memory")

    for lane in engine.lanes:
        monkeypatch.setattr(lane, "launch", fails)
    for _ in range(5):
        with pytest.raises(RuntimeError, match="out of memory"):
            engine.compute(ids)
    monkeypatch.undo()
    assert_same(engine.compute(ids), expected_of(model, ids))
    engine.check_alive()


def test_an_interruption_while_waiting_costs_no_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook: the cell is stopped, and the next one uses the same engine."""
    model = pruned("bert")
    engine, ids = executor(model, "graph"), texts(model, (5, 9))
    begun = [engine.launch(engine.pack(ids)) for _ in range(engine.in_flight)]

    def interrupted(ticket: graphs.Ticket) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(graphs.Ticket, "wait", interrupted)
    for _ in range(engine.in_flight):
        with pytest.raises(KeyboardInterrupt):
            engine.launch(engine.pack(ids))
    monkeypatch.undo()
    assert_same(engine.compute(ids), expected_of(model, ids))
    for one in begun:
        assert_same(engine.finish(one), expected_of(model, ids))
    assert not engine._flying and len(engine._idle) == engine.in_flight


@pytest.mark.gpu
def test_many_sizes_on_a_gpu_keep_few_graphs_and_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "GRAPHS", 4)
    model = pruned("bert")
    engine = executor(model, "graph")
    draw, held = random.Random(0), []
    for _ in range(6):
        for _ in range(40):
            lengths = tuple(draw.randint(1, 60) for _ in range(draw.randint(1, 40)))
            ids = texts(model, lengths)
            assert_same(engine.compute(ids), expected_of(model, ids))
        held.append(torch.cuda.memory_reserved())
        assert all(len(lane.captured) <= 4 for lane in engine.lanes)
    assert held[-1] <= 1.2 * held[1]


@pytest.mark.gpu
def test_warm_up_captures_on_every_lane() -> None:
    model = pruned("bert")
    engine = executor(model, "graph")
    engine.warm_up([engine_tokens(texts(model, (5, 9)))])
    assert all(len(lane.captured) == 1 for lane in engine.lanes)


def engine_tokens(ids: list[list[int]]) -> object:
    from thresher.tokenizing.tokens import Tokens

    return Tokens.of(ids)
