"""Functions of C by what a second call gives: clocks, files, generators of random numbers.

Tables of names as CPython and NumPy have them. What is no function of C runs some of these, or
reads variables.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

NO_NAMES = frozenset[str]()
_SYSTEM = frozenset({"fspath", "_path_normpath", "_path_splitroot", "getpid", "write", "close"})
# Functions of C, by module, that give another value each time; of these modules all but some.
MODULES = {
    "time": frozenset({"sleep", "mktime", "strptime"}), "posix": _SYSTEM, "nt": _SYSTEM,
    "_queue": NO_NAMES, "select": NO_NAMES, "_socket": NO_NAMES, "_locale": NO_NAMES,
    "_decimal": NO_NAMES, "resource": NO_NAMES,
}  # fmt: skip
FUNCTIONS = frozenset({
    ("io", "open"), ("_io", "open"), ("builtins", "open"), ("builtins", "input"),
    ("_thread", "get_ident"), ("_thread", "get_native_id"), ("builtins", "dir"),
    ("builtins", "eval"), ("builtins", "exec"), ("gc", "get_objects"), ("gc", "get_referrers"),
    ("gc", "get_referents"), ("numpy", "fromfile"), ("_string", "formatter_field_name_split"),
    ("builtins", "__import__"), ("_signal", "getsignal"), ("numpy", "geterrobj"),
    ("numpy._core._multiarray_umath", "_get_extobj_dict"),
})  # fmt: skip
# And those that libraries may call: what these give does not depend on it.
DIRECTLY = frozenset({
    ("sys", "_getframe"), ("sys", "getrecursionlimit"), ("sys", "getswitchinterval"),
    ("sys", "getrefcount"), ("sys", "getallocatedblocks"), ("sys", "gettrace"),
    ("sys", "getprofile"), ("gc", "isenabled"), ("gc", "get_count"), ("gc", "get_stats"),
    ("gc", "get_threshold"), ("_weakref", "getweakrefcount"), ("_weakref", "getweakrefs"),
    ("sys", "get_int_max_str_digits"), ("atexit", "_ncallbacks"), ("faulthandler", "is_enabled"),
    ("_tracemalloc", "is_tracing"), ("_tracemalloc", "get_traced_memory"),
    ("_contextvars", "copy_context"), ("_thread", "_count"),
})  # fmt: skip
# After these, code runs that the interpreter does not report here.
HIDING = frozenset({
    ("_thread", "start_new_thread"), ("_thread", "start_joinable_thread"), ("_thread", "acquire"),
    ("sys", "setprofile"),
})  # fmt: skip
# Methods of C, by the module of the object's class; an empty set is all of them.
METHODS = {
    "_random": NO_NAMES, "random": NO_NAMES, "_queue": NO_NAMES, "_socket": NO_NAMES,
    "numpy.random": NO_NAMES, "mmap": NO_NAMES, "sqlite3": NO_NAMES,
    "_thread": frozenset({"locked", "_is_owned"}),
    "_io": frozenset({"read", "read1", "readinto", "readline", "readlines", "readall", "peek",
                      "getvalue", "tell"}),
    "datetime": frozenset({"now", "today", "utcnow"}), "functools": frozenset({"cache_info"}),
    "ctypes": frozenset({"from_address", "in_dll"}),
}  # fmt: skip
DRAWING = frozenset({"_random", "random", "numpy.random"})  # they write to what they are given


def module_of(function: Any, owner: Any) -> str:
    """The Python module of a function of C, or of the class that a method is of."""
    if owner is None or type(owner) is ModuleType:
        return str(function.__module__ or "")
    kind = owner if isinstance(owner, type) else type(owner)
    for base in kind.__mro__:
        if function.__name__ in vars(base):
            return str(base.__module__)
    return str(kind.__module__)


def is_volatile(module: str, name: str, owner: Any) -> bool:
    """Whether to call a function of C again may give another value.

    Args:
        module: see `module_of`.
        name: the function's.
        owner: its ``__self__``.
    """
    if owner is None or type(owner) is ModuleType:
        return (module, name) in FUNCTIONS or (module in MODULES and name not in MODULES[module])
    methods = METHODS.get("numpy.random" if module.startswith("numpy.random") else module)
    return methods is not None and (not methods or name in methods)
