"""Whether a run is for pairs is known where it was saved, and inputs of the other kind are refused."""

from typing import Any

import pytest

from thresher.errors import DataError
from thresher.models.pairs import check_pairs, takes_pairs

PAIRS: dict[str, Any] = {"task": {"columns": {"text": "a", "pair": "b"}}}
SINGLE: dict[str, Any] = {"task": {"columns": {"text": "a", "pair": None}}}


def test_it_is_known_only_where_it_was_saved() -> None:
    assert takes_pairs(PAIRS) is True and takes_pairs(SINGLE) is False
    for pairs in (True, False):
        assert takes_pairs({"training_free": {"texts": {"pairs": pairs}}}) is pairs
    for manifest in ({}, {"task": "sst2"}, {"task": {}}, {"task": {"columns": {"text": "a"}}}, {"training_free": 3}):
        assert takes_pairs(manifest) is None


def test_inputs_of_the_other_kind_are_refused() -> None:
    with pytest.raises(DataError, match="^mine is for pairs of texts, but was given single texts; give it pairs of"):
        check_pairs(PAIRS, given_pairs=False, name="mine")
    with pytest.raises(DataError, match="^mine is for single texts, but was given pairs of texts; give it single"):
        check_pairs(SINGLE, given_pairs=True, name="mine")
    for manifest, pairs in ((PAIRS, True), (SINGLE, False), ({}, True), ({}, False)):
        check_pairs(manifest, given_pairs=pairs, name="mine")
