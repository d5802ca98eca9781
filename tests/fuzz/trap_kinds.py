"""What a compiled function may read, and the ways on which it reads it; for `traps`.

In the texts ``_N`` is replaced by a number of the value, and EXPR by the expression that reads it.
"""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """A Python value that changes.

    Attributes:
        name: for reports.
        mode: "follow" where replays must give the new value, "refuse" where the first call must
            raise, "either" where both are right.
        setup: source that makes the value.
        expression: reads it, a number.
        change: source that has the expression give another number.
    """

    name: str
    mode: str
    setup: str
    expression: str
    change: str


def _kind(name: str, setup: str, expression: str, change: str, mode: str = "follow") -> Kind:
    return Kind(name, mode, setup, expression, change)


_CONFIG = "class Config_N:\n    scale = 2.0\nconfig_N = Config_N()"

KINDS = [
    # Names.
    _kind("a global", "value_N = 2.0", "value_N", "global value_N\nvalue_N += 1"),
    _kind("a global that appears",
          "def late_reader_N():\n    try:\n        return late_N\n"
          "    except NameError:\n        return 2.0",
          "late_reader_N()", "globals()['late_N'] = globals().get('late_N', 2.0) + 1"),
    _kind("a global by globals()", "value_N = 2.0", "globals()['value_N']",
          "global value_N\nvalue_N += 1", "either"),
    _kind("a closure",
          "def make_N():\n    value = 2.0\n    def get():\n        return value\n"
          "    def put():\n        nonlocal value\n        value += 1\n    return get, put\n"
          "get_N, put_N = make_N()",
          "get_N()", "put_N()"),
    _kind("a default", "def get_N(value=2.0):\n    return value", "get_N()",
          "get_N.__defaults__ = (get_N.__defaults__[0] + 1,)"),
    _kind("a keyword default", "def get_N(*, value=2.0):\n    return value", "get_N()",
          "get_N.__kwdefaults__['value'] += 1"),
    _kind("replaced keyword defaults", "def get_N(*, value=2.0):\n    return value", "get_N()",
          "get_N.__kwdefaults__ = {'value': get_N.__kwdefaults__['value'] + 1}"),
    _kind("a swapped __code__",
          "import itertools\nturn_N = itertools.count(3)\ndef get_N():\n    return 2.0",
          "get_N()",
          "n = next(turn_N)\nget_N.__code__ = eval(f'lambda: {n}.0').__code__"),
    _kind("a shadowed builtin", "", "len([1, 2])",
          "n = globals().get('n_N', 2) + 1\nglobals()['n_N'] = n\n"
          "globals()['len'] = lambda things: n"),
    _kind("a replaced function", "def get_N():\n    return 2.0", "get_N()",
          "old = get_N()\nglobals()['get_N'] = lambda: old + 1"),
    _kind("a lambda in a variable", "get_N = lambda: 2.0", "get_N()",
          "global get_N\nold = get_N()\nget_N = lambda: old + 1"),
    # Attributes.
    _kind("an attribute", _CONFIG, "config_N.scale", "config_N.scale += 1"),
    _kind("a class attribute", _CONFIG, "config_N.scale", "Config_N.scale += 1"),
    _kind("a class attribute by its class", _CONFIG, "Config_N.scale", "Config_N.scale += 1"),
    _kind("an attribute of a base", _CONFIG + "\nclass Below_N(Config_N):\n    pass\n"
          "below_N = Below_N()", "below_N.scale", "Config_N.scale += 1"),
    _kind("an attribute that hides one of a base", _CONFIG +
          "\nclass Below_N(Config_N):\n    pass\nbelow_N = Below_N()",
          "below_N.scale", "Below_N.scale = below_N.scale + 1"),
    _kind("an attribute that appears", _CONFIG, "getattr(config_N, 'late', 2.0)",
          "config_N.late = getattr(config_N, 'late', 2.0) + 1"),
    _kind("an attribute that is tried", _CONFIG + "\ndef get_N():\n    try:\n"
          "        return config_N.late\n    except:\n        return 2.0", "get_N()",
          "config_N.late = getattr(config_N, 'late', 2.0) + 1"),
    _kind("hasattr", _CONFIG, "(3.0 if hasattr(config_N, 'late') else 2.0)", "config_N.late = 1"),
    _kind("object.__getattribute__", _CONFIG,
          "object.__getattribute__(config_N, 'scale')", "config_N.scale += 1"),
    _kind("__getattribute__ of an object", _CONFIG,
          "config_N.__getattribute__('scale')", "config_N.scale += 1"),
    _kind("getattr with a computed name", _CONFIG + "\nword_N = 'sca'",
          "getattr(config_N, word_N + 'le')", "config_N.scale += 1"),
    _kind("getattr with a name from a list", _CONFIG + "\nwords_N = ['scale']",
          "sum(getattr(config_N, word) for word in words_N)", "config_N.scale += 1"),
    _kind("operator.attrgetter", "import operator\n" + _CONFIG,
          "operator.attrgetter('scale')(config_N)", "config_N.scale += 1"),
    _kind("a kept attrgetter", "import operator\n" + _CONFIG +
          "\nget_N = operator.attrgetter('sca' + 'le')",
          "get_N(config_N)", "config_N.scale += 1"),
    _kind("operator.methodcaller", "import operator\nclass Box_N:\n    v = 2.0\n"
          "    def read(self):\n        return self.v\nbox_N = Box_N()",
          "operator.methodcaller('re' + 'ad')(box_N)", "box_N.v += 1", "either"),
    _kind("vars", _CONFIG.replace("scale = 2.0", "def __init__(self):\n        self.scale = 2.0"),
          "vars(config_N)['scale']", "config_N.scale += 1"),
    _kind("vars with a computed key",
          _CONFIG.replace("scale = 2.0", "def __init__(self):\n        self.scale = 2.0"),
          "sum(vars(config_N).values())", "config_N.scale += 1"),
    _kind("__dict__",
          _CONFIG.replace("scale = 2.0", "def __init__(self):\n        self.scale = 2.0"),
          "sum(config_N.__dict__.values())", "config_N.scale += 1"),
    _kind("a slot", "class Slots_N:\n    __slots__ = ('scale',)\nslots_N = Slots_N()\n"
          "slots_N.scale = 2.0", "slots_N.scale", "slots_N.scale += 1"),
    _kind("a property", "value_N = 2.0\nclass Box_N:\n    @property\n    def p(self):\n"
          "        return value_N\nbox_N = Box_N()", "box_N.p",
          "global value_N\nvalue_N += 1"),
    _kind("a replaced property", "class Box_N:\n    @property\n    def p(self):\n"
          "        return 2.0\nbox_N = Box_N()", "box_N.p",
          "old = box_N.p\nBox_N.p = property(lambda self: old + 1)"),
    _kind("a replaced method", "class Box_N:\n    def m(self):\n        return 2.0\n"
          "box_N = Box_N()", "box_N.m()", "old = box_N.m()\nBox_N.m = lambda self: old + 1"),
    _kind("a method hidden by its object", "class Box_N:\n    def m(self):\n        return 2.0\n"
          "box_N = Box_N()", "box_N.m()", "old = box_N.m()\nbox_N.m = lambda: old + 1"),
    _kind("a replaced static method", "class Box_N:\n    @staticmethod\n    def m():\n"
          "        return 2.0", "Box_N.m()",
          "old = Box_N.m()\nBox_N.m = staticmethod(lambda: old + 1)"),
    _kind("a replaced class method", "class Box_N:\n    @classmethod\n    def m(cls):\n"
          "        return 2.0", "Box_N.m()",
          "old = Box_N.m()\nBox_N.m = classmethod(lambda cls: old + 1)"),
    _kind("a class method hidden by a class below", "class A_N:\n    @classmethod\n"
          "    def m(cls):\n        return 2.0\nclass B_N(A_N):\n    pass", "B_N.m()",
          "old = B_N.m()\nB_N.m = classmethod(lambda cls: old + 1)"),
    _kind("another __class__", "class A_N:\n    v = 2.0\nclass B_N:\n    v = 3.0\na_N = A_N()",
          "a_N.v", "a_N.__class__ = B_N if type(a_N) is A_N else A_N"),
    _kind("another __class__, by a method", "class A_N:\n    def m(self):\n        return 2.0\n"
          "class B_N:\n    def m(self):\n        return 3.0\na_N = A_N()",
          "a_N.m()", "a_N.__class__ = B_N if type(a_N) is A_N else A_N"),
    _kind("a descriptor", "class Field_N:\n    def __get__(self, thing, owner):\n"
          "        return self.v\nclass Box_N:\n    f = Field_N()\nbox_N = Box_N()\n"
          "vars(Box_N)['f'].v = 2.0", "box_N.f", "vars(Box_N)['f'].v += 1"),
    _kind("a descriptor hidden by a class below", "class Field_N:\n"
          "    def __init__(self, v):\n        self.v = v\n"
          "    def __get__(self, thing, owner):\n        return self.v\n"
          "class A_N:\n    f = Field_N(2.0)\nclass B_N(A_N):\n    pass\nb_N = B_N()",
          "b_N.f", "B_N.f = Field_N(b_N.f + 1)"),
    _kind("__getattr__", "class Box_N:\n    def __init__(self):\n        self.table = {'v': 2.0}\n"
          "    def __getattr__(self, name):\n        return self.table[name]\nbox_N = Box_N()",
          "box_N.v", "box_N.table['v'] += 1"),
    _kind("__getattribute__", "table_N = {'v': 2.0}\nclass Box_N:\n"
          "    def __getattribute__(self, name):\n        return table_N[name]\nbox_N = Box_N()",
          "box_N.v", "table_N['v'] += 1"),
    _kind("a metaclass", "class Meta_N(type):\n    @property\n    def v(cls):\n"
          "        return cls.hidden\nclass Box_N(metaclass=Meta_N):\n    hidden = 2.0",
          "Box_N.v", "Box_N.hidden += 1"),
    _kind("a metaclass's __call__", "value_N = 2.0\nclass Meta_N(type):\n"
          "    def __call__(cls):\n        return value_N\nclass Box_N(metaclass=Meta_N):\n"
          "    pass", "Box_N()", "global value_N\nvalue_N += 1"),
    _kind("__call__", "class Box_N:\n    v = 2.0\n    def __call__(self):\n"
          "        return self.v\nbox_N = Box_N()", "box_N()", "box_N.v += 1"),
    _kind("a bound method in a variable", "class Box_N:\n    v = 2.0\n    def m(self):\n"
          "        return self.v\nbox_N = Box_N()\nm_N = box_N.m", "m_N()", "box_N.v += 1"),
    _kind("a reflected operator", "class Box_N:\n    v = 2.0\n    def __rmod__(self, other):\n"
          "        return self.v\nbox_N = Box_N()", "(7 % box_N)", "box_N.v += 1"),
    _kind("__format__", "class Box_N:\n    v = 2.0\n    def __format__(self, spec):\n"
          "        return str(self.v)\nbox_N = Box_N()", "float(f'{box_N}')", "box_N.v += 1"),
    _kind("__hash__", "class Box_N:\n    v = 2\n    def __hash__(self):\n"
          "        return self.v\nbox_N = Box_N()", "hash(box_N)", "box_N.v += 1"),
    _kind("__missing__", "class Table_N(dict):\n    v = 2.0\n    def __missing__(self, key):\n"
          "        return self.v\ntable_N = Table_N()", "table_N['a']", "table_N.v += 1"),
    _kind("super", "class A_N:\n    v = 2.0\n    def m(self):\n        return self.v\n"
          "class B_N(A_N):\n    def m(self):\n        return super().m()\nb_N = B_N()",
          "b_N.m()", "A_N.v += 1"),
    _kind("a replaced method of a base", "class A_N:\n    def m(self):\n        return 2.0\n"
          "class B_N(A_N):\n    def m(self):\n        return super().m()\nb_N = B_N()",
          "b_N.m()", "old = b_N.m()\nA_N.m = lambda self: old + 1"),
    _kind("cached_property", "import functools\nclass Box_N:\n    v = 2.0\n"
          "    @functools.cached_property\n    def c(self):\n        return self.v\n"
          "box_N = Box_N()", "box_N.c",
          "box_N.v += 1\nbox_N.__dict__.pop('c', None)"),
    _kind("an overwritten cached_property", "import functools\nclass Box_N:\n"
          "    @functools.cached_property\n    def c(self):\n        return 2.0\n"
          "box_N = Box_N()", "box_N.c", "box_N.c = box_N.c + 1"),
    _kind("a dataclass", "import dataclasses\n@dataclasses.dataclass\nclass Box_N:\n"
          "    v: float = 2.0\nbox_N = Box_N()", "box_N.v", "box_N.v += 1"),
    _kind("a replaced frozen dataclass", "import dataclasses\n"
          "@dataclasses.dataclass(frozen=True)\nclass Box_N:\n    v: float = 2.0\n"
          "box_N = Box_N()", "box_N.v",
          "global box_N\nbox_N = dataclasses.replace(box_N, v=box_N.v + 1)"),
    _kind("a namedtuple", "import collections\nPair_N = collections.namedtuple('Pair', 'v')\n"
          "pair_N = Pair_N(2.0)", "pair_N.v",
          "global pair_N\npair_N = pair_N._replace(v=pair_N.v + 1)"),
    _kind("an enum", "import enum\nclass Size_N(enum.Enum):\n    A = 2.0\n    B = 3.0\n"
          "size_N = Size_N.A", "size_N.value",
          "global size_N\nsize_N = Size_N.B if size_N is Size_N.A else Size_N.A"),
    _kind("an attribute of an enum's member", "import enum\nclass Size_N(enum.Enum):\n    A = 2.0\n"
          "Size_N.A.more = 2.0", "Size_N.A.more", "Size_N.A.more += 1"),
    _kind("SimpleNamespace", "import types\nspace_N = types.SimpleNamespace(v=2.0)",
          "space_N.v", "space_N.v += 1"),
    _kind("argparse.Namespace", "import argparse\nspace_N = argparse.Namespace(v=2.0)",
          "space_N.v", "space_N.v += 1"),
    _kind("a name in argparse.Namespace", "import argparse\nspace_N = argparse.Namespace()",
          "(3.0 if 'v' in space_N else 2.0)", "space_N.v = 1"),
    _kind("an attribute of a function", "def f_N():\n    return f_N.v\nf_N.v = 2.0", "f_N()",
          "f_N.v += 1"),
    _kind("an attribute of a module", "import types\nown_N = types.ModuleType('own_N')\n"
          "own_N.v = 2.0", "own_N.v", "own_N.v += 1"),
    _kind("a number of a library", "import string\nstring.v_N = 2.0", "string.v_N",
          "string.v_N += 1"),
    _kind("a replaced function of a library", "import string\nstring.get_N = lambda: 2.0",
          "string.get_N()", "old = string.get_N()\nstring.get_N = lambda: old + 1"),
    _kind("a library's function that is replaced", "import textwrap\nfrom textwrap import indent",
          "len(textwrap.indent('a', 'bc'))",
          "n = len(textwrap.indent('a', 'bc'))\ntextwrap.indent = lambda a, b: 'a' * (n + 1)",
          "follow"),
    _kind("sys.argv", "import sys", "len(sys.argv)", "sys.argv.append('x')"),
    _kind("a module in sys.modules", "import sys, types\nname_N = 'made_N'\n"
          "sys.modules[name_N] = types.ModuleType(name_N)\nsys.modules[name_N].v = 2.0",
          "sys.modules[name_N].v", "sys.modules[name_N].v += 1", "refuse"),
    # Containers.
    _kind("a list", "things_N = [2.0]", "things_N[0]", "things_N[0] += 1"),
    _kind("a list in a list", "things_N = [[[2.0]]]", "things_N[0][0][0]",
          "things_N[0][0][0] += 1"),
    _kind("a long list of lists", "things_N = [[2.0] for _ in range(1100)]", "things_N[1050][0]",
          "things_N[1050][0] += 1"),
    _kind("a list in a tuple", "things_N = ([2.0],)", "things_N[0][0]", "things_N[0][0] += 1"),
    _kind("a dictionary", "table_N = {'v': 2.0}", "table_N['v']", "table_N['v'] += 1"),
    _kind("get of a missing key", "table_N = {}", "table_N.get('v', 2.0)",
          "table_N['v'] = table_N.get('v', 2.0) + 1"),
    _kind("an OrderedDict's order", "import collections\n"
          "table_N = collections.OrderedDict(a=2.0, b=3.0)", "list(table_N.values())[0]",
          "table_N.move_to_end(next(iter(table_N)))"),
    _kind("a defaultdict", "import collections\ntable_N = collections.defaultdict(float)\n"
          "table_N['v'] = 2.0", "table_N['v']", "table_N['v'] += 1"),
    _kind("a Counter", "import collections\ntable_N = collections.Counter('aa')", "table_N['a']",
          "table_N['a'] += 1"),
    _kind("a mappingproxy", "import types\ntable_N = {'v': 2.0}\n"
          "proxy_N = types.MappingProxyType(table_N)\nhidden_N, table_N = [table_N], None",
          "proxy_N['v']", "hidden_N[0]['v'] += 1"),
    _kind("a UserDict", "import collections\ntable_N = collections.UserDict(v=2.0)",
          "table_N['v']", "table_N['v'] += 1"),
    _kind("a class made from UserDict", "import collections\n"
          "class Table_N(collections.UserDict):\n    factor = 2.0\n    def get(self):\n"
          "        return self.factor\ntable_N = Table_N()", "table_N.get()",
          "table_N.factor += 1"),
    _kind("a UserList", "import collections\nthings_N = collections.UserList([2.0])",
          "things_N[0]", "things_N[0] += 1"),
    _kind("a ChainMap", "import collections\nupper_N, lower_N = {}, {'v': 2.0}\n"
          "chain_N = collections.ChainMap(upper_N, lower_N)\n"
          "hidden_N, lower_N = [lower_N], None",
          "chain_N['v']", "hidden_N[0]['v'] += 1"),
    _kind("a hidden key of a ChainMap", "import collections\n"
          "chain_N = collections.ChainMap({}, {'v': 2.0})", "chain_N['v']",
          "chain_N.maps[0]['v'] = chain_N['v'] + 1"),
    _kind("a set", "flags_N = set()", "float(len(flags_N))", "flags_N.add(len(flags_N))"),
    _kind("a deque", "import collections\nthings_N = collections.deque([2.0])", "things_N[0]",
          "things_N[0] += 1"),
    _kind("an array", "import array\nthings_N = array.array('d', [2.0])", "things_N[0]",
          "things_N[0] += 1"),
    _kind("a bytearray", "things_N = bytearray([2])", "things_N[0]", "things_N[0] += 1"),
    _kind("a memoryview", "data_N = bytearray([2])\nthings_N = memoryview(data_N)\n"
          "hidden_N, data_N = [data_N], None", "things_N[0]", "hidden_N[0][0] += 1"),
    _kind("a ctypes number", "import ctypes\nnumber_N = ctypes.c_int(2)", "number_N.value",
          "number_N.value += 1"),
    _kind("a ctypes array", "import ctypes\nthings_N = (ctypes.c_int * 2)(2, 1)", "things_N[0]",
          "things_N[0] += 1"),
    _kind("a NumPy array", "import numpy as np\nthings_N = np.array([2.0])", "float(things_N[0])",
          "things_N[0] += 1"),
    _kind("a large NumPy array", "import numpy as np\nthings_N = np.full(200_000, 2.0)",
          "float(things_N[7])", "things_N[7] += 1"),
    _kind("a NumPy array of objects", "import numpy as np\n"
          "things_N = np.array([2.0, 'a'], dtype=object)", "things_N[0]", "things_N[0] += 1"),
    _kind("a NumPy number", "import numpy as np\nnumber_N = np.float64(2.0)", "float(number_N)",
          "global number_N\nnumber_N = number_N + 1"),
    _kind("a SimpleQueue", "import queue\nqueue_N = queue.SimpleQueue()\nqueue_N.put(2.0)",
          "float(queue_N.qsize())", "queue_N.put(1.0)", "refuse"),
    _kind("a Queue", "import queue\nqueue_N = queue.Queue()\nqueue_N.put(2.0)",
          "float(queue_N.qsize())", "queue_N.put(1.0)", "either"),
    _kind("a container of the user's", "class Box_N:\n    def __init__(self):\n"
          "        self.inner = [2.0]\n    def __getitem__(self, k):\n"
          "        return self.inner[k]\nbox_N = Box_N()", "box_N[0]", "box_N.inner[0] += 1"),
    # Where a value hides.
    _kind("a ContextVar", "import contextvars\nvar_N = contextvars.ContextVar('v', default=2.0)",
          "var_N.get()", "var_N.set(var_N.get() + 1)"),
    _kind("a list in a ContextVar", "import contextvars\nvar_N = contextvars.ContextVar('v')\n"
          "var_N.set([2.0])", "var_N.get()[0]", "var_N.get()[0] += 1"),
    _kind("a weak reference", "import weakref\nclass Box_N:\n    v = 2.0\nbox_N = Box_N()\n"
          "ref_N = weakref.ref(box_N)\nkept_N, box_N = [box_N], None",
          "ref_N().v", "kept_N[0].v += 1"),
    _kind("a dead weak reference", "import weakref\nclass Box_N:\n    pass\nkept_N = [Box_N()]\n"
          "ref_N = weakref.ref(kept_N[0])", "(2.0 if ref_N() is None else 3.0)",
          "kept_N.clear()"),
    _kind("a weak proxy", "import weakref\nclass Box_N:\n    v = 2.0\nbox_N = Box_N()\n"
          "proxy_N = weakref.proxy(box_N)\nkept_N, box_N = [box_N], None",
          "proxy_N.v", "kept_N[0].v += 1"),
    _kind("a method of a weak proxy", "import weakref\nclass Box_N:\n    v = 2.0\n"
          "    def m(self):\n        return self.v\nbox_N = Box_N()\n"
          "proxy_N = weakref.proxy(box_N)\nkept_N, box_N = [box_N], None",
          "proxy_N.m()", "kept_N[0].v += 1"),
    _kind("a WeakValueDictionary", "import weakref\nclass Box_N:\n    v = 2.0\n"
          "kept_N = [Box_N()]\ntable_N = weakref.WeakValueDictionary(a=kept_N[0])",
          "table_N['a'].v", "kept_N[0].v += 1"),
    _kind("a thread's local", "import threading\nlocal_N = threading.local()\nlocal_N.v = 2.0",
          "local_N.v", "local_N.v += 1"),
    _kind("a partial", "import functools\ntable_N = {'v': 2.0}\n"
          "get_N = functools.partial(lambda t: t['v'], table_N)", "get_N()", "table_N['v'] += 1"),
    _kind("a partial's keyword", "import functools\n"
          "get_N = functools.partial(lambda v: v, v=2.0)", "get_N()",
          "get_N.keywords['v'] += 1"),
    _kind("a replaced partial", "import functools\nget_N = functools.partial(lambda v: v, 2.0)",
          "get_N()", "global get_N\nget_N = functools.partial(lambda v: v, get_N() + 1)"),
    _kind("functools.cache", "import functools\nvalue_N = 2.0\n@functools.cache\ndef get_N():\n"
          "    return value_N", "get_N()", "global value_N\nvalue_N += 1\nget_N.cache_clear()"),
    _kind("singledispatch", "import functools\n@functools.singledispatch\ndef get_N(a):\n"
          "    return 2.0", "get_N(1)",
          "old = get_N(1)\nget_N.register(int, lambda a: old + 1)", "either"),
    _kind("a registered function", "import functools\nvalue_N = 2.0\n@functools.singledispatch\n"
          "def get_N(a):\n    return 0.0\n@get_N.register\ndef _(a: int):\n    return value_N",
          "get_N(1)", "global value_N\nvalue_N += 1", "either"),
    _kind("a context manager", "import contextlib\nvalue_N = 2.0\n@contextlib.contextmanager\n"
          "def scope_N():\n    yield value_N\ndef get_N():\n    with scope_N() as v:\n"
          "        return v", "get_N()", "global value_N\nvalue_N += 1"),
    _kind("a lock", "import threading\nlock_N = threading.Lock()",
          "(3.0 if lock_N.locked() else 2.0)",
          "lock_N.release() if lock_N.locked() else lock_N.acquire()", "refuse"),
    _kind("an event", "import threading\nevent_N = threading.Event()",
          "(3.0 if event_N.is_set() else 2.0)", "event_N.set()", "either"),
    _kind("eval", "value_N = 2.0", "eval('value' + '_N')", "global value_N\nvalue_N += 1",
          "either"),
    _kind("exec", "value_N = 2.0\ndef get_N():\n    space = {}\n"
          "    exec('v = value' + '_N', globals(), space)\n    return space['v']", "get_N()",
          "global value_N\nvalue_N += 1", "either"),
    _kind("a function by globals()", "def get_N():\n    return get_N.v\nget_N.v = 2.0",
          "globals()['get' + '_N']()", "get_N.v += 1", "either"),
    _kind("a default factory", "import collections\nvalue_N = 2.0\n"
          "def table_N():\n    return collections.defaultdict(lambda: value_N)['a']",
          "table_N()", "global value_N\nvalue_N += 1"),
    _kind("sorted with a key", "order_N = {'a': 1, 'b': 2}",
          "float(ord(sorted('ab', key=order_N.get)[0]))",
          "order_N['a'], order_N['b'] = order_N['b'], order_N['a']"),
    _kind("an import inside", "import sys, types\nsys.modules['inner_N'] = types.ModuleType('i')\n"
          "sys.modules['inner_N'].v = 2.0\ndef get_N():\n    import inner_N\n"
          "    return inner_N.v", "get_N()", "sys.modules['inner_N'].v += 1"),
    _kind("from an import inside", "import sys, types\n"
          "sys.modules['inner_N'] = types.ModuleType('i')\n"
          "sys.modules['inner_N'].v = 2.0\ndef get_N():\n    from inner_N import v\n"
          "    return v", "get_N()", "sys.modules['inner_N'].v += 1"),
    _kind("import_module", "import importlib, sys, types\n"
          "sys.modules['inner_N'] = types.ModuleType('i')\nsys.modules['inner_N'].v = 2.0",
          "importlib.import_module('inner_N').v", "sys.modules['inner_N'].v += 1"),
    # Objects of C and of libraries.
    _kind("an XML element", "from xml.etree.ElementTree import Element\nelement_N = Element('a')\n"
          "element_N.text = '2.0'", "float(element_N.text)",
          "element_N.text = str(float(element_N.text) + 1)"),
    _kind("a child of an XML element", "from xml.etree.ElementTree import Element, SubElement\n"
          "element_N = Element('a')\nSubElement(element_N, 'b').text = '2.0'",
          "float(element_N[0].text)", "element_N[0].text = str(float(element_N[0].text) + 1)"),
    _kind("a view of a dictionary", "table_N = {'v': 2.0}\nview_N = table_N.values()\n"
          "hidden_N, table_N = [table_N], None", "sum(view_N)", "hidden_N[0]['v'] += 1"),
    _kind("a record of NumPy", "import numpy as np\n"
          "array_N = np.array([(2.0, 1)], dtype=[('v', 'f8'), ('w', 'i4')])\n"
          "record_N = array_N[0]", "float(record_N['v'])", "array_N['v'] += 1"),
    _kind("a masked array",
          "import numpy as np\nthings_N = np.ma.array([2.0, 3.0, 4.0], mask=[0, 0, 0])",
          "float(things_N.sum())",
          "things_N[0 if things_N.mask[1] else 1] = np.ma.masked\nthings_N.data[2] += 1"),
    _kind("a mmap", "import mmap\nmemory_N = mmap.mmap(-1, 4)\nmemory_N[0] = 2", "memory_N[0]",
          "memory_N[0] += 1"),
    _kind("shared memory", "from multiprocessing import shared_memory\n"
          "shared_N = shared_memory.SharedMemory(create=True, size=4)\nshared_N.buf[0] = 2\n"
          "shared_N.unlink()", "shared_N.buf[0]", "shared_N.buf[0] += 1"),
    _kind("what a ctypes pointer points to", "import ctypes\nnumber_N = ctypes.c_int(2)\n"
          "pointer_N = ctypes.pointer(number_N)\nhidden_N, number_N = [number_N], None",
          "pointer_N[0]", "hidden_N[0].value += 1"),
    _kind("a ctypes structure", "import ctypes\nclass Pair_N(ctypes.Structure):\n"
          "    _fields_ = [('v', ctypes.c_int)]\npair_N = Pair_N(2)", "pair_N.v", "pair_N.v += 1"),
    _kind("a Value of multiprocessing", "import multiprocessing\n"
          "value_N = multiprocessing.Value('d', 2.0, lock=False)", "value_N.value",
          "value_N.value += 1"),
    _kind("a Value with a lock", "import multiprocessing\n"
          "value_N = multiprocessing.Value('d', 2.0)", "value_N.value", "value_N.value += 1",
          "either"),
    _kind("a Fraction in a variable", "import fractions\nvalue_N = fractions.Fraction(2)",
          "float(value_N)", "global value_N\nvalue_N += 1"),
    _kind("a heap", "import heapq\nheap_N = [2.0, 9.0]", "heapq.nsmallest(1, heap_N)[0]",
          "heapq.heapreplace(heap_N, heap_N[0] + 1)"),
    _kind("a bisected list", "import bisect\nthings_N = [1.0, 2.0]",
          "float(bisect.bisect(things_N, 5.0))", "things_N.append(3.0)"),
    _kind("a Decimal context", "import decimal", "float(decimal.Decimal(1) / decimal.Decimal(3))",
          "decimal.getcontext().prec = 4 + decimal.getcontext().prec % 9", "either"),
    _kind("a Decimal imported by name", "import decimal\nfrom decimal import Decimal",
          "float(Decimal(1) / Decimal(3))",
          "decimal.getcontext().prec = 4 + decimal.getcontext().prec % 9", "either"),
    _kind("a logger's level",
          "import logging\nlog_N = logging.getLogger('log_N')\nlog_N.setLevel(30)",
          "(3.0 if log_N.isEnabledFor(10) else 2.0)",
          "log_N.setLevel(10 if log_N.level != 10 else 30)"),
    _kind("a ConfigParser", "import configparser\nconfig_N = configparser.ConfigParser()\n"
          "config_N['a'] = {'v': '2.0'}", "float(config_N['a']['v'])",
          "config_N['a']['v'] = str(float(config_N['a']['v']) + 1)", "either"),
    _kind("a string buffer", "import io\nbuffer_N = io.BytesIO(b'2')",
          "float(buffer_N.getvalue())", "buffer_N.seek(0), buffer_N.write(b'3')", "refuse"),
    # What moves on by being read.
    _kind("next of a counter", "import itertools\ncount_N = itertools.count(2)", "next(count_N)",
          "pass", "refuse"),
    _kind("next of a generator", "def make_N():\n    v = 2.0\n    while True:\n"
          "        yield v\n        v += 1\ngenerator_N = make_N()", "next(generator_N)", "pass",
          "refuse"),
    _kind("a loop over an iterator", "iterator_N = iter([2.0, 3.0] * 100)",
          "next(v for v in iterator_N)", "pass", "refuse"),
    _kind("a loop over a generator", "def make_N():\n    v = 2.0\n    while True:\n"
          "        yield v\n        v += 1\ngenerator_N = make_N()",
          "[v for v, _ in zip(generator_N, [1])][0]", "pass", "refuse"),
    _kind("an iterator in an attribute", "import types\n"
          "space_N = types.SimpleNamespace(it=iter(range(2, 100)))", "next(space_N.it)", "pass",
          "refuse"),
    _kind("map over an iterator", "mapped_N = map(float, range(2, 100))", "next(mapped_N)",
          "pass", "refuse"),
    _kind("an iterator of the user's", "class Count_N:\n    v = 2.0\n    def __iter__(self):\n"
          "        return self\n    def __next__(self):\n        self.v += 1\n"
          "        return self.v\ncount_N = Count_N()", "next(count_N)", "pass", "refuse"),
    _kind("a counter that is read", "import types\nspace_N = types.SimpleNamespace(n=2)\n"
          "def get_N():\n    space_N.n += 1\n    return space_N.n", "get_N()", "pass", "either"),
    _kind("random.random", "import random", "random.random()", "pass", "refuse"),
    _kind("random imported by name", "from random import random as draw_N", "draw_N()", "pass",
          "refuse"),
    _kind("random.uniform", "import random", "random.uniform(1, 2)", "pass", "refuse"),
    _kind("random.shuffle", "import random\ndef get_N():\n    things = list(range(50))\n"
          "    random.shuffle(things)\n    return float(things[0])", "get_N()", "pass", "refuse"),
    _kind("a random.Random", "import random\nrandom_N = random.Random(3)", "random_N.gauss(0, 1)",
          "pass", "refuse"),
    _kind("a method of random", "import random\ndraw_N = random.Random(3).random", "draw_N()",
          "pass", "refuse"),
    _kind("np.random.rand", "import numpy as np", "float(np.random.rand())", "pass", "refuse"),
    _kind("np.random.normal", "import numpy as np", "float(np.random.normal(1, 2))", "pass",
          "refuse"),
    _kind("np.random by its function", "from numpy.random import rand as draw_N", "float(draw_N())",
          "pass", "refuse"),
    _kind("a NumPy generator", "import numpy as np\nrng_N = np.random.default_rng(0)",
          "float(rng_N.normal())", "pass", "refuse"),
    _kind("a method of a NumPy generator", "import numpy as np\n"
          "draw_N = np.random.default_rng(0).random", "float(draw_N())", "pass", "refuse"),
    _kind("a RandomState", "import numpy as np\nrng_N = np.random.RandomState(0)",
          "float(rng_N.rand())", "pass", "refuse"),
    _kind("a fresh NumPy generator", "import numpy as np",
          "float(np.random.default_rng().normal())", "pass", "refuse"),
    _kind("a seeded NumPy generator", "import numpy as np\nseed_N = 2",
          "float(np.random.default_rng(seed_N).normal())", "global seed_N\nseed_N += 1",
          "either"),
    _kind("secrets", "import secrets", "float(secrets.randbelow(1 << 40))", "pass", "refuse"),
    _kind("os.urandom", "import os", "float(os.urandom(4)[0])", "pass", "refuse"),
    _kind("uuid", "import uuid", "float(uuid.uuid4().int % 1000)", "pass", "refuse"),
    _kind("time.time", "import time", "time.time()", "pass", "refuse"),
    _kind("time.perf_counter", "from time import perf_counter as clock_N", "clock_N()", "pass",
          "refuse"),
    _kind("time.monotonic", "import time", "time.monotonic_ns() % 1000", "pass", "refuse"),
    _kind("datetime.now", "import datetime", "datetime.datetime.now().timestamp()", "pass",
          "refuse"),
    _kind("date.today", "import datetime", "datetime.date.today().day", "pass", "refuse"),
    _kind("an environment variable", "import os\nos.environ['V_N'] = '2.0'",
          "float(os.environ['V_N'])", "os.environ['V_N'] = str(float(os.environ['V_N']) + 1)",
          "either"),
    _kind("os.getenv", "import os", "float(os.getenv('V_N', '2.0'))",
          "os.environ['V_N'] = str(float(os.getenv('V_N', '2.0')) + 1)", "either"),
    _kind("in os.environ", "import os", "(3.0 if 'V_N' in os.environ else 2.0)",
          "os.environ['V_N'] = 'x'", "either"),
    _kind("a file", "import tempfile\nfile_N = tempfile.NamedTemporaryFile('w+')\n"
          "file_N.write('2.0')\nfile_N.flush()\ndef get_N():\n"
          "    with open(file_N.name) as file:\n        return float(file.read())",
          "get_N()", "file_N.write('1')\nfile_N.flush()", "refuse"),
    _kind("an open file", "import io\nfile_N = io.StringIO('2345678')", "float(file_N.read(1))",
          "pass", "refuse"),
    _kind("a path", "import pathlib, tempfile\nfolder_N = tempfile.TemporaryDirectory()\n"
          "path_N = pathlib.Path(folder_N.name) / 'x'",
          "(3.0 if path_N.exists() else 2.0)", "path_N.touch()", "refuse"),
    _kind("os.path.exists", "import os, tempfile\nfolder_N = tempfile.TemporaryDirectory()",
          "(3.0 if os.path.exists(folder_N.name + '/x') else 2.0)",
          "open(folder_N.name + '/x', 'w').close()", "refuse"),
    _kind("os.listdir", "import os, tempfile\nfolder_N = tempfile.TemporaryDirectory()",
          "float(len(os.listdir(folder_N.name)))",
          "open(folder_N.name + '/' + str(len(os.listdir(folder_N.name))), 'w').close()",
          "refuse"),
    _kind("a thread's number", "import threading", "float(threading.get_ident() % 1000)", "pass",
          "refuse"),
    # Of this package.
    _kind("an optimizer's group", "weight_N = nn.Parameter(tc.ones(1))\n"
          "optimizer_N = tc.optim.SGD([weight_N], lr=2.0)",
          "optimizer_N.param_groups[0]['lr']", "optimizer_N.param_groups[0]['lr'] += 1"),
    _kind("a group through a variable", "weight_N = nn.Parameter(tc.ones(1))\n"
          "optimizer_N = tc.optim.SGD([weight_N], lr=2.0)\n"
          "group_N = optimizer_N.param_groups[0]", "group_N['lr']",
          "optimizer_N.param_groups[0]['lr'] += 1"),
    _kind("groups through a variable", "weight_N = nn.Parameter(tc.ones(1))\n"
          "optimizer_N = tc.optim.SGD([weight_N], lr=2.0)\n"
          "groups_N = optimizer_N.param_groups", "groups_N[0]['lr']",
          "optimizer_N.param_groups[0]['lr'] += 1"),
    _kind("a group with a computed key", "weight_N = nn.Parameter(tc.ones(1))\n"
          "optimizer_N = tc.optim.SGD([weight_N], lr=2.0)\n"
          "group_N = optimizer_N.param_groups[0]", "group_N['l' + chr(114)]",
          "optimizer_N.param_groups[0]['lr'] += 1"),
    _kind("a Module's attribute", "module_N = nn.Linear(1, 1)\nmodule_N.v = 2.0", "module_N.v",
          "module_N.v += 1"),
    _kind("a Module's table", "module_N = nn.Linear(1, 1)\nmodule_N.table = {'v': 2.0}",
          "module_N.table['v']", "module_N.table['v'] += 1"),
    _kind("a Module's flag", "module_N = nn.Dropout(0.5)", "(3.0 if module_N.training else 2.0)",
          "module_N.train(not module_N.training)"),
    _kind("a Module's rate", "module_N = nn.Dropout(0.25)", "(2.0 + module_N.p)",
          "module_N.p = 0.75 - module_N.p"),
    _kind("requires_grad", "weight_N = nn.Parameter(tc.ones(1))",
          "(3.0 if weight_N.requires_grad else 2.0)",
          "weight_N.requires_grad_(not weight_N.requires_grad)"),
    _kind("whether there is a gradient", "weight_N = nn.Parameter(tc.ones(1))",
          "(3.0 if weight_N.grad is None else 2.0)",
          "weight_N.grad = tc.ones(1) if weight_N.grad is None else None"),
    _kind("a ModuleList that grows", "list_N = nn.ModuleList([nn.Identity()])",
          "float(len(list_N))", "list_N.append(nn.Identity())"),
    _kind("a loop over a ModuleList", "class Twice_N(nn.Module):\n    def forward(self, x):\n"
          "        return x * 2\nlist_N = nn.ModuleList([Twice_N()])\ndef get_N():\n"
          "    y = tc.ones(1)\n    for layer in list_N:\n        y = layer(y)\n    return y",
          "get_N()", "list_N.append(Twice_N())"),
    _kind("a replaced layer", "class Times_N(nn.Module):\n    def __init__(self, k):\n"
          "        super().__init__()\n        self.k = k\n    def forward(self, x):\n"
          "        return x * self.k\nnet_N = nn.Module()\nnet_N.layer = Times_N(2.0)",
          "net_N.layer(tc.ones(1))", "net_N.layer = Times_N(net_N.layer.k + 1)"),
    _kind("a replaced layer of a Sequential", "net_N = nn.Sequential(nn.Identity(), nn.Identity())",
          "(3.0 if isinstance(net_N[1], nn.ReLU) else 2.0)", "net_N[1] = nn.ReLU()"),
    _kind("a replaced forward", "net_N = nn.Identity()", "net_N(tc.ones(1) * 2)",
          "old = net_N.forward\nnet_N.forward = lambda x: old(x) + 1"),
    _kind("a replaced parameter", "net_N = nn.Module()\nnet_N.w = nn.Parameter(tc.ones(1) * 2)",
          "net_N.w.detach()", "net_N.w = nn.Parameter(net_N.w.detach() + 1)"),
    _kind("a replaced buffer", "net_N = nn.Module()\nnet_N.register_buffer('w', tc.ones(1) * 2)",
          "net_N.w", "net_N.w = net_N.w + 1"),
    _kind("a ParameterList", "list_N = nn.ParameterList([nn.Parameter(tc.ones(1))])",
          "float(len(list_N))", "list_N.append(nn.Parameter(tc.ones(1)))"),
    _kind("a number of parameters", "net_N = nn.Sequential(nn.Linear(1, 1))",
          "float(len(list(net_N.parameters())))", "net_N.append(nn.Linear(1, 1))"),
    _kind("a Module's __dict__", "net_N = nn.Identity()\nnet_N.v = 2.0", "net_N.v",
          "net_N.__dict__['v'] += 1"),
    _kind("an optimizer's state", "weight_N = nn.Parameter(tc.ones(1))\n"
          "optimizer_N = tc.optim.SGD([weight_N], lr=1.0)", "float(len(optimizer_N.state))",
          "optimizer_N.state[object()] = {}", "either"),
    _kind("a scheduler's rate", "weight_N = nn.Parameter(tc.ones(1))\n"
          "optimizer_N = tc.optim.SGD([weight_N], lr=2.0)\n"
          "schedule_N = tc.optim.lr_scheduler.LambdaLR(optimizer_N, lambda k: 1.0 + k)",
          "schedule_N.get_last_lr()[0]", "optimizer_N.step()\nschedule_N.step()"),
    _kind("a loss scale", "scaler_N = tc.amp.GradScaler('cpu', init_scale=2.0)",
          "float(scaler_N.get_scale())", "scaler_N.update(scaler_N.get_scale() + 1)", "either"),
    _kind("a loss that is scaled", "scaler_N = tc.amp.GradScaler('cpu', init_scale=2.0)",
          "scaler_N.scale(tc.ones(1))", "scaler_N.update(scaler_N.get_scale() + 1)"),
    _kind("a Parameter's hook", "weight_N = nn.Parameter(tc.ones(1))",
          "tc.autograd.grad((weight_N * 2).sum(), weight_N)[0]",
          "weight_N.register_hook(lambda gradient: gradient + 1)"),
    _kind("a transformed function", "value_N = 2.0\n"
          "get_N = tc.func.grad(lambda x: (x * value_N).sum())", "get_N(tc.ones(1))",
          "global value_N\nvalue_N += 1"),
    _kind("a DataLoader", "loader_N = tc.utils.data.DataLoader([2.0, 3.0, 4.0])\n"
          "iterator_N = iter(loader_N)", "float(next(iterator_N))", "pass", "refuse"),
    _kind("a shuffled DataLoader", "loader_N = tc.utils.data.DataLoader("
          "list(range(2, 50)), shuffle=True)", "next(iter(loader_N)).float()", "pass", "refuse"),
    _kind("autocast", "", "(tc.ones(1) @ tc.ones(1)).float()", "pass"),
    _kind("gradient mode", "", "(3.0 if tc.is_grad_enabled() else 2.0)",
          "tc.set_grad_enabled(True)"),
    _kind("the default dtype", "", "(3.0 if tc.get_default_dtype() is tc.float32 else 2.0)",
          "pass"),
    _kind("a tensor", "weight_N = tc.tensor([2.0])", "weight_N", "weight_N.add_(1)"),
    _kind("a replaced tensor", "weight_N = tc.tensor([2.0])", "weight_N",
          "global weight_N\nweight_N = weight_N + 1"),
    _kind("a shape", "weight_N = tc.ones(2)", "float(weight_N.shape[0])",
          "global weight_N\nweight_N = tc.ones(weight_N.shape[0] + 1)"),
    _kind("a tensor in a list", "things_N = [tc.tensor([2.0])]", "things_N[0]",
          "things_N[0] = things_N[0] + 1"),
    _kind("tc.rand", "", "tc.rand(1)", "pass"),
    _kind("tc.randperm", "", "tc.randperm(5)[0]", "pass"),
    _kind("tc.initial_seed", "", "float(tc.initial_seed() % 1000)",
          "tc.manual_seed(tc.initial_seed() + 1)", "either"),
    # Bases, names and parts of classes, functions and objects.
    _kind("another base",
          "class A_N:\n    v = 2.0\nclass B_N:\n    v = 3.0\nclass C_N(A_N):\n    pass\n"
          "c_N = C_N()", "c_N.v",
          "C_N.__bases__ = (B_N,) if C_N.__bases__ == (A_N,) else (A_N,)"),
    _kind("another base, by a method",
          "class A_N:\n    def m(self):\n        return 2.0\nclass B_N:\n    def m(self):\n"
          "        return 3.0\nclass C_N(A_N):\n    pass\nc_N = C_N()", "c_N.m()",
          "C_N.__bases__ = (B_N,) if C_N.__bases__ == (A_N,) else (A_N,)"),
    _kind("another base, by super",
          "class R_N:\n    pass\nclass A_N(R_N):\n    def m(self):\n        return 2.0\n"
          "class B_N(R_N):\n    def m(self):\n        return 3.0\nclass C_N(A_N):\n"
          "    def m(self):\n        return super().m()\nc_N = C_N()", "c_N.m()",
          "C_N.__bases__ = (B_N,) if C_N.__bases__ == (A_N,) else (A_N,)"),
    _kind("another base, by isinstance",
          "class A_N:\n    pass\nclass B_N:\n    pass\nclass C_N(A_N):\n    pass\nc_N = C_N()",
          "(2.0 if isinstance(c_N, A_N) else 3.0)",
          "C_N.__bases__ = (B_N,) if C_N.__bases__ == (A_N,) else (A_N,)"),
    _kind("another base, by an operator",
          "class R_N:\n    pass\nclass A_N(R_N):\n    def __len__(self):\n        return 2\n"
          "class B_N(R_N):\n    def __len__(self):\n        return 3\nclass C_N(A_N):\n    pass\n"
          "c_N = C_N()", "float(len(c_N))",
          "C_N.__bases__ = (B_N,) if C_N.__bases__ == (A_N,) else (A_N,)"),
    _kind("another base of a Module",
          "class A_N(nn.Module):\n    def forward(self, x):\n        return x * 2\n"
          "class B_N(nn.Module):\n    def forward(self, x):\n        return x * 3\n"
          "class C_N(A_N):\n    pass\nc_N = C_N()", "c_N(tc.ones(1))",
          "C_N.__bases__ = (B_N,) if C_N.__bases__ == (A_N,) else (A_N,)"),
    _kind("another base of a class by its name",
          "class A_N:\n    v=2.0\nclass B_N:\n    v=3.0\nclass C_N(A_N):\n    pass", "C_N.v",
          "C_N.__bases__ = (B_N,) if C_N.__bases__ == (A_N,) else (A_N,)"),
    _kind("a subclass of an XML element",
          "from xml.etree.ElementTree import Element\nclass E_N(Element):\n    pass\n"
          "e_N = E_N('a')\ne_N.text = '2.0'", "float(e_N.text)",
          "e_N.text = str(float(e_N.text) + 1)"),
    _kind("a child of a subclass of an XML element",
          "from xml.etree.ElementTree import Element, SubElement\nclass E_N(Element):\n    pass\n"
          "e_N = E_N('a')\nSubElement(e_N, 'b').text = '2.0'", "float(e_N[0].text)",
          "e_N[0].text = str(float(e_N[0].text) + 1)"),
    _kind("an exception's args", "e_N = ValueError(2.0)", "e_N.args[0]",
          "e_N.args = (e_N.args[0] + 1,)"),
    _kind("text of an exception", "e_N = ValueError(2.0)", "float(str(e_N))",
          "e_N.args = (e_N.args[0] + 1,)"),
    _kind("text of an exception of the user's",
          "class E_N(ValueError):\n    pass\ne_N = E_N(2.0)", "float(str(e_N))",
          "e_N.args = (e_N.args[0] + 1,)"),
    _kind("an iterator made from one of C",
          "import itertools\nclass C_N(itertools.count):\n    pass\nc_N = C_N(2)", "next(c_N)",
          "pass", "refuse"),
    _kind("an attribute whose name has a space",
          "import types\ns_N = types.SimpleNamespace()\nsetattr(s_N,'a b',2.0)\nw_N='a b'",
          "getattr(s_N, w_N)", "setattr(s_N,'a b',getattr(s_N,'a b')+1)"),
    _kind("an attribute whose name has a dot",
          "import types\ns_N = types.SimpleNamespace()\nsetattr(s_N,'a.b',2.0)\nw_N='a.b'",
          "getattr(s_N, w_N)", "setattr(s_N,'a.b',getattr(s_N,'a.b')+1)"),
    _kind("an attribute whose name is a ligature",
          "import types\ns_N = types.SimpleNamespace()\nsetattr(s_N,'ﬁ',2.0)\nw_N='ﬁ'",
          "getattr(s_N, w_N)", "setattr(s_N,'ﬁ',getattr(s_N,'ﬁ')+1)"),
    _kind("an attribute named as a keyword",
          "import types\ns_N = types.SimpleNamespace()\nsetattr(s_N,'class',2.0)\nw_N='class'",
          "getattr(s_N, w_N)", "setattr(s_N,'class',getattr(s_N,'class')+1)"),
    _kind("a hash", "import hashlib\nh_N = hashlib.md5(b'a')", "float(h_N.digest()[0])",
          "h_N.update(b'b')", "refuse"),
    _kind("a compressor", "import zlib\nz_N = zlib.compressobj()",
          "float(len(z_N.compress(b'abc'*100)))", "pass", "refuse"),
    _kind("a database",
          "import sqlite3\nq_N = sqlite3.connect(':memory:')\nq_N.execute('create table t (v)')\n"
          "q_N.execute('insert into t values (2.0)')",
          "q_N.execute('select v from t').fetchone()[0]", "q_N.execute('update t set v = v + 1')",
          "refuse"),
    _kind("a class that is registered",
          "import abc\nclass A_N(abc.ABC):\n    pass\nclass B_N:\n    pass\nb_N = B_N()",
          "(3.0 if isinstance(b_N, A_N) else 2.0)", "A_N.register(B_N)", "either"),
    _kind("__instancecheck__",
          "class M_N(type):\n    v = 2.0\n    def __instancecheck__(cls, x):\n"
          "        return cls.v > 2\nclass A_N(metaclass=M_N):\n    pass",
          "(3.0 if isinstance(1, A_N) else 2.0)", "M_N.v += 1"),
    _kind("sys.getrecursionlimit", "import sys", "float(sys.getrecursionlimit())",
          "sys.setrecursionlimit(sys.getrecursionlimit()+1)", "either"),
    _kind("gc.isenabled", "import gc", "(2.0 if gc.isenabled() else 3.0)",
          "gc.disable() if gc.isenabled() else gc.enable()", "either"),
    _kind("sys.getrefcount", "import sys\nt_N=[1]\nk_N=[]", "float(sys.getrefcount(t_N))",
          "k_N.append(t_N)", "either"),
    _kind("np.geterr", "import numpy as np", "(2.0 if np.geterr()['over']=='warn' else 3.0)",
          "np.seterr(over='ignore' if np.geterr()['over']=='warn' else 'warn')", "either"),
    _kind("os.getcwd", "import os", "float(len(os.getcwd()))",
          "os.chdir('/tmp' if os.getcwd()!='/tmp' else '/')", "refuse"),
    _kind("threading.active_count", "import threading", "float(threading.active_count())", "pass",
          "either"),
    _kind("a signal's handler", "import signal",
          "(2.0 if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL else 3.0)",
          "signal.signal(signal.SIGUSR1, signal.SIG_IGN)", "either"),
    _kind("weakref.getweakrefcount", "import weakref\nclass A_N:\n    pass\na_N=A_N()\nk_N=[]",
          "float(weakref.getweakrefcount(a_N))", "k_N.append(weakref.ref(a_N, print))", "either"),
    _kind("a finalizer", "import weakref\nclass A_N:\n    pass\nk_N=[A_N()]\n"
          "f_N=weakref.finalize(k_N[0], print, end='')", "(2.0 if f_N.alive else 3.0)",
          "k_N.clear()", "either"),
    _kind("cache_info", "import functools\n@functools.cache\ndef c_N(v):\n    return v",
          "float(c_N.cache_info().currsize)", "c_N(c_N.cache_info().currsize)", "either"),
    _kind("a function's name", "def f_N():\n    pass", "float(len(f_N.__name__))",
          "f_N.__name__ += 'a'", "either"),
    _kind("a function's docstring", "def f_N():\n    'a'", "float(len(f_N.__doc__))",
          "f_N.__doc__ += 'a'", "either"),
    _kind("a function's annotations", "def f_N(a: 2.0):\n    'a'",
          "float(f_N.__annotations__['a'])",
          "f_N.__annotations__['a'] = 1.0 + float(f_N.__annotations__['a'])", "either"),
    _kind("a class's name", "class C_N:\n    pass", "float(len(C_N.__name__))",
          "C_N.__name__ += 'a'", "either"),
    _kind("a class's docstring", "class C_N:\n    'a'", "float(len(C_N.__doc__))",
          "C_N.__doc__ += 'a'", "either"),
    _kind("a class's __dict__", "class C_N:\n    v=2.0", "C_N.__dict__['v']", "C_N.v += 1"),
    _kind("vars of a class", "class C_N:\n    v=2.0", "vars(C_N)['v']", "C_N.v += 1"),
    _kind("the name of a type", "class A_N:\n    pass\nclass BB_N:\n    pass\na_N=A_N()",
          "float(len(type(a_N).__name__))", "a_N.__class__ = BB_N if type(a_N) is A_N else A_N"),
    _kind("__subclasses__", "class A_N:\n    pass\nk_N=[]", "float(len(A_N.__subclasses__()))",
          "k_N.append(type('B_N',(A_N,),{}))", "either"),
    _kind("a cell's contents",
          "def m_N():\n    v = 2.0\n    def g():\n        nonlocal v\n        v += 1\n"
          "        return v\n    return g\ng_N=m_N()", "g_N.__closure__[0].cell_contents",
          "g_N()", "either"),
    _kind("a function's globals", "v_N = 2.0\ndef f_N():\n    pass", "f_N.__globals__['v'+'_N']",
          "global v_N\nv_N += 1", "either"),
    _kind("a function's defaults by name", "def f_N(a=2.0):\n    pass", "f_N.__defaults__[0]",
          "f_N.__defaults__ = (f_N.__defaults__[0]+1,)"),
    _kind("constants of a code", "def f_N():\n    return 2.5\ndef h_N():\n    return 3.5",
          "f_N.__code__.co_consts[1]", "f_N.__code__ = h_N.__code__", "either"),
    _kind("sys._getframe", "import sys\nv_N=2.0", "sys._getframe().f_globals['v'+'_N']",
          "global v_N\nv_N += 1", "either"),
    _kind("inspect.currentframe", "import inspect\nv_N=2.0",
          "inspect.currentframe().f_globals['v'+'_N']", "global v_N\nv_N += 1", "either"),
    _kind("random.getstate", "import random", "float(random.getstate()[1][0] % 1000)",
          "random.random()", "refuse"),
    _kind("np.random.get_state", "import numpy as np\nnp.random.seed(2)",
          "float(np.random.get_state()[1][0] % 1000)",
          "np.random.seed(int(np.random.get_state()[1][0] % 1000)+1)"),
    _kind("the state of a NumPy generator", "import numpy as np\ng_N=np.random.default_rng(0)",
          "float(g_N.bit_generator.state['state']['state'] % 1000)", "g_N.random()"),
    _kind("string.Template", "import string\nt_N=string.Template('2.$a')\nm_N={'a':1}",
          "float(t_N.substitute(m_N))", "m_N['a'] += 1"),
    _kind("__getitem__ of a dict's subclass",
          "class D_N(dict):\n    v=2.0\n    def __getitem__(self,k):\n        return self.v\n"
          "d_N=D_N()", "d_N['a']", "d_N.v += 1"),
    _kind("__class_getitem__",
          "class C_N:\n    v=2.0\n    def __class_getitem__(cls,k):\n        return cls.v",
          "C_N[1]", "C_N.v += 1"),
    _kind("__iter__",
          "class C_N:\n    v=2.0\n    def __iter__(self):\n        return iter([self.v])\n"
          "c_N=C_N()", "sum(c_N)", "c_N.v += 1"),
    _kind("__bool__",
          "class C_N:\n    v=2.0\n    def __bool__(self):\n        return self.v > 2\nc_N=C_N()",
          "(3.0 if c_N else 2.0)", "c_N.v += 1"),
    _kind("__eq__",
          "class C_N:\n    v=2.0\n    def __eq__(self,o):\n        return self.v == o\nc_N=C_N()",
          "(3.0 if c_N == 2.0 else 2.0)", "c_N.v += 1"),
    _kind("__contains__",
          "class C_N:\n    v=2.0\n    def __contains__(self,o):\n        return self.v == o\n"
          "c_N=C_N()", "(3.0 if 2.0 in c_N else 2.0)", "c_N.v += 1"),
    _kind("__float__",
          "class C_N:\n    v=2.0\n    def __float__(self):\n        return self.v\nc_N=C_N()",
          "float(c_N)", "c_N.v += 1"),
    _kind("__index__",
          "class C_N:\n    v=1\n    def __index__(self):\n        return self.v\nc_N=C_N()",
          "[2.0,3.0,4.0,5.0][c_N]", "c_N.v += 1"),
    _kind("__array__", "import numpy as np\nclass C_N:\n    v=2.0\n"
          "    def __array__(self,dtype=None,copy=None):\n        return np.array([self.v])\n"
          "c_N=C_N()", "float(np.asarray(c_N)[0])", "c_N.v += 1"),
    _kind("ExitStack", "import contextlib\nv_N=[2.0]\n@contextlib.contextmanager\ndef m_N():\n"
          "    yield v_N[0]\ndef g_N():\n    with contextlib.ExitStack() as s:\n"
          "        return s.enter_context(m_N())", "g_N()", "v_N[0] += 1"),
    _kind("a coroutine", "v_N=2.0\nasync def c_N():\n    return v_N\ndef g_N():\n    try:\n"
          "        c_N().send(None)\n    except StopIteration as e:\n        return e.value",
          "g_N()", "global v_N\nv_N += 1"),
    _kind("a module's __getattr__",
          "import sys,types\nm_N=types.ModuleType('m_N')\nt_N={'v':2.0}\n"
          "m_N.__getattr__=lambda n: t_N['v']", "m_N.anything", "t_N['v'] += 1"),
    _kind("locals", "v_N=2.0\ndef g_N():\n    a = v_N\n    return locals()['a']", "g_N()",
          "global v_N\nv_N += 1"),
    _kind("a context of contextvars", "import contextvars\nc_N=contextvars.copy_context()\n"
          "v_N=contextvars.ContextVar('v',default=2.0)", "c_N.run(v_N.get)",
          "c_N.run(v_N.set, c_N.run(v_N.get)+1)", "either"),
    _kind("a replaced pattern", "import re\np_N=re.compile('a')",
          "float(len(p_N.findall('aab')))",
          "global p_N\np_N = re.compile('b' if p_N.pattern=='a' else 'a')"),
    _kind("a deque's rotation", "import collections\nd_N=collections.deque([2.0,3.0])", "d_N[0]",
          "d_N.rotate()"),
    _kind("a deque as a queue",
          "import collections\nd_N=collections.deque(map(float,range(2,99)))", "d_N.popleft()",
          "pass", "either"),
    _kind("pop of a list", "d_N=list(map(float,range(2,99)))", "d_N.pop()", "pass", "either"),
    _kind("pop of a set", "d_N=set(map(float,range(2,99)))", "d_N.pop()", "pass", "either"),
    _kind("pop of a bytearray", "d_N=bytearray(range(99))", "d_N.pop()", "pass", "either"),
    _kind("a frozenset of objects", "class A_N:\n    v=2.0\na_N=A_N()\nf_N=frozenset([a_N])",
          "sum(a.v for a in f_N)", "a_N.v += 1"),
    _kind("operator.itemgetter", "import operator\nt_N={'v':2.0}\ng_N=operator.itemgetter('v')",
          "g_N(t_N)", "t_N['v'] += 1"),
    _kind("struct.unpack_from", "import struct\nb_N=bytearray(struct.pack('d',2.0))",
          "struct.unpack_from('d',b_N)[0]",
          "struct.pack_into('d',b_N,0,struct.unpack_from('d',b_N)[0]+1)"),
    _kind("a memmap", "import numpy as np, tempfile\nt_N=tempfile.NamedTemporaryFile()\n"
          "m_N=np.memmap(t_N.name,shape=(2,),mode='w+',dtype='f8')\nm_N[0]=2", "float(m_N[0])",
          "m_N[0] += 1"),
    _kind("a flat iterator", "import numpy as np\na_N=np.array([2.0,3.0])\ni_N=a_N.flat",
          "float(i_N[0])", "a_N[0] += 1", "either"),
    _kind("a dtype", "import numpy as np\na_N=np.zeros(2,'f4')", "float(a_N.dtype.itemsize)",
          "global a_N\na_N = a_N.astype('f8' if a_N.dtype=='f4' else 'f4')"),
    _kind("a transposed array", "import numpy as np\na_N=np.arange(6.0).reshape(2,3)\nv_N=a_N.T",
          "float(v_N[1,0])", "a_N[0,1] += 1"),
    _kind("a polynomial of NumPy", "import numpy as np\np_N=np.poly1d([2.0,3.0])",
          "float(p_N(1.0))", "p_N.coeffs[0] += 1"),
    _kind("a vectorized function",
          "import numpy as np\nv_N=2.0\nf_N=np.vectorize(lambda a: a*v_N)", "float(f_N(1.0))",
          "global v_N\nv_N += 1"),
    _kind("np.sum of a list", "import numpy as np\nl_N=[1.0,1.0]", "float(np.sum(l_N))",
          "l_N[0] += 1"),
    _kind("tc.get_num_threads", "", "float(tc.get_num_threads())",
          "tc.set_num_threads(tc.get_num_threads()%2+1)", "either"),
    _kind("a Generator", "g_N=tc.Generator()\ng_N.manual_seed(3)", "tc.rand(1,generator=g_N)",
          "g_N.manual_seed(4)"),
    _kind("a Generator's seed", "g_N=tc.Generator()\ng_N.manual_seed(3)",
          "float(g_N.initial_seed())", "g_N.manual_seed(g_N.initial_seed()+1)", "either"),
    _kind("a dataset",
          "class D_N(tc.utils.data.Dataset):\n    v=2.0\n    def __getitem__(self,i):\n"
          "        return self.v\n    def __len__(self):\n        return 1\nd_N=D_N()", "d_N[0]",
          "d_N.v += 1"),
    _kind("TensorDataset", "t_N=tc.tensor([2.0])\nd_N=tc.utils.data.TensorDataset(t_N)",
          "d_N[0][0]", "t_N.add_(1)"),
    _kind("a Subset", "l_N=[2.0,3.0,4.0,5.0]\ni_N=[0]\ns_N=tc.utils.data.Subset(l_N,i_N)",
          "s_N[0]", "i_N[0] += 1"),
    _kind("data of a Subset", "l_N=[2.0,3.0]\ns_N=tc.utils.data.Subset(l_N,[0])",
          "s_N[0]", "l_N[0] += 1"),
    _kind("indices of a Subset", "s_N=tc.utils.data.Subset([2.0,3.0,4.0,5.0],[0])",
          "s_N[0]", "s_N.indices[0] += 1"),
    _kind("a rate in a Sequential", "n_N=nn.Sequential(nn.Dropout(0.0))", "n_N(tc.ones(1))",
          "n_N[0].p = 1.0 - n_N[0].p"),
    _kind("a LayerNorm's eps", "n_N=nn.LayerNorm(2)", "n_N(tc.tensor([1.0,3.0]))[:1]",
          "n_N.eps += 1.0"),
    _kind("a parametrized weight",
          "n_N=nn.Linear(1,1,bias=False)\nn_N=tc.nn.utils.parametrizations.weight_norm(n_N)",
          "n_N(tc.ones(1)).detach()", "n_N.parametrizations.weight.original0.data.add_(1)"),
    _kind("whether autocast is on", "a_N=tc.autocast('cpu')\nk_N=[0]",
          "(2.0 if tc.is_autocast_enabled() else 3.0)",
          "(a_N.__exit__(None,None,None) if k_N[0]%2 else a_N.__enter__()); k_N[0]+=1", "either"),
    _kind("a default of getattr within another", "class C_N:\n    pass\nc_N=C_N()",
          "getattr(getattr(c_N,'a',c_N),'b',2.0)", "c_N.b = getattr(c_N,'b',2.0)+1"),
    _kind("a class pattern",
          "class P_N:\n    __match_args__=('v',)\n    def __init__(self):\n        self.v=2.0\n"
          "p_N=P_N()\ndef g_N():\n    match p_N:\n        case P_N(v):\n            return v",
          "g_N()", "p_N.v += 1"),
    _kind("a mapping pattern",
          "t_N={'v':2.0}\ndef g_N():\n    match t_N:\n        case {'v':v}:\n            return v",
          "g_N()", "t_N['v'] += 1"),
    _kind("__match_args__",
          "class P_N:\n    __match_args__=('v',)\n    v=2.0\n    w=3.0\np_N=P_N()\ndef g_N():\n"
          "    match p_N:\n        case P_N(v):\n            return v", "g_N()",
          "P_N.__match_args__=('w',) if P_N.__match_args__==('v',) else ('v',)"),
    _kind("getattr of an imported module",
          "import sys,types\nsys.modules['st_N']=types.ModuleType('st_N')\n"
          "sys.modules['st_N'].v=2.0\ndef g_N():\n    import importlib\n"
          "    return getattr(importlib.import_module('st_N'),'v')", "g_N()",
          "sys.modules['st_N'].v += 1"),
    _kind("__import__", "import sys,types\nsys.modules['st_N']=types.ModuleType('st_N')\n"
          "sys.modules['st_N'].v=2.0", "__import__('st_N').v", "sys.modules['st_N'].v += 1",
          "refuse"),
    _kind("a replaced module in sys.modules",
          "import sys,types\ndef m_N(v):\n    m = types.ModuleType('im_N')\n    m.v = v\n"
          "    sys.modules['im_N'] = m\nm_N(2.0)\ndef g_N():\n    import im_N\n    return im_N.v",
          "g_N()", "m_N(sys.modules['im_N'].v+1)"),
    _kind("a deleted global",
          "v_N=2.0\ndef g_N():\n    try:\n        return v_N\n    except NameError:\n"
          "        return 3.0", "g_N()", "globals().pop('v_N',None)"),
    _kind("a deleted attribute", "class C_N:\n    v=3.0\nc_N=C_N()\nc_N.v=2.0", "c_N.v",
          "vars(c_N).pop('v',None)"),
    _kind("a formatted text", "v_N='2'", "float('%s.5' % v_N)", "global v_N\nv_N += '1'"),
    _kind("a number that is nan", "v_N=float('nan')", "(2.0 if v_N == v_N else 3.0)",
          "global v_N\nv_N = 1.0"),
    _kind("a zero's sign", "v_N=0.0", "str(v_N).count('-')+2.0", "global v_N\nv_N = -v_N"),
    _kind("a bool or an int", "v_N=1", "(2.0 if v_N is True else 3.0)",
          "global v_N\nv_N = True if v_N is not True else 1"),
    _kind("an int or a float", "v_N=1", "(2.0 if isinstance(v_N,int) else 3.0)",
          "global v_N\nv_N = 1.0 if isinstance(v_N,int) else 1"),
    _kind("a complex number", "v_N=2+1j", "v_N.real", "global v_N\nv_N += 1"),
    # Code that runs at some calls only, and what C calls or reads.
    _kind("a cached method",
          "import functools\nclass B_N:\n    v=2.0\n    @functools.lru_cache\n    def m(self):\n"
          "        return self.v\nb_N=B_N()", "b_N.m()", "b_N.v+=1\nB_N.m.cache_clear()"),
    _kind("a prefilled cache",
          "import functools\nv_N=[2.0]\ndef h_N():\n    return v_N[0]\n@functools.cache\n"
          "def g_N():\n    return h_N()\ng_N()", "g_N()", "v_N[0]+=1\ng_N.cache_clear()"),
    _kind("a cache of a partial", "import functools\nv_N=[2.0]\ndef h_N(a):\n    return v_N[0]\n"
          "g_N=functools.lru_cache(functools.partial(h_N,1))\ng_N()", "g_N()",
          "v_N[0]+=1\ng_N.cache_clear()"),
    _kind("a cache of the user's",
          "v_N=[2.0]\nt_N={}\ndef h_N():\n    return v_N[0]\ndef g_N():\n    if 'a' not in t_N:\n"
          "        t_N['a']=h_N()\n    return t_N['a']\ng_N()", "g_N()",
          "v_N[0]+=1\nt_N.clear()"),
    _kind("a cache in an attribute",
          "class B_N:\n    c=None\n    v=2.0\n    def m(self):\n        if self.c is None:\n"
          "            self.c=self.h()\n        return self.c\n    def h(self):\n"
          "        return self.v\nb_N=B_N()\nb_N.m()", "b_N.m()", "b_N.v+=1\nb_N.c=None"),
    _kind("a lazily made object",
          "class B_N:\n    pass\nb_N=B_N()\ndef m_N():\n    if not hasattr(b_N,'v'):\n"
          "        b_N.v=2.0\n    return b_N.v\nm_N()", "m_N()", "b_N.v+=1"),
    _kind("an except path",
          "t_N={'v':2.0}\ndef h_N():\n    return 5.0+f_N[0]\nf_N=[1.0]\ndef g_N():\n    try:\n"
          "        return t_N['v']\n    except KeyError:\n        return h_N()", "g_N()",
          "t_N.clear()\nf_N[0]+=1"),
    _kind("a branch by a counter",
          "f_N=[0]\nv_N=[2.0]\ndef a_N():\n    return v_N[0]\ndef b_N():\n    return v_N[0]*2\n"
          "def g_N():\n    return a_N() if f_N[0]%2 else b_N()", "g_N()", "f_N[0]+=1\nv_N[0]+=1"),
    _kind("a finally path",
          "v_N=[2.0]\ndef h_N():\n    return v_N[0]\ndef g_N():\n    try:\n        pass\n"
          "    finally:\n        r=h_N()\n    return r", "g_N()", "v_N[0]+=1"),
    _kind("a key function", "v_N={1:2.0,2:1.0}\ndef k_N(a):\n    return v_N[a]",
          "float(max([1,2],key=k_N))", "v_N[1],v_N[2]=v_N[2],v_N[1]"),
    _kind("functools.reduce", "import functools\nv_N=[2.0]\ndef a_N(x,y):\n    return x+y*v_N[0]",
          "functools.reduce(a_N,[1.0,1.0])", "v_N[0]+=1"),
    _kind("re.sub with a function", "import re\nv_N=[2]\ndef r_N(m):\n    return str(v_N[0])",
          "float(re.sub('a',r_N,'a'))", "v_N[0]+=1"),
    _kind("json's default", "import json\nv_N=[2]\ndef r_N(m):\n    return v_N[0]",
          "float(json.dumps(object(),default=r_N))", "v_N[0]+=1"),
    _kind("__deepcopy__", "import copy\nclass B_N:\n    v=2.0\n    def __deepcopy__(self,memo):\n"
          "        return self.v\nb_N=B_N()", "copy.deepcopy(b_N)", "b_N.v+=1"),
    _kind("__reduce_ex__", "import copy\nclass B_N:\n    v=2.0\n    def __reduce_ex__(self,p):\n"
          "        return (float,(self.v,))\nb_N=B_N()", "copy.copy(b_N)", "b_N.v+=1"),
    _kind("__repr__",
          "class B_N:\n    v=2.0\n    def __repr__(self):\n        return str(self.v)\nb_N=B_N()",
          "float(repr(b_N))", "b_N.v+=1"),
    _kind("__str__",
          "class B_N:\n    v=2.0\n    def __str__(self):\n        return str(self.v)\nb_N=B_N()",
          "float(str(b_N))", "b_N.v+=1"),
    _kind("__dir__",
          "class B_N:\n    v=['a','b']\n    def __dir__(self):\n        return self.v\nb_N=B_N()",
          "float(len(dir(b_N)))", "b_N.v.append('c')", "either"),
    _kind("__sizeof__",
          "import sys\nclass B_N:\n    v=64\n    def __sizeof__(self):\n        return self.v\n"
          "b_N=B_N()", "float(sys.getsizeof(b_N))", "b_N.v+=1", "either"),
    _kind("sys.getsizeof", "import sys\nl_N=[]", "float(sys.getsizeof(l_N))",
          "l_N.extend([1]*50)", "either"),
    _kind("__getstate__", "import copy\nclass B_N:\n    v=2.0\n    def __getstate__(self):\n"
          "        return {'w':self.v}\nb_N=B_N()", "copy.copy(b_N).w", "b_N.v+=1"),
    _kind("__init_subclass__",
          "v_N=[2.0]\nclass B_N:\n    def __init_subclass__(cls):\n        cls.w=v_N[0]\n"
          "def g_N():\n    class C(B_N):\n        pass\n    return C.w", "g_N()", "v_N[0]+=1"),
    _kind("__set_name__",
          "v_N=[2.0]\nclass F_N:\n    def __set_name__(self,o,n):\n        o.w=v_N[0]\n"
          "def g_N():\n    class C:\n        f=F_N()\n    return C.w", "g_N()", "v_N[0]+=1"),
    _kind("a warning filter",
          "import warnings\nwarnings.simplefilter('ignore')\ndef g_N():\n    try:\n"
          "        warnings.warn('x')\n    except UserWarning:\n        return 3.0\n"
          "    return 2.0", "g_N()",
          "warnings.simplefilter('error' if warnings.filters[0][0]=='ignore' else 'ignore')",
          "either"),
    _kind("a table of translate", "t_N=str.maketrans('a','2')", "float('a'.translate(t_N))",
          "t_N[ord('a')]='3' if t_N[ord('a')]==50 or t_N[ord('a')]=='2' else '4'"),
    _kind("Enum by value", "import enum\nclass E_N(enum.IntEnum):\n    A=2\n    B=3\nk_N=[2]",
          "float(E_N(k_N[0]))", "k_N[0]=5-k_N[0]"),
    _kind("a dataclass in a pattern",
          "import dataclasses\n@dataclasses.dataclass\nclass P_N:\n    v: float\np_N=P_N(2.0)\n"
          "def g_N():\n    match p_N:\n        case P_N(w):\n            return w", "g_N()",
          "vars(p_N)['v']+=1"),
    _kind("dataclasses.asdict",
          "import dataclasses\n@dataclasses.dataclass\nclass P_N:\n    v: float\np_N=P_N(2.0)",
          "sum(dataclasses.asdict(p_N).values())", "vars(p_N)['v']+=1"),
    _kind("dataclasses that are equal",
          "import dataclasses\n@dataclasses.dataclass\nclass P_N:\n    v: float\np_N=P_N(2.0)\n"
          "q_N=P_N(2.0)", "(2.0 if p_N==q_N else 3.0)", "vars(p_N)['v']+=1"),
    _kind("dataclasses in order",
          "import dataclasses\n@dataclasses.dataclass(order=True)\nclass P_N:\n    v: float\n"
          "p_N=P_N(2.0)\nq_N=P_N(2.5)", "(2.0 if p_N<q_N else 3.0)", "vars(p_N)['v']+=1"),
    _kind("dataclass with slots",
          "import dataclasses\n@dataclasses.dataclass(slots=True)\nclass P_N:\n    v: float\n"
          "p_N=P_N(2.0)\ndef g_N():\n    match p_N:\n        case P_N(w):\n            return w",
          "g_N()", "object.__setattr__(p_N,'v',p_N.v+1)"),
    _kind("a slot by attrgetter",
          "class P_N:\n    __slots__=('v',)\np_N=P_N()\np_N.v=2.0\nimport operator\n"
          "g_N=operator.attrgetter('v')", "g_N(p_N)", "p_N.v+=1"),
    _kind("a namespace in a namespace",
          "import types\ns_N=types.SimpleNamespace(a=types.SimpleNamespace(b=2.0))\n"
          "import operator", "operator.attrgetter('a.b')(s_N)", "s_N.a.b+=1"),
    _kind("SimpleNamespace equality",
          "import types\ns_N=types.SimpleNamespace(v=2.0)\nt_N=types.SimpleNamespace(v=2.0)",
          "(2.0 if s_N==t_N else 3.0)", "s_N.v+=1"),
    _kind("a namespace's text", "import types\ns_N=types.SimpleNamespace(v=2.0)",
          "float(len(repr(s_N)))", "s_N.v*=10"),
    _kind("vars of argparse.Namespace", "import argparse\ns_N=argparse.Namespace(v=2.0)",
          "vars(s_N)['v']", "s_N.v+=1"),
    _kind("a format's attribute",
          "class B_N:\n    def __init__(self):\n        self.v=2\nb_N=B_N()",
          "float('{0.v}'.format(b_N))", "b_N.v+=1"),
    _kind("format_map", "d_N={'v':2}", "float('{v}'.format_map(d_N))", "d_N['v']+=1"),
    _kind("a text with % of a dictionary", "d_N={'v':2}", "float('%(v)s' % d_N)", "d_N['v']+=1"),
    _kind("__eq__ of a list's item",
          "class B_N:\n    v=2.0\n    def __eq__(self,o):\n        return self.v==o\nb_N=B_N()\n"
          "l_N=[b_N]", "(3.0 if 2.0 in l_N else 2.0)", "b_N.v+=1"),
    _kind("__radd__",
          "class B_N:\n    v=2.0\n    def __radd__(self,o):\n        return o+self.v\nl_N=[B_N()]",
          "sum(l_N)", "l_N[0].v+=1"),
    _kind("__length_hint__",
          "import operator\nclass B_N:\n    v=2\n    def __length_hint__(self):\n"
          "        return self.v\nb_N=B_N()", "float(operator.length_hint(b_N))", "b_N.v+=1"),
    _kind("__fspath__",
          "import os\nclass B_N:\n    v='a'\n    def __fspath__(self):\n        return self.v\n"
          "b_N=B_N()", "float(len(os.fspath(b_N)))", "b_N.v+='a'"),
    _kind("a memoryview of an array",
          "import numpy as np\na_N=np.array([2.0])\nb_N=memoryview(a_N)", "b_N[0]", "a_N[0]+=1"),
    _kind("statistics.mean", "import statistics\nl_N=[2.0]", "statistics.mean(l_N)", "l_N[0]+=1"),
    _kind("unpacked arguments", "l_N=[2.0,1.0]\ndef g_N(a,b):\n    return a", "g_N(*l_N)",
          "l_N[0]+=1"),
    _kind("unpacked keywords", "d_N={'a':2.0}\ndef g_N(a):\n    return a", "g_N(**d_N)",
          "d_N['a']+=1"),
    _kind("time.strftime", "import time", "float(time.strftime('%S'))", "pass", "refuse"),
    _kind("time.localtime", "import time", "float(time.localtime().tm_sec)", "pass", "refuse"),
    _kind("resource.getrusage", "import resource",
          "float(resource.getrusage(resource.RUSAGE_SELF).ru_utime)", "pass", "refuse"),
    # Attributes and calls that no trace sees: C reads them, or calls what it is handed.
    _kind("object.__getattribute__ computed",
          "class C_N:\n    scale = 2.0\nc_N = C_N()\nword_N = 'sca'",
          "object.__getattribute__(c_N, word_N + 'le')",
          "c_N.scale += 1", "refuse"),
    _kind("kept object.__getattribute__",
          "class C_N:\n    scale = 2.0\nc_N = C_N()\nword_N = 'sca'\n"
          "get_N = object.__getattribute__",
          "get_N(c_N, word_N + 'le')",
          "c_N.scale += 1", "refuse"),
    _kind("kept bound __getattribute__",
          "class C_N:\n    def __init__(self):\n        self.scale = 2.0\n"
          "c_N = C_N()\nword_N = 'sca'\nget_N = c_N.__getattribute__",
          "get_N(word_N + 'le')",
          "c_N.scale += 1", "refuse"),
    _kind("super().__getattribute__",
          "class C_N:\n    scale = 2.0\n\nclass D_N(C_N):\n    def read(self, name):\n"
          "        return super().__getattribute__(name)\nc_N=D_N()\n"
          "word_N='sca'",
          "c_N.read(word_N + 'le')",
          "c_N.scale += 1", "refuse"),
    _kind("own __getattribute__ with super",
          "class C_N:\n    def __init__(self):\n        self.scale = 2.0\n"
          "\nclass D_N(C_N):\n    def __getattribute__(self, name):\n"
          "        return super().__getattribute__(name)\nc_N=D_N()\n"
          "word_N='sca'",
          "getattr(c_N, word_N + 'le')",
          "c_N.scale += 1"),
    _kind("own __getattribute__ with renamed",
          "class C_N:\n    scale = 2.0\n\nclass D_N(C_N):\n    def __getattribute__(self,"
          " name):\n        return object.__getattribute__(self, 'sca' + name)\n"
          "c_N=D_N()\nword_N='sca'",
          "c_N.le",
          "object.__setattr__(c_N,'scale',c_N.le+1)", "refuse"),
    _kind("map getattribute",
          "class C_N:\n    scale = 2.0\nc_N = C_N()\nword_N = 'sca'",
          "list(map(object.__getattribute__, [c_N], [word_N + 'le']))[0]",
          "c_N.scale += 1", "refuse"),
    _kind("attrgetter computed",
          "import operator\nclass C_N:\n    scale = 2.0\nc_N = C_N()\n"
          "word_N = 'sca'",
          "operator.attrgetter(word_N + 'le')(c_N)",
          "c_N.scale += 1", "refuse"),
    _kind("attrgetter renamed computed",
          "from operator import attrgetter as ag_N\nclass C_N:\n"
          "    scale = 2.0\nc_N = C_N()\nword_N = 'sca'",
          "ag_N(word_N + 'le')(c_N)",
          "c_N.scale += 1", "refuse"),
    _kind("sorted attrgetter computed",
          "from operator import attrgetter as ag_N\nclass C_N:\n"
          "    scale = 2.0\nc_N = C_N()\nword_N = 'sca'\nd_N=C_N(); d_N.scale=2.5; "
          "d_N.tag=1.;c_N.tag=5.",
          "sorted([c_N,d_N],key=ag_N(word_N + 'le'))[0].tag",
          "c_N.scale += 1", "refuse"),
    _kind("methodcaller getattribute",
          "import operator\nclass C_N:\n    scale = 2.0\nc_N = C_N()\n"
          "word_N = 'sca'",
          "operator.methodcaller('__getattribute__', word_N+'le')(c_N)",
          "c_N.scale += 1", "refuse"),
    _kind("reduce getattr",
          "import functools\nclass C_N:\n    scale = 2.0\nc_N = C_N()\n"
          "class E_N: pass\ne_N=E_N(); e_N.inner=c_N\npath_N='inner.scale'",
          "functools.reduce(getattr, path_N.split('.'), e_N)",
          "c_N.scale += 1", "refuse"),
    _kind("map getattr",
          "class C_N:\n    scale = 2.0\nc_N = C_N()\nword_N = 'sca'",
          "list(map(getattr,[c_N],[word_N+'le']))[0]",
          "c_N.scale += 1", "refuse"),
    _kind("partial getattr",
          "import functools\nclass C_N:\n    scale = 2.0\nc_N = C_N()\n"
          "word_N = 'sca'\np_N=functools.partial(getattr,c_N)",
          "p_N(word_N+'le')",
          "c_N.scale += 1", "refuse"),
    _kind("partial getattr kept name",
          "import functools\nclass C_N:\n    scale = 2.0\nc_N = C_N()\n"
          "word_N = 'sca'\np_N=functools.partial(getattr,c_N,word_N+'le')",
          "p_N()",
          "c_N.scale += 1", "refuse"),
    _kind("getattribute default try",
          "class C_N:\n    scale = 2.0\nc_N = C_N()\nword_N='lat'\n"
          "def g_N():\n    try:\n        return object.__getattribute__(c_N, "
          "word_N+'e')\n    except AttributeError:\n        return 2.0",
          "g_N()",
          "c_N.late=getattr(c_N,'late',2.0)+1", "refuse"),
    _kind("__reduce_ex__",
          "import copy\nclass C_N:\n    def __init__(self):\n        self.scale = 2.0\n"
          "c_N = C_N()\nword_N = 'sca'",
          "(c_N.__reduce_ex__(2)[2] or {}).get(word_N+'le', 2.0)",
          "c_N.scale += 1"),
    _kind("__getstate__",
          "class C_N:\n    def __init__(self):\n        self.scale = 2.0\n"
          "c_N = C_N()\nword_N = 'sca'",
          "(c_N.__getstate__() or {}).get(word_N+'le', 2.0)",
          "c_N.scale += 1"),
    _kind("type.__getattribute__ computed",
          "class C_N:\n    scale = 2.0\nc_N = C_N()\nword_N = 'sca'",
          "type.__getattribute__(C_N, word_N+'le')",
          "C_N.scale += 1", "refuse"),
    _kind("vars(C)[computed]",
          "class C_N:\n    scale = 2.0\nc_N = C_N()\nword_N = 'sca'",
          "vars(C_N)[word_N+'le']",
          "C_N.scale += 1"),
    _kind("C.__dict__[computed]",
          "class C_N:\n    scale = 2.0\nc_N = C_N()\nword_N = 'sca'",
          "C_N.__dict__[word_N+'le']",
          "C_N.scale += 1"),
    _kind("type(c).__dict__",
          "class C_N:\n    scale = 2.0\nc_N = C_N()\nword_N = 'sca'",
          "type(c_N).__dict__[word_N+'le']",
          "C_N.scale += 1"),
    _kind("vars(obj)[computed]",
          "class C_N:\n    def __init__(self):\n        self.scale = 2.0\n"
          "c_N = C_N()\nword_N = 'sca'",
          "vars(c_N)[word_N+'le']",
          "c_N.scale += 1"),
    _kind("vars(obj).get computed",
          "class C_N:\n    def __init__(self):\n        self.scale = 2.0\n"
          "c_N = C_N()\nword_N = 'sca'",
          "vars(c_N).get(word_N+'le')",
          "c_N.scale += 1"),
    _kind("dict.__getitem__(vars)",
          "class C_N:\n    def __init__(self):\n        self.scale = 2.0\n"
          "c_N = C_N()\nword_N = 'sca'",
          "dict.__getitem__(vars(c_N),word_N+'le')",
          "c_N.scale += 1"),
    _kind("map vars",
          "class C_N:\n    def __init__(self):\n        self.scale = 2.0\n"
          "c_N = C_N()\nword_N = 'sca'",
          "list(map(vars,[c_N]))[0][word_N+'le']",
          "c_N.scale += 1", "refuse"),
    _kind("globals()[computed]",
          "v_N=2.0\nn_N='v'",
          "globals()[n_N+'_N']",
          "global v_N\nv_N+=1", "refuse"),
    _kind("globals().get computed",
          "v_N=2.0\nn_N='v'",
          "globals().get(n_N+'_N')",
          "global v_N\nv_N+=1", "refuse"),
    _kind("globals to function",
          "v_N=2.0\nn_N='v'\ndef l_N(d,k):\n    return d[k]",
          "l_N(globals(),n_N+'_N')",
          "global v_N\nv_N+=1", "refuse"),
    _kind("globals key then literal",
          "v_N=2.0\nn_N='v'\ndef l_N(d,k,z):\n    return d[k]",
          "l_N(globals(),n_N+'_N','u_N')",
          "global v_N\nv_N+=1", "refuse"),
    _kind("module object getattribute",
          "import sys\nv_N=2.0\nn_N='v'\nself_N=sys.modules[__name__]",
          "object.__getattribute__(self_N, n_N+'_N')",
          "global v_N\nv_N+=1", "refuse"),
    _kind("module object vars",
          "import sys\nv_N=2.0\nn_N='v'\nself_N=sys.modules[__name__]",
          "vars(self_N)[n_N+'_N']",
          "global v_N\nv_N+=1"),
    _kind("gc.get_referents renamed",
          "from gc import get_referents as gr_N\nclass C_N:\n    pass\n"
          "c_N=C_N()\nc_N.v=2.0",
          "[x for x in gr_N(c_N) if isinstance(x,float)][0]",
          "c_N.v+=1", "refuse"),
    _kind("ctypes cast id",
          "import ctypes\nt_N=[2.0]\ni_N=id(t_N)",
          "ctypes.cast(i_N,ctypes.py_object).value[0]",
          "t_N[0]+=1", "refuse"),
    _kind("ctypes from_address",
          "import ctypes\nn_N=ctypes.c_int(2)\ni_N=ctypes.addressof(n_N)",
          "float(ctypes.c_int.from_address(i_N).value)",
          "n_N.value+=1", "refuse"),
    _kind("ctypes string_at",
          "import ctypes\nn_N=ctypes.create_string_buffer(b'2')\n"
          "i_N=ctypes.addressof(n_N)",
          "float(ctypes.string_at(i_N,1))",
          "n_N[0]=b'3'", "refuse"),
    _kind("ctypes library call",
          "import ctypes\nlibc_N=ctypes.CDLL(None)\nlibc_N.srand(1)",
          "float(libc_N.rand() % 1000)",
          "pass", "refuse"),
    _kind("ctypes memmove",
          "import ctypes\nn_N=ctypes.c_int(2)\ni_N=ctypes.addressof(n_N)\n"
          "def g_N():\n    m=ctypes.c_int(0)\n    ctypes.memmove(ctypes.byref(m),i_N,4)\n"
          "    return float(m.value)",
          "g_N()",
          "n_N.value+=1", "refuse"),
    _kind("dataclass slots",
          "import dataclasses\n@dataclasses.dataclass(slots=True)\n"
          "class B_N:\n    v: float=2.0\nb_N=B_N()",
          "sum(getattr(b_N,n) for n in B_N.__slots__)",
          "b_N.v+=1"),
    _kind("slots by descriptor",
          "class L_N:\n    __slots__=('scale',)\nl_N=L_N()\nl_N.scale=2.0\n"
          "word_N = 'sca'",
          "vars(L_N)[word_N+'le'].__get__(l_N)",
          "l_N.scale+=1"),
    _kind("slots descriptor kept",
          "class L_N:\n    __slots__=('scale',)\nl_N=L_N()\nl_N.scale=2.0\n"
          "d_N=L_N.scale",
          "d_N.__get__(l_N)",
          "l_N.scale+=1"),
    _kind("slots descriptor called",
          "class L_N:\n    __slots__=('scale',)\nl_N=L_N()\nl_N.scale=2.0\n"
          "d_N=L_N.scale.__get__",
          "d_N(l_N)",
          "l_N.scale+=1"),
    _kind("enum member map",
          "import enum\nclass E_N(enum.Enum):\n    A=2.0\n    B=3.0",
          "float(len(E_N.__members__))",
          "E_N._member_map_['C'+str(len(E_N.__members__))]=E_N.A"),
    _kind("enum value2member",
          "import enum\nclass E_N(enum.Enum):\n    A=2.0\n    B=3.0",
          "E_N(2.0).value",
          "E_N._value2member_map_[2.0]=E_N.B"),
    _kind("enum iteration",
          "import enum\nclass E_N(enum.Enum):\n    A=2.0\n    B=3.0",
          "sum(e.value for e in E_N)",
          "E_N.A._value_+=1"),
    _kind("itertools.count peek",
          "import itertools\nc_N=itertools.count(2)",
          "float(repr(c_N)[6:-1])",
          "next(c_N)"),
    _kind("itertools.count copied",
          "import itertools,copy\nc_N=itertools.count(2)",
          "float(next(copy.copy(c_N)))",
          "next(c_N)"),
    _kind("generator gi_frame",
          "def m_N():\n    v=2.0\n    while 1:\n        v+=1\n        yield v\n"
          "g_N=m_N();next(g_N)",
          "g_N.gi_frame.f_locals['v']",
          "next(g_N)"),
    _kind("threading.local getattribute",
          "import threading\nl_N=threading.local()\nl_N.scale=2.0\n"
          "word_N = 'sca'",
          "l_N.__getattribute__(word_N+'le')",
          "l_N.scale+=1", "refuse"),
    _kind("autocast dtype",
          "",
          "float(len(str(tc.get_autocast_dtype('cpu'))))",
          "tc.set_autocast_dtype('cpu', tc.float16 if tc.get_autocast_dtype('cpu')=="
          "tc.bfloat16 else tc.bfloat16)"),
    _kind("np errstate",
          "import numpy as np\ndef g_N():\n    try:\n        np.array([1.0])/np.array("
          "[0.0])\n    except FloatingPointError:\n        return 3.0\n"
          "    return 2.0",
          "g_N()",
          "np.seterr(divide='raise')"),
    _kind("int max str",
          "import sys",
          "float(sys.get_int_max_str_digits())",
          "sys.set_int_max_str_digits(sys.get_int_max_str_digits()+1)", "refuse"),
    _kind("np.fromfile",
          "import numpy as np,tempfile\nt_N=tempfile.mkdtemp()+'/x'\n"
          "np.array([2.0]).tofile(t_N)",
          "float(np.fromfile(t_N)[0])",
          "np.array([3.0]).tofile(t_N)", "refuse"),
    _kind("load of a file",
          "import tempfile\nt_N=tempfile.mkdtemp()+'/x'\ntc.save({'a':tc.tensor([2.0],"
          "device='cpu')},t_N)",
          "tc.load(t_N)['a']",
          "tc.save({'a':tc.tensor([3.0],device='cpu')},t_N)", "refuse"),
    _kind("MRO getattribute computed",
          "class A_N:\n    val=2.0\nclass B_N(A_N):\n    pass\nb_N=B_N()\n"
          "n_N='va'",
          "object.__getattribute__(b_N,n_N+'l')",
          "A_N.val+=1", "refuse"),
    _kind("super map getattr",
          "class A_N:\n    val=2.0\nclass B_N(A_N):\n    def m(self,n):\n"
          "        return list(map(getattr,[super()],[n]))[0]\n"
          "b_N=B_N()\nn_N='va'",
          "b_N.m(n_N+'l')",
          "A_N.val+=1", "refuse"),
    _kind("string.Formatter",
          "import string\nclass A_N:\n    val=2.0\na_N=A_N()\nt_N=['{0.va','l}']",
          "float(string.Formatter().format(''.join(t_N),a_N))",
          "a_N.val+=1", "refuse"),
    _kind("str.format map",
          "class A_N:\n    val=2.0\na_N=A_N()\nt_N=['{0.va','l}']",
          "float(list(map(str.format,[''.join(t_N)],[a_N]))[0])",
          "a_N.val+=1", "refuse"),
    _kind("str.format map kept",
          "class A_N:\n    val=2.0\na_N=A_N()\nf_N='{0.val}'.format",
          "float(list(map(f_N,[a_N]))[0])",
          "a_N.val+=1", "refuse"),
    _kind("isinstance as value",
          "import abc\nclass A_N(abc.ABC): pass\nclass B_N: pass\n"
          "b_N=B_N()\ni_N=isinstance",
          "(3.0 if i_N(b_N,A_N) else 2.0)",
          "A_N.register(B_N)"),
    _kind("tracemalloc",
          "import tracemalloc",
          "(3.0 if tracemalloc.is_tracing() else 2.0)",
          "tracemalloc.stop() if tracemalloc.is_tracing() else tracemalloc.start()", "refuse"),
    _kind("faulthandler",
          "import faulthandler",
          "(3.0 if faulthandler.is_enabled() else 2.0)",
          "faulthandler.disable() if faulthandler.is_enabled() else faulthandler.enable()",
          "refuse"),
    _kind("np.vectorize getattr",
          "import numpy as np\nclass A_N:\n    val=2.0\na_N=A_N()\n"
          "n_N='va'\no_N=np.array([a_N],dtype=object)",
          "float(np.vectorize(getattr)(o_N,n_N+'l')[0])",
          "a_N.val+=1", "refuse"),
    _kind("optimizer defaults",
          "w_N=nn.Parameter(tc.ones(1))\no_N=tc.optim.SGD([w_N],lr=2.0)\n"
          "n_N='l'",
          "o_N.defaults[n_N+'r']",
          "o_N.defaults['lr']+=1"),
    _kind("tensor attr",
          "t_N=tc.ones(1)\nt_N.tag=2.0\nn_N='ta'",
          "t_N.tag",
          "t_N.tag+=1"),
    _kind("tensor attr getattr",
          "t_N=tc.ones(1)\nt_N.tag=2.0\nn_N='ta'",
          "getattr(t_N,n_N+'g')",
          "t_N.tag+=1"),
    _kind("parameter attr",
          "t_N=nn.Parameter(tc.ones(1))\nt_N.tag=2.0\nn_N='ta'",
          "t_N.tag",
          "t_N.tag+=1"),
    _kind("tensor dict",
          "t_N=tc.ones(1)\nt_N.tag=2.0\nn_N='ta'",
          "vars(t_N)[n_N+'g']",
          "t_N.tag+=1"),
    _kind("partial of a clock",
          "import functools,time\np_N=functools.partial(time.time)",
          "p_N()",
          "pass", "refuse"),
    _kind("a default factory of C",
          "import collections,time\nd_N=collections.defaultdict(time.time)",
          "d_N.__missing__(len(d_N))",
          "pass", "refuse"),
    _kind("a clock that map calls",
          "import time",
          "list(map(time.gmtime, [None]))[0].tm_sec + time.timezone*0.0",
          "pass", "refuse"),
    _kind("iter of a clock",
          "import time",
          "next(iter(time.time, None))",
          "pass", "refuse"),
    _kind("a Tensor's attribute that appears",
          "t_N=tc.ones(1)",
          "getattr(t_N,'tag',2.0)",
          "t_N.tag=getattr(t_N,'tag',2.0)+1"),
    # Looking for an attribute runs code that fails otherwise than by AttributeError.
    _kind("a module with parts that are not installed",
          "import sys, types\nm_N = types.ModuleType('lazy_N')\nm_N.v = 2.0\n"
          "def fail_N(name):\n    raise ModuleNotFoundError('not installed: ' + name)\n"
          "m_N.__getattr__ = fail_N\nsys.modules['lazy_N'] = m_N",
          "m_N.v", "m_N.v += 1"),
    _kind("a property that fails",
          "class C_N:\n    v = 2.0\n    @property\n    def gone(self):\n"
          "        raise RuntimeError('closed')\nc_N = C_N()",
          "(c_N.v if 'gone' else c_N.gone)", "c_N.v += 1"),
]  # fmt: skip

