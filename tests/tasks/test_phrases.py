"""Sentences and their phrases: which rows are whole, and a selection that no training row gives away."""

from hypothesis import given
from hypothesis import strategies as st

from thresher.tasks import Example
from thresher.tasks.phrases import Collection, hold_out_whole, whole_rows
from thresher.tasks.splits import fingerprint

SENTENCE = "a gripping story told well ."
PHRASES = ("a gripping story", "told well .", "gripping story told well")
WORDS = st.lists(st.sampled_from("abc"), min_size=1, max_size=7).map(" ".join)


def rows(*texts: str) -> list[Example]:
    return [Example(text, None, 0) for text in texts]


def test_pieces_by_hand() -> None:
    texts = Collection([SENTENCE])
    assert all(texts.has_piece(phrase) for phrase in (*PHRASES, SENTENCE, "  told   well . "))
    assert not texts.has_piece("gripping story well"), "words in between"
    assert not texts.has_piece("ripping story told"), "half a word"
    assert not texts.has_piece("told well"), "two words occur everywhere"
    assert not texts.has_piece(SENTENCE + " indeed")


def test_whole_rows_are_no_pieces_of_others() -> None:
    found = whole_rows(rows(*PHRASES, SENTENCE, "dull from start to end", "told well", SENTENCE))
    assert [row.text for row in found] == [SENTENCE, "dull from start to end", SENTENCE], "copies are the same text"


def test_pieces_of_selection_rows_are_not_trained_on() -> None:
    sentences = [f"film {i} has a plot {i} and scene {i} ." for i in range(40)]
    phrases = [f"has a plot {i} and" for i in range(40)]
    everywhere = ["a plot"]
    train, selection, left_out, leaked = hold_out_whole(rows(*sentences, *phrases, *everywhere), [rows(sentences[0])])
    assert len(selection) == 6 and leaked == 1
    assert all(row.text in sentences[1:] for row in selection), "no test row chooses"
    numbers = {row.text.split()[1] for row in selection}
    assert {row.text.split()[3] for row in left_out} == numbers and len(left_out) == 6
    assert {row.text for row in train} == {*sentences, *phrases, *everywhere} - {
        row.text for row in selection + left_out
    }


def test_without_whole_rows_there_is_no_selection() -> None:
    train, selection, left_out, _ = hold_out_whole(rows("good", "bad film"), [])
    assert (len(train), selection, left_out) == (2, [], [])


@given(st.lists(WORDS, max_size=25))
def test_nothing_is_lost_and_nothing_given_away(texts: list[str]) -> None:
    given_rows = rows(*texts)
    train, selection, left_out, _ = hold_out_whole(given_rows, [])
    assert sorted(row.text for row in train + selection + left_out) == sorted(texts)
    padded = [f" {row.text} " for row in selection]
    for row in train:
        assert len(row.text.split()) < 3 or not any(f" {row.text} " in text for text in padded)
    wholes = {fingerprint(row) for row in whole_rows(given_rows)}
    assert all(fingerprint(row) in wholes for row in selection)
    for row in given_rows:
        inside = any(f" {row.text} " in f" {other} " and row.text != other for other in texts)
        assert (fingerprint(row) in wholes) == (len(row.text.split()) >= 3 and not inside)
