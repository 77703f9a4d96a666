"""Evolutionary search for token counts per layer: the front of cost and quality (Length-Adaptive Transformer's)."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Lengths = tuple[int, ...]


@dataclass(frozen=True)
class Candidate:
    """Token counts per layer with what they cost and how good they are."""

    lengths: Lengths
    cost: float
    score: float


def pareto_front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that no other beats in cost without being worse, from the cheapest to the dearest."""
    front: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda one: (one.cost, -one.score, one.lengths)):
        if not front or candidate.score > front[-1].score:
            front.append(candidate)
    return front


def mutated(lengths: Lengths, *, longest: int, probability: float, draw: random.Random) -> Lengths:
    """Some layers get a new length between their new predecessor's and their old successor's."""
    found: list[int] = []
    for layer, own in enumerate(lengths):
        before = found[-1] if found else longest
        after = lengths[layer + 1] if layer + 1 < len(lengths) else 1
        found.append(draw.randint(after, before) if draw.random() < probability else own)
    return tuple(found)


def crossed(one: Lengths, other: Lengths) -> Lengths:
    """The mean of two in every layer, rounded up."""
    return tuple((a + b + 1) // 2 for a, b in zip(one, other, strict=True))


def evolve(
    start: Sequence[Lengths],
    measure: Callable[[Lengths], Candidate],
    *,
    known: dict[Lengths, Candidate] | None = None,
    longest: int,
    rounds: int,
    draw: random.Random,
    mutations: int = 30,
    crossings: int = 30,
    probability: float = 0.5,
    on_round: Callable[[list[Candidate]], None] = lambda front: None,
) -> list[Candidate]:
    """Rounds of mutations and crossings of the front; each candidate is measured once. Returns the last front.

    Candidates in `known` are not measured, and new ones are added to it."""
    known = {} if known is None else known
    seen: dict[Lengths, Candidate] = {}

    def look(lengths: Lengths) -> None:
        if lengths not in known:
            known[lengths] = measure(lengths)
        seen[lengths] = known[lengths]

    for lengths in start:
        look(lengths)
    front = pareto_front(list(seen.values()))
    for _ in range(rounds):
        parents = [one.lengths for one in front]
        children = [
            mutated(draw.choice(parents), longest=longest, probability=probability, draw=draw) for _ in range(mutations)
        ]
        if len(parents) > 1:
            children += [crossed(*draw.sample(parents, 2)) for _ in range(crossings)]
        for lengths in children:
            look(lengths)
        front = pareto_front(list(seen.values()))
        on_round(front)
    return front
