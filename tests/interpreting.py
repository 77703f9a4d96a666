"""Triton's interpreter without what it does over and over."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace as replace_fields
from typing import Any


def replace_language_once_() -> None:
    """Let it replace the functions of Triton's language once, and for good: this process compiles no kernels.

    By itself it does so in every launch and at every call of a helper in a kernel, such as `tl.sum`. Each time it looks
    through hundreds of names, which takes longer than the helper's work on small tiles.

    Two things more take long and tell a test nothing. Sums of integers are computed again in int64, to see whether they
    overflow, and nobody looks at the answer unless the interpreter is in its debug mode. And whenever it asks for the
    dtype in NumPy, it makes the table of all dtypes.
    """
    from triton import language
    from triton.runtime import interpreter

    replace = interpreter._patch_lang
    if replace.__module__ != interpreter.__name__:
        return  # here before
    options = interpreter.interpreter_builder.options
    assert options.sanitize_overflow and not options.debug, "in debug mode, sums that overflow are to be told"
    interpreter.interpreter_builder.options = replace_fields(options, sanitize_overflow=False)
    interpreter._get_np_dtype = known(interpreter._get_np_dtype)
    share_shapes_(language.core)
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


def known(dtype_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same, looked up by the name of what a block is made of: blocks themselves are no keys."""
    found: dict[str, Any] = {}

    def looked_up(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in found:
            found[name] = dtype_of(kind)
        return found[name]

    return looked_up


def share_shapes_(core: Any) -> None:
    """Every tensor and every type of a block makes its shape anew, as objects of the language, which takes about as
    long as all else that is done with a small tile. There are few shapes, which nobody changes: they are shared."""
    plain_block, plain_tensor = core.block_type.__init__, core.tensor.__init__
    blocks: dict[tuple[Any, ...], dict[str, Any]] = {}
    shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *(getattr(size, "value", size) for size in shape))
        if key not in blocks:
            plain_block(self, element_ty, shape)
            blocks[key] = dict(vars(self))
        vars(self).update(blocks[key])

    def tensor(self: Any, handle: Any, type: Any) -> None:
        sizes = tuple(type.shape) if type.is_block() else ()
        if sizes not in shapes:
            plain_tensor(self, handle, type)
            shapes[sizes] = (self.shape, self.numel)
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = shapes[sizes]

    core.block_type.__init__, core.tensor.__init__ = block, tensor
