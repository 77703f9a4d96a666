"""Log lines as JSON, one an event. Texts are never among the facts."""

import json
import logging
import sys
import time
from typing import Any

LOGGERS = ("thresher.serving", "thresher.access", "uvicorn.error", "asyncio")


class JsonLines(logging.Formatter):
    """Time, level, event and its facts."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        event = record.getMessage().partition("\n")[0]  # asyncio goes on with what it holds, which may be texts
        line: dict[str, Any] = {"time": stamp, "level": record.levelname.lower(), "event": event}
        line |= getattr(record, "facts", {})
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__name__
            line["where"] = _places(record.exc_info[2])
        return json.dumps(line)


def _places(trace: Any) -> list[str]:
    """Where an exception came from, without its message: that may quote a text."""
    found = []
    while trace is not None:
        code = trace.tb_frame.f_code
        found.append(f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno} {code.co_name}")
        trace = trace.tb_next
    return found[-6:]


def log_lines(level: str) -> None:
    """All our lines, and warnings of uvicorn and asyncio, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    wanted = logging.getLevelNamesMapping()[level.upper()]
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(wanted if name.startswith("thresher") else max(wanted, logging.WARNING))
