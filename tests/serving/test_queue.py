"""Who is let in, whose turn it is, and what is never computed: with a clock that stands still, whatever the load."""

import math

import pytest

from tests.serving.fakes import SECONDS_A_TOKEN, Clock, drain, job_of, outputs, server
from thresher.serving.errors import Abandoned, Expired, Failed, Overloaded, TooLarge, Unhealthy
from thresher.serving.pace import LEAST_TOKENS, Pace
from thresher.serving.queue import Limits


def test_answers_come_back_in_the_order_of_each_request() -> None:
    clock = Clock()
    queue, worker, engine = server(clock, budget_s=0.3)
    jobs = [job_of(clock, 5, 200, 7, 90, first=10), job_of(clock, 80, first=50), job_of(clock, *[9] * 60, first=100)]
    for job in jobs:
        queue.put(job)
    drain(worker)
    assert outputs(jobs) == [[10, 11, 12, 13], [50], list(range(100, 160))]
    assert all(job.over and job.error is None for job in jobs) and queue.load == 0
    assert max(map(sum, engine.lengths)) <= 300 and len(engine.batches) > 2


def test_texts_of_one_length_share_a_batch_and_the_oldest_is_always_in_it() -> None:
    clock = Clock()
    queue, worker, engine = server(clock, budget_s=0.4)
    queue.put(job_of(clock, 10, first=1))
    for number in range(8):
        queue.put(job_of(clock, 100 if number % 2 else 10, first=10 + number))
    worker.step()
    assert 1 in engine.batches[0]
    worker.step()
    first, second = engine.lengths
    assert {*first, *second} == {10, 100} and (set(first) == {10} or set(second) == {10} or len(first) == 5)


def test_a_small_request_does_not_wait_for_all_of_a_large_one() -> None:
    clock = Clock()
    queue, worker, engine = server(clock, budget_s=0.3, limits=Limits(timeout_s=60, age_s=30))
    large, small = job_of(clock, *[100] * 100, timeout=60), None
    queue.put(large)
    worker.step()
    small = job_of(clock, 100, first=999, timeout=60)
    queue.put(small)
    worker.step()
    worker.step()
    assert small.over and not large.over
    drain(worker)
    assert large.over and large.error is None and len(engine.batches) >= 33


def test_after_the_age_bound_no_newcomer_is_preferred() -> None:
    clock = Clock()
    queue, worker, engine = server(clock, budget_s=0.3, limits=Limits(timeout_s=60, age_s=1.0))
    large = job_of(clock, *[100] * 40, timeout=60)  # the last texts are due after four seconds, or the age bound
    queue.put(large)
    served = []
    while not large.over:
        newcomer = job_of(clock, 300, first=500, timeout=60)
        queue.put(newcomer)
        worker.step()
        served.append(engine.batches[-1][0] == 500)
    # Without the bound every other batch would be a newcomer's until the end.
    assert sum(served) <= 4 and large.error is None


def test_what_cannot_be_done_in_time_is_refused_whole() -> None:
    clock = Clock()
    queue, _, _ = server(clock)
    queue.put(job_of(clock, *[100] * 60))  # six of the eight seconds that a margin of 0.8 leaves
    with pytest.raises(Overloaded, match="6000 tokens wait already") as refusal:
        queue.put(job_of(clock, *[100] * 30))
    assert refusal.value.retry_after is not None and 1 <= refusal.value.retry_after <= 4
    assert queue.waiting == 6000
    queue.put(job_of(clock, *[100] * 15))
    assert queue.waiting == 7500
    with pytest.raises(TooLarge, match="send fewer texts"):
        queue.put(job_of(clock, *[100] * 90))


def test_who_comes_when_its_time_is_over_is_late_and_not_too_large() -> None:
    clock = Clock()
    queue, _, _ = server(clock)
    job = job_of(clock, 3, timeout=1.0)
    clock.now += 2.0
    with pytest.raises(Expired, match="was over before it was let in"):
        queue.put(job)


