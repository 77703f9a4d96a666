"""What all requests share: paths may be given as text, and a call may give a request or its fields by name."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from thresher.errors import ConfigError
from thresher.workplace import expanded, path_problem

if TYPE_CHECKING:
    from thresher.training.progress import Silent

Note = Callable[[str], None]  # is told what is worth a line


@dataclass(frozen=True, kw_only=True)
class Request:
    """Base of all requests. What is in PATHS becomes a path, what is in COUNTS must be at least 1."""

    PATHS: ClassVar[tuple[str, ...]] = ()
    COUNTS: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name in self.PATHS:
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, Path(expanded(value)))
            check_path(name, getattr(self, name))
        for name in self.COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} = {value} is below 1, the smallest allowed value")


def check_path(name: str, value: object) -> None:
    """Refuse what can be no path before any work, and not where it is used at last."""
    if isinstance(value, Path) and (problem := path_problem(value)):
        shown = str(value) if len(str(value)) < 80 else f"{str(value)[:80]}..."
        raise ConfigError(f"{name.replace('_', '-')} = {shown} cannot be a path: {problem}; give another")


R = TypeVar("R", bound=Request)


def asked(kind: type[R], first: object, given: dict[str, Any], *, name: str) -> R:
    """The request of a call: the first argument itself, or made of it, as the field `name`, and of the others."""
    if isinstance(first, kind):
        if given:
            raise ConfigError(f"'{next(iter(given))}' is given beside a {kind.__name__}; put it into the request")
        return first
    known = [item.name for item in fields(kind)]
    for key in given:
        if key not in known:
            raise ConfigError(f"unknown option '{key}'; {kind.__name__} has: {', '.join(known)}")
    return kind(**{name: first, **given})


def heard(progress: "Silent | None", note: Note | None) -> "tuple[Silent, Note]":
    """Who shows progress and who is told notes: without a listener of their own, notes go where progress is shown."""
    from thresher.training.progress import Silent

    shown = progress or Silent()
    return shown, note or shown.note
