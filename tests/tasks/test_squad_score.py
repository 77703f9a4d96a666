"""EM, F1 and the best threshold are those that the official SQuAD 2.0 script printed for these rows."""

import math

import pytest

from thresher.tasks.squad_score import NEVER, Judged, best_f1, judge, normalised, shared_words, squad_scores
from thresher.tasks.truth import Answers

# Right answers, predicted answer, and by how much no answer scored higher.
CASES: list[tuple[list[str], str, float]] = [
    (["October 1973", "October", "1973"], "in October, 1973", -4.25),
    (["the U.S."], "US", -3.5),
    (["a cat's cradle"], "cats cradle", -3.0),
    (["The The"], "the", -2.75),
    (["10,000"], "10 000", -2.5),
    ([], "a guess", -2.0),
    (["naïve Bayes"], "naive Bayes", -1.5),
    (["an apple, an orange"], "apple orange orange", -1.0),
    ([], "", -0.5),
    (["well-known"], "well known", 0.25),
    (["“quoted”"], "quoted", 0.5),
    ([], "the", 0.75),
    (["東京 タワー"], "東京", 1.0),
    (["one two three four"], "", 1.5),
    ([], "another guess", 2.0),
    (["right"], "Right!", 2.5),
]
# By the threshold: exact, f1, HasAns_exact, HasAns_f1, NoAns_exact, NoAns_f1.
OFFICIAL = {
    0.0: (37.5, 50.625, 25.0, 42.49999999999999, 75.0, 75.0),
    1.0: (37.5, 54.79166666666666, 25.0, 48.05555555555555, 75.0, 75.0),
    -2.25: (43.75, 48.75, 25.0, 31.666666666666668, 100.0, 100.0),
}
NAMES = ("exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1")


def judged() -> list[Judged]:
    return [judge(text, Answers(tuple(right), (0,) * len(right)), margin) for right, text, margin in CASES]


@pytest.mark.parametrize("threshold", OFFICIAL)
def test_the_official_numbers(threshold: float) -> None:
    found = squad_scores(judged(), threshold)
    # Python 3.12 adds floats more exactly than 3.11, by a digit beyond the twelfth.
    assert [round(found[name], 12) for name in NAMES] == [round(number, 12) for number in OFFICIAL[threshold]]
    assert (found["total"], found["HasAns_total"], found["NoAns_total"]) == (16, 12, 4)


def test_the_best_threshold() -> None:
    best, threshold = best_f1(judged())
    assert (best, threshold) == (50.625, -1.0)
    assert squad_scores(judged(), threshold)["f1"] == best


def test_where_answering_nothing_is_best() -> None:
    """The official threshold of 0 would answer a question with a margin below it."""
    rows = [Judged(0, 0.0, False, True, -7.0), Judged(0, 0.5, True, True, -3.0)]
    best, threshold = best_f1(rows)
    assert best == 50.0 and threshold < -7.0 and squad_scores(rows, threshold)["f1"] == 50.0


def test_where_every_question_has_an_answer() -> None:
    rows = [Judged(1, 1.0, True, True, 9.0), Judged(0, 0.0, True, True, 12.0)]
    assert best_f1(rows) == (50.0, NEVER)
    assert set(squad_scores(rows, NEVER)) == {
        *("exact", "f1", "total", "HasAns_exact", "HasAns_f1", "HasAns_total")
    }  # nothing is said of questions without an answer where there are none


def test_an_empty_context_is_never_answered() -> None:
    rows = [judge("", Answers(), math.inf), judge("", Answers(("a b",), (0,)), math.inf), Judged(1, 1.0, True, True, 2)]
    best, threshold = best_f1(rows)
    assert best == pytest.approx(200 / 3) and threshold == 2.0
    assert [row.at(threshold) for row in rows] == [(1.0, 1.0), (0.0, 0.0), (1, 1.0)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  U.S.A.,\tan\u00a0 idea", "usa idea"),
        ("theory a an", "theory"),
        ("a-the", "athe"),  # punctuation goes first, and takes the word's edges with it
        ("É—É", "é—é"),  # punctuation is that of ASCII
        ("", ""),
    ],
)
def test_normalised(text: str, expected: str) -> None:
    assert normalised(text) == expected


def test_words_are_counted_as_often_as_both_have_them() -> None:
    assert shared_words("x x y", "x x x") == pytest.approx(2 / 3)
    assert shared_words("the", "a") == 1 and shared_words("x", "a") == 0 and shared_words("x", "y") == 0
