"""Triton's interpreter without what it does over and over."""

import functools
import inspect
from collections.abc import Callable
from typing import Any


def replace_language_once_() -> None:
    """Let it replace the functions of Triton's language once, and for good: this process compiles no kernels.

    By itself it does so in every launch and at every call of a helper in a kernel, such as `tl.sum`. Each time it looks
    through hundreds of names, which takes longer than the helper's work on small tiles.
    """
    from triton import language
    from triton.runtime import interpreter

    replace = interpreter._patch_lang
    if replace.__module__ != interpreter.__name__:
        return  # here before
    done: set[frozenset[str]] = set()

    @functools.cache
    def seen_by(function: Callable[..., Any]) -> frozenset[str]:
        """The language's modules that are replaced for a function: kernels see one, Triton's helpers another."""
        modules = [value for value in function.__globals__.values() if inspect.ismodule(value)]
        return frozenset(value.__name__ for value in modules if value in (language, language.core))

    def once(function: Callable[..., Any]) -> Any:
        if (modules := seen_by(function)) not in done:
            replace(function)
            done.add(modules)
        return interpreter._LangPatchScope()  # in which there is nothing to restore

    interpreter._patch_lang = once