def test_the_most_tokens_that_wait_are_a_limit_of_their_own() -> None:
    clock = Clock()
    queue, _, _ = server(clock, limits=Limits(timeout_s=1e6, queue_tokens=1000))
    queue.put(job_of(clock, 900, timeout=1e6))
    with pytest.raises(Overloaded):
        queue.put(job_of(clock, 200, timeout=1e6))
    with pytest.raises(TooLarge):
        queue.put(job_of(clock, 1100, timeout=1e6))


def test_a_faster_gear_lets_more_in_but_not_those_who_refuse_it() -> None:
    clock = Clock()
    queue, _, _ = server(clock, best_speed=2.0)
    queue.put(job_of(clock, *[100] * 75, degrade=False))
    with pytest.raises(Overloaded):
        queue.put(job_of(clock, *[100] * 30, degrade=False))
    queue.put(job_of(clock, *[100] * 30))


def test_expired_work_is_not_computed() -> None:
    clock = Clock()
    queue, worker, engine = server(clock)
    late, good = job_of(clock, 50, first=1, timeout=1.0), job_of(clock, 50, first=2)
    queue.put(late)
    queue.put(good)
    clock.now = 1.5
    drain(worker)
    assert engine.batches == [[2]] and isinstance(late.error, Expired) and good.error is None
    assert queue.load == 0


def test_abandoned_work_is_not_computed_and_makes_room_at_once() -> None:
    clock = Clock()
    queue, worker, engine = server(clock)
    gone, stays = job_of(clock, *[100] * 70, first=1000), job_of(clock, 100, first=1)
    queue.put(gone)
    queue.put(stays)
    queue.end(gone, Abandoned("hung up"))
    assert queue.waiting == 100
    drain(worker)
    assert engine.batches == [[1]] and outputs([stays]) == [[1]]


def test_many_abandoned_requests_leave_nothing_behind() -> None:
    clock = Clock()
    queue, _, _ = server(clock, limits=Limits(timeout_s=1e6, age_s=1e5))
    for _ in range(100):
        job = job_of(clock, *[1] * 50, timeout=1e6)
        queue.put(job)
        queue.end(job, Abandoned("hung up"))
    assert queue.waiting == 0 and len(queue._texts) <= 1100


def test_a_batch_that_fails_harms_only_its_requests() -> None:
    clock = Clock()
    queue, worker, engine = server(clock, budget_s=LEAST_TOKENS * SECONDS_A_TOKEN)
    engine.fails = lambda first: RuntimeError("boom\nmore") if 7 in first else None
    bad, good = job_of(clock, 250, first=7), job_of(clock, 250, first=1)
    queue.put(bad)
    queue.put(good)
    drain(worker)
    assert isinstance(bad.error, Failed) and "boom" in str(bad.error) and "more" not in str(bad.error)
    assert good.error is None and worker.broken is None and queue.load == 0


def test_closing_computes_what_waits_and_refuses_the_rest() -> None:
    clock = Clock()
    queue, worker, _ = server(clock)
    job = job_of(clock, 10)
    queue.put(job)
    queue.close()
    with pytest.raises(Unhealthy, match="shutting down"):
        queue.put(job_of(clock, 10))
    drain(worker)
    assert job.over and job.error is None


def test_an_engine_that_gave_up_ends_all_requests() -> None:
    from thresher.errors import ModelError

    clock = Clock()
    queue, worker, engine = server(clock, budget_s=LEAST_TOKENS * SECONDS_A_TOKEN)
    engine.fails = lambda first: ModelError("the GPU answers nothing any more")
    jobs = [job_of(clock, 250) for _ in range(3)]
    for job in jobs:
        queue.put(job)
    worker.step()
    assert worker.broken == "the GPU answers nothing any more"
    assert [type(job.error) for job in jobs] == [Failed, Unhealthy, Unhealthy] and queue.closed


