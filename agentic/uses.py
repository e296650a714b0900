"""Which tables a function uses, read from its code.

Tables are shared by agents without being passed around, as a dict at the top of a module is.
A worker has to know who shares one, since what shares a table must share its partitioning. So
the names that a function's code refers to are looked up where Python would look them up: in
its closure, its module's globals, and one attribute deep in modules (``tables.totals``).
Functions and the functions of classes found on the way are followed. Other agents are not:
who asks one, or casts to it, has it work in its own task. What is reached in another way,
through an object's attributes for one, has to be declared.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from agentic.table import Table


def tables_used(fn: Any) -> tuple[Table[Any, Any], ...]:
    """Return the tables that a function's code refers to, each once, in the order in which they are met."""
    return tuple(dict.fromkeys(thing for thing in _reached(fn) if isinstance(thing, Table)))


def mentions(fn: Any, names: Iterable[str]) -> bool:
    """Does a function's code, or that of what it refers to, use one of these names, as an attribute or by itself?"""
    wanted = set(names)
    return any(wanted.intersection(_names(thing.__code__)) for thing in _reached(fn) if isinstance(thing, FunctionType))


def _reached(fn: Any) -> Iterator[Any]:
    """Iterate over what a function's code refers to, directly or through functions on the way, itself included."""
    todo: list[Any] = [fn]
    seen: set[int] = set()
    while todo:
        thing = todo.pop(0)
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        yield thing
        if isinstance(thing, FunctionType):
            todo += _referred(thing)
        elif inspect.ismethod(thing):
            todo.append(thing.__func__)
        elif isinstance(thing, type) and not _foreign(thing.__module__):
            todo += [_plain(member) for member in vars(thing).values()]
        elif not _foreign(type(thing).__module__) and isinstance(wrapped := getattr(thing, "fn", None), FunctionType):
            todo.append(wrapped)  # what somebody's decorator has made of a function


def _referred(fn: FunctionType) -> Iterator[Any]:
    if _foreign(fn.__module__):
        return
    names = _names(fn.__code__)
    for cell in fn.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # a name that the enclosing function has not bound yet
    yield from fn.__defaults__ or ()
    yield from (fn.__kwdefaults__ or {}).values()
    if isinstance(wrapped := getattr(fn, "__wrapped__", None), FunctionType):
        yield wrapped
    for name in names:
        if name in fn.__globals__:
            thing = fn.__globals__[name]
            yield thing
            if isinstance(thing, ModuleType):
                yield from (vars(thing)[inner] for inner in names if isinstance(vars(thing).get(inner), Table))
                if not _foreign(thing.__name__):
                    yield from (
                        vars(thing)[inner] for inner in names if isinstance(vars(thing).get(inner), FunctionType)
                    )


def _names(code: CodeType) -> list[str]:
    """All names that a function's code and that of its inner functions refer to, in order."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _names(constant)
    return names


def _plain(member: Any) -> Any:
    """A class's member as the function that it is made of."""
    if isinstance(member, staticmethod | classmethod):
        return member.__func__
    return member.fget if isinstance(member, property) else member


def _foreign(module: str | None) -> bool:
    """Is it the library's own, or the standard library's: code that knows no table of the user's?"""
    root = (module or "").partition(".")[0]
    return root == "agentic" or root in sys.stdlib_module_names
