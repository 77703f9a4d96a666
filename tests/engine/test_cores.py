"""Shares of a batch: all cores work, all texts are there once, in their places, and answers are those of one batch."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from tests.models.families import tiny_model
from thresher.core.plan import PruningPlan
from thresher.engine import cores
from thresher.engine.backends.cpu import Cpu
from thresher.engine.backends.reference import Reference
from thresher.engine.cores import BUDGET, UNEVEN, at_the_same_time, budget_of, dealt, in_order, shares_of
from thresher.engine.packed import PackedExecutor
from thresher.engine.ragged import Ragged
from thresher.engine.weights import read_weights


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cores, "FEWEST", 20)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def texts_of(*lengths: int) -> list[list[int]]:
    return [
        part.tolist()
        for part in np.split(np.random.default_rng(0).integers(5, 60, sum(lengths)), np.cumsum(lengths)[:-1])
    ]


def packed_ids(executor: PackedExecutor, *lengths: int) -> Ragged:
    return executor.pack(texts_of(*lengths)).ids


@pytest.fixture(scope="module")
def executor() -> PackedExecutor:
    weights = read_weights(tiny_model("bert"))
    layers = weights.shape.layers
    return PackedExecutor(Cpu(weights, PruningPlan((0.9,) * (layers - 1) + (0.0,), score="value")))


def test_every_text_is_in_one_share_and_comes_back(executor: PackedExecutor) -> None:
    ids = packed_ids(executor, 9, 30, 4, 22, 17, 12)
    shares = shares_of(ids, 2)
    assert sorted(torch.cat([share.numbers for share in shares]).tolist()) == list(range(6))
    assert torch.equal(in_order([share.ids.values for share in shares], [share.rows for share in shares]), ids.values)
    for share in shares:
        lengths = share.ids.lengths
        assert torch.equal(lengths, lengths.sort(descending=True)[0]), "longest first"
        assert torch.equal(ids.positions[share.rows], share.ids.positions)
        own = dict(zip(share.numbers[share.ids.sequences].tolist(), lengths.tolist(), strict=True))
        given = dict(zip(ids.sequences.tolist(), ids.lengths.tolist(), strict=True))
        assert own.items() <= given.items()


@pytest.mark.parametrize(
    ("lengths", "why"),
    [((9, 9), "too few tokens"), ((31,), "one text"), ((31, 5, 6, 4), "one text has most of the tokens")],
)
def test_what_is_not_worth_it_stays_together(executor: PackedExecutor, lengths: tuple[int, ...], why: str) -> None:
    assert shares_of(packed_ids(executor, *lengths), 2) == [], why


@pytest.mark.parametrize("reads", ["first", "mean", "tokens"])
def test_answers_are_those_of_the_whole_batch(reads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = read_weights(tiny_model("bert"))
    thresholds = (0.9,) * (weights.shape.layers - 1) + (0.0,)
    executor = PackedExecutor(Cpu(weights, PruningPlan(thresholds, score="value", reads=reads)))
    texts = texts_of(9, 30, 4, 22, 17, 12)
    types = [[number % 2] * len(text) for number, text in enumerate(texts)]
    shared = executor.compute(texts, types)
    monkeypatch.setattr(cores, "FEWEST", 10**6)
    whole = executor.compute(texts, types)
    assert torch.equal(shared.kept, whole.kept) and shared.kept.float().mean() < 16
    torch.testing.assert_close(shared.outputs, whole.outputs, rtol=1e-5, atol=1e-6)


def test_shares_are_made_for_processors_only(executor: PackedExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr("thresher.engine.packed.shares_of", lambda ids, count: asked.append(count) or [])
    executor.compute(texts_of(20, 20))
    PackedExecutor(Reference(read_weights(tiny_model("bert")), executor.plan)).compute(texts_of(20, 20))
    torch.set_num_threads(1)
    executor.compute(texts_of(20, 20))
    assert asked == [2], "not the reference, and not where there is one thread"


@pytest.mark.parametrize(("count", "cores", "each"), [(2, 2, 1), (2, 4, 2), (4, 4, 1)])
def test_each_thread_has_its_share_of_the_cores_and_all_others_keep_theirs(count: int, cores: int, each: int) -> None:
    found = at_the_same_time(lambda part: (part, torch.get_num_threads()), range(count), cores)
    assert found == [(part, each) for part in range(count)] and torch.get_num_threads() == 2
    (later,) = at_the_same_time(lambda part: os.getpid(), [0], 2)
    assert later == os.getpid()


@pytest.mark.parametrize(
    ("cores", "tokens", "shares"),
    [
        (1, 4096, 0),
        (2, 1024, 2),
        (2, 4096, 2),
        (4, 1024, 2),  # of two cores each
        (4, 4096, 4),
        (8, 1024, 2),
        (8, 4096, 8),
        (16, 1024, 2),
        (16, 4096, 8),
        (16, 16_384, 16),
        (64, 1024, 2),
        (64, 4096, 8),
        (64, 65_536, 64),
        (6, 2048, 3),  # four would leave two cores without work
        (7, 2048, 0),  # all seven on every operation
    ],
)
def test_no_core_is_without_work(cores: int, tokens: int, shares: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thresher.engine.cores.FEWEST", 512)
    lengths = [64] * (tokens // 64)
    found = dealt(lengths, cores)
    assert len(found) == shares and (not found or cores % len(found) == 0)
    assert sorted(text for share in found for text in share) == (list(range(len(lengths))) if found else [])


@pytest.mark.parametrize("cores", [1, 2, 4, 8, 16, 64])
def test_a_full_batch_of_uneven_texts_gives_every_core_a_share(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thresher.engine.cores.FEWEST", 512)
    lengths, left = [], budget_of(cores)
    random = np.random.default_rng(0)
    while left >= 20:
        lengths.append(min(left, int(random.integers(20, 400))))
        left -= lengths[-1]
    found = dealt(sorted(lengths, reverse=True), cores)
    assert len(found) == (cores if cores > 1 else 0)
    loads = [sum(sorted(lengths, reverse=True)[text] for text in share) for share in found]
    assert not loads or max(loads) * cores <= UNEVEN * sum(lengths)


def test_the_budget_grows_with_the_cores(executor: PackedExecutor) -> None:
    assert [budget_of(cores) for cores in (1, 2, 4, 8, 16, 64)] == [4096, 4096, 4096, 8192, 16_384, 65_536]
    assert executor.token_budget == BUDGET, "of the two threads of these tests"
    torch.set_num_threads(8)
    assert executor.token_budget == 2 * BUDGET


def test_fewer_shares_of_more_cores_where_more_would_be_uneven() -> None:
    assert [len(share) for share in dealt([40, 40, 40, 40, 40, 40], 4)] == [3, 3], "two of four would have 80 tokens"


@pytest.mark.parametrize(("texts", "length", "cores", "shares"), [(7, 600, 8, 4), (15, 1092, 16, 8), (5, 700, 6, 3)])
def test_no_share_is_empty(texts: int, length: int, cores: int, shares: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of long texts that are fewer than the cores, all but one share would be even enough."""
    monkeypatch.setattr("thresher.engine.cores.FEWEST", 512)
    found = dealt([length] * texts, cores)
    assert len(found) == shares and all(found)


def test_long_texts_that_are_fewer_than_the_cores_are_computed(executor: PackedExecutor) -> None:
    torch.set_num_threads(8)
    assert executor.compute(texts_of(*[30] * 7)).kept.shape[0] == 7


def test_what_fails_in_a_share_is_raised() -> None:
    def fail(part: int) -> None:
        raise ValueError(f"part {part}")

    with pytest.raises(ValueError, match="part 0"):
        at_the_same_time(fail, [0, 1], 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_forked_child_makes_threads_of_its_own() -> None:
    script = """
    import os, torch
    from thresher.engine.cores import at_the_same_time
    torch.set_num_threads(2)
    assert at_the_same_time(lambda part: part, [1, 2], 2) == [1, 2]
    pid = os.fork()
    if pid == 0:
        os._exit(0 if at_the_same_time(lambda part: part, [3, 4], 2) == [3, 4] else 1)
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=120, check=False)
    assert done.returncode == 0
