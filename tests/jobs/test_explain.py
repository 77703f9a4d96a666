"""The explaining job: what the command prints, as a result."""

from pathlib import Path
from typing import Any

import pytest

import thresher
from tests.cli import tiny
from thresher.errors import ConfigError, DataError


def test_the_command_prints_the_result(finished: Path) -> None:
    text = "the film is very good"
    result = thresher.explain_run(finished, text=text)
    assert result.to_dict() == tiny.succeeds("explain {run} {text} --json", run=finished, text=text).json()
    assert result.dense is not None and set(result.dense.dropped_at) == {None}
    checkpoint = thresher.load(finished)
    assert result.pruned == thresher.explain(checkpoint.model, checkpoint.tokenizer, text)
    again = thresher.explain_run(thresher.ExplainRequest(run=finished, text=text))
    assert again == result


def test_what_is_wrong_is_said_before_the_run_is_loaded() -> None:
    for pair in (None, "a film"):
        with pytest.raises(DataError, match="the text is empty; give at least one word"):
            thresher.ExplainRequest(run="no-such-run", text=" ", pair=pair)  # type: ignore[arg-type]
    wrong: tuple[tuple[str, dict[str, Any]], ...] = (
        ("text = None is of type NoneType", {"text": None}),
        ("text = 5 is of type int", {"text": 5}),
        ("pair = 5 is of type int", {"text": "a film", "pair": 5}),
    )
    for says, given in wrong:
        with pytest.raises(ConfigError, match=f"{says}; give a string"):
            thresher.explain_run("no-such-run", **given)
    with pytest.raises(ConfigError, match="unknown option 'svg'; ExplainRequest has: run, text, pair"):
        thresher.explain_run("no-such-run", text="a film", svg="a.svg")