# Source that defines ``read_N(x)``, which gives EXPR times x.
PATHS = [
    ("directly", "def read_N(x):\n    return x * EXPR"),
    ("in a helper", "def help_N():\n    return EXPR\ndef read_N(x):\n    return x * help_N()"),
    ("in a helper's helper", "def deep_N():\n    return EXPR\ndef help_N():\n"
     "    return deep_N()\ndef read_N(x):\n    return x * help_N()"),
    ("in a function inside", "def read_N(x):\n    def inner():\n        return EXPR\n"
     "    return x * inner()"),
    ("in a comprehension", "def read_N(x):\n    return x * [EXPR for _ in range(1)][0]"),
    ("in a lambda", "def read_N(x):\n    return x * (lambda: EXPR)()"),
    ("in a callback", "def read_N(x):\n    return x * list(map(lambda _: EXPR, [0]))[0]"),
    ("in a generator", "def items_N():\n    yield EXPR\ndef read_N(x):\n"
     "    for item in items_N():\n        x = x * item\n    return x"),
    ("in a method", "class Reader_N:\n    def read(self, x):\n        return x * EXPR\n"
     "reader_N = Reader_N()\ndef read_N(x):\n    return reader_N.read(x)"),
    ("in a class method", "class Reader_N:\n    @classmethod\n    def read(cls, x):\n"
     "        return x * EXPR\ndef read_N(x):\n    return Reader_N.read(x)"),
    ("in a static method", "class Reader_N:\n    @staticmethod\n    def read(x):\n"
     "        return x * EXPR\ndef read_N(x):\n    return Reader_N.read(x)"),
    ("in a property", "class Reader_N:\n    @property\n    def now(self):\n        return EXPR\n"
     "reader_N = Reader_N()\ndef read_N(x):\n    return x * reader_N.now"),
    ("in __call__", "class Reader_N:\n    def __call__(self, x):\n        return x * EXPR\n"
     "reader_N = Reader_N()\ndef read_N(x):\n    return reader_N(x)"),
    ("in an operator", "class Reader_N:\n    def __matmul__(self, x):\n        return x * EXPR\n"
     "reader_N = Reader_N()\ndef read_N(x):\n    return reader_N @ x"),
    ("in __init__", "class Reader_N:\n    def __init__(self):\n        self.now = EXPR\n"
     "def read_N(x):\n    return x * Reader_N().now"),
    ("in __enter__", "class Reader_N:\n    def __enter__(self):\n        return EXPR\n"
     "    def __exit__(self, *error):\n        return None\ndef read_N(x):\n"
     "    with Reader_N() as now:\n        return x * now"),
    ("in a decorated function", "import functools\ndef twice_N(function):\n"
     "    @functools.wraps(function)\n    def wrapper(*args):\n        return function(*args)\n"
     "    return wrapper\n@twice_N\ndef read_N(x):\n    return x * EXPR"),
    ("in a decorator", "def scaled_N(function):\n    def wrapper(x):\n"
     "        return function(x) * EXPR\n    return wrapper\n@scaled_N\ndef read_N(x):\n"
     "    return x"),
    ("in a partial", "import functools\ndef scale_N(y, x):\n    return y * x * EXPR\n"
     "read_N = functools.partial(scale_N, 1.0)"),
    ("in a function in a list", "def scale_N(x):\n    return x * EXPR\n"
     "functions_N = [scale_N]\ndef read_N(x):\n    return functions_N[0](x)"),
    ("in a function by getattr", "class Reader_N:\n    def one(self, x):\n        return x * EXPR\n"
     "reader_N = Reader_N()\nwhich_N = 'on'\ndef read_N(x):\n"
     "    return getattr(reader_N, which_N + 'e')(x)"),
    ("in a Module", "class Outer_N(nn.Module):\n"
     "    def forward(self, x):\n        return x * EXPR\n"
     "outer_N = Outer_N()\ndef read_N(x):\n    return outer_N(x)"),
    ("in a Module below", "class Outer_N(nn.Module):\n    def forward(self, x):\n"
     "        return x * EXPR\nouter_N = nn.Sequential(nn.Identity(), nn.Sequential(Outer_N()))\n"
     "def read_N(x):\n    return outer_N(x)"),
    ("in a hook", "outer_N = nn.Identity()\n"
     "outer_N.register_forward_hook(lambda module, x, y: y * EXPR)\n"
     "def read_N(x):\n    return outer_N(x)"),
    ("in a hook of a gradient", "hooked_N = nn.Parameter(tc.ones(1))\n"
     "hooked_N.register_hook(lambda gradient: gradient * EXPR)\ndef read_N(x):\n"
     "    with tc.enable_grad():\n"
     "        return x * tc.autograd.grad((hooked_N * 1).sum(), hooked_N)[0]"),
    ("in an autograd.Function", "class Scale_N(tc.autograd.Function):\n    @staticmethod\n"
     "    def forward(ctx, x):\n        return x * EXPR\n    @staticmethod\n"
     "    def backward(ctx, gradient):\n        return gradient\ndef read_N(x):\n"
     "    return Scale_N.apply(x)"),
    ("in a branch", "def read_N(x):\n    if EXPR is not None:\n        y = x * 3\n"
     "    try:\n        return y * EXPR\n    finally:\n        del y"),
    ("in a compiled function", "@tc.compile\ndef read_N(x):\n    return x * EXPR"),
]  # fmt: skip