def test_the_budget_follows_the_pace_and_small_batches_do_not_count() -> None:
    pace = Pace(0.001, batch_seconds=1.0, most_tokens=2000)
    assert pace.budget == 1000
    pace.add(10, 10.0)
    assert pace.budget == 1000
    for _ in range(100):
        pace.add(1000, 0.25)
    assert pace.budget == 2000  # four times as fast, but no more fits
    for _ in range(100):
        pace.add(2000, 2000.0)
    assert pace.budget == LEAST_TOKENS and math.isclose(pace.wait(10), 10, rel_tol=0.01)


def test_small_batches_count_where_others_wait_and_time_is_over_tokens() -> None:
    pace = Pace(0.001, batch_seconds=1.0, most_tokens=2000)
    for _ in range(200):
        pace.add(900, 0.9, crowded=True)
        pace.add(100, 1.1, crowded=True)  # costs more than a token's share
    assert pace.seconds_per_token == pytest.approx(0.002, rel=0.1)


def test_one_batch_that_hung_is_not_the_end_of_all_promises() -> None:
    pace = Pace(0.001, batch_seconds=1.0, most_tokens=2000)
    pace.add(1000, 3600.0)
    assert pace.wait(1000) < 2.0
    for _ in range(40):
        pace.add(1000, 1.0)
    assert pace.wait(1000) == pytest.approx(1.0, rel=0.1)


def test_a_small_batch_that_was_faster_counts() -> None:
    pace = Pace(0.001, batch_seconds=1.0, most_tokens=2000)
    for _ in range(20):
        pace.add(2000, 40.0)
    assert pace.wait(10) > 0.1
    for _ in range(120):
        pace.add(10, 0.01)  # of an idle engine
    assert pace.wait(10) == pytest.approx(0.01, rel=0.2)


def test_an_engine_that_was_held_up_and_is_idle_is_tried_again() -> None:
    clock = Clock()
    queue, worker, _ = server(clock)
    for _ in range(12):
        queue.pace.add(1000, 3600.0)  # a machine that stood still, again and again
    assert queue.pace.careful_wait(100) > 100
    with pytest.raises(TooLarge):
        queue.put(job_of(clock, *[100] * 90))  # too much for the pace it began with, too
    first = job_of(clock, 100)
    queue.put(first)
    with pytest.raises(Overloaded):
        queue.put(job_of(clock, 100))  # one at a time, until it is known better
    drain(worker)
    assert first.over and first.error is None
    for _ in range(100):
        queue.put(job_of(clock, 100))
        drain(worker)
    assert queue.pace.careful_wait(100) < 1
    queue.put(job_of(clock, *[100] * 60))


def test_promises_are_made_with_the_pace_of_slow_batches() -> None:
    steady, uneven = (Pace(0.001, batch_seconds=1.0, most_tokens=2000) for _ in range(2))
    for number in range(200):
        steady.add(1000, 1.0)
        uneven.add(1000, 0.5 if number % 2 else 1.5)
    assert steady.careful_wait(1000) == pytest.approx(steady.wait(1000), rel=0.01)
    assert uneven.wait(1000) == pytest.approx(1.0, rel=0.1) and uneven.careful_wait(1000) > 1.3 * uneven.wait(1000)


def test_a_worker_that_is_stuck_is_silent() -> None:
    clock = Clock()
    _, worker, _ = server(clock)
    worker.step()
    assert worker.silent == 0
    clock.now += 40
    assert worker.silent == 40


def test_a_request_of_nothing_is_refused_and_does_not_wait_for_ever() -> None:
    from thresher.serving.errors import EmptyRequest

    clock = Clock()
    queue, _, _ = server(clock)
    with pytest.raises(EmptyRequest, match="nothing to compute"):
        queue.put(job_of(clock))


def test_watching_that_fails_is_not_the_engines_end() -> None:
    def fails(*batch: object) -> None:
        raise RuntimeError("a counter tripped")

    clock = Clock()
    queue, worker, _ = server(clock, watch=fails, idle=fails)
    job = job_of(clock, 10, first=3)
    queue.put(job)
    drain(worker)
    assert outputs([job]) == [[3]] and worker.broken is None
