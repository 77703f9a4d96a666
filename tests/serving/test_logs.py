"""Whoever says something on standard error says it in one line of JSON, and quotes no text."""

import json
import logging
from collections.abc import Iterator

import pytest

from thresher.serving.http.logs import LOGGERS, log_lines


@pytest.fixture
def loggers() -> Iterator[dict[str, logging.Logger]]:
    """As they were before, afterwards."""
    found = {name: logging.getLogger(name) for name in LOGGERS}
    before = {name: (each.handlers, each.propagate, each.level) for name, each in found.items()}
    yield found
    for name, (handlers, propagate, level) in before.items():
        found[name].handlers, found[name].propagate = handlers, propagate
        found[name].setLevel(level)


@pytest.mark.parametrize("name", LOGGERS)
def test_an_error_is_one_line_without_what_it_quotes(
    loggers: dict[str, logging.Logger], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    log_lines("info")
    try:
        raise ValueError("a secret text")
    except ValueError as error:
        loggers[name].error("it failed\nfuture: <Task exception=ValueError('a secret text')>", exc_info=error)
    (line,) = capsys.readouterr().err.splitlines()
    said = json.loads(line)
    assert (said["level"], said["event"], said["exception"]) == ("error", "it failed", "ValueError")
    assert "secret" not in line and "test_logs.py" in said["where"][0]


@pytest.mark.parametrize(("level", "warned"), [("info", 4), ("warning", 4), ("error", 0)])
def test_the_level_is_for_all(
    loggers: dict[str, logging.Logger], capsys: pytest.CaptureFixture[str], level: str, warned: int
) -> None:
    log_lines(level)
    for logger in loggers.values():
        logger.info("it works")
        logger.warning("it is slow")
    said = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert said.count("it is slow") == warned and said.count("it works") == (2 if level == "info" else 0)
