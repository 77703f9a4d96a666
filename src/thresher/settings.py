"""What settings are made of: frozen dataclasses whose fields have help and a rule that is checked."""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from thresher.errors import ConfigError


def setting(
    default: Any,
    help: str,
    *,
    choices: tuple[Any, ...] | None = None,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    of: tuple[str, ...] = (),
) -> Any:
    """One field: its default, help text, rule (choices, low <= value <= high, value > above), and the methods that read
    it, if not all do."""
    help = f"{', '.join(of)}: {help}" if of else help
    rule = {"choices": choices, "low": low, "high": high, "above": above}
    return field(default=default, metadata={"help": help, "of": of, **rule})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of all configurations: validates every field against its rule when created."""

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for item in fields(self):
            value = _as_declared(item.name, getattr(self, item.name), hints[item.name])
            _check_rule(item.name, value, item.metadata)
            object.__setattr__(self, item.name, value)

    def to_dict(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        known = [item.name for item in fields(cls)]
        for name in values:
            if name not in known:
                raise ConfigError(f"unknown setting '{name}' for {cls.__name__}; known settings: {', '.join(known)}")
        return cls(**values)

    @classmethod
    def help_for(cls, name: str) -> str:
        return next(str(item.metadata["help"]) for item in fields(cls) if item.name == name)


def _as_declared(name: str, value: Any, declared: Any) -> Any:
    """Check the value's type; accept int for float and list for tuple, because JSON and TOML write them so."""
    allowed = typing.get_args(declared) if isinstance(declared, types.UnionType) else (declared,)
    for kind in allowed:
        origin = typing.get_origin(kind) or kind
        if origin is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value) if isinstance(value, float) or abs(value) < 2**63 else math.inf  # refused by its rule
        if origin is tuple and isinstance(value, list | tuple):
            element = typing.get_args(kind)[0]  # words are checked by their choices
            return tuple(value if element is str else (_as_declared(name, one, element) for one in value))
        if isinstance(value, origin) and not (origin is int and isinstance(value, bool)):
            return value
    wanted = " or ".join(
        "nothing" if kind is types.NoneType else getattr(kind, "__name__", str(kind)) for kind in allowed
    )
    raise ConfigError(f"{name} = {value!r} is of type {type(value).__name__}; it must be {wanted}")


def _check_rule(name: str, value: Any, rule: Mapping[str, Any]) -> None:
    for one in value if isinstance(value, tuple) else (value,):
        if rule.get("choices") is not None and one is not None and one not in rule["choices"]:
            raise ConfigError(f"{name} = {one!r} is not one of: {', '.join(map(str, rule['choices']))}")
        if isinstance(one, float) and not math.isfinite(one):
            raise ConfigError(f"{name} = {one} must be a finite number")
        if isinstance(one, int | float):
            if rule.get("low") is not None and one < rule["low"]:
                raise ConfigError(f"{name} = {one} is below {rule['low']}, the smallest allowed value")
            if rule.get("high") is not None and one > rule["high"]:
                raise ConfigError(f"{name} = {one} is above {rule['high']}, the largest allowed value")
            if rule.get("above") is not None and one <= rule["above"]:
                raise ConfigError(f"{name} = {one} must be greater than {rule['above']}")
