"""Arrays of dead intermediate values, for the next ones of the same size.

A large array that is freed goes back to the system, and each page of the next one costs a fault:
as long as adding its elements.
"""

from __future__ import annotations

from collections import OrderedDict
from math import prod
from typing import Any

import numpy as np

from tinygrad_cuda.core.reference_counts import NAMED, reference_count
from tinygrad_cuda.core.shapes import Shape

Array = np.ndarray[Any, Any]

# Bytes of the pool at most; the least recently used size is freed first.
CAPACITY = 1 << 25
# Arrays of fewer bytes are left to malloc, which keeps them: it asks the system from here on.
SMALLEST = 1 << 17

Key = tuple[int, np.dtype[Any]]


class ArrayPool:
    """Free arrays by size and dtype: what was made in one shape may be taken in another.

    Attributes:
        idle_bytes: bytes of all of them.
    """

    def __init__(self) -> None:
        self._free: OrderedDict[Key, list[Array]] = OrderedDict()
        self.idle_bytes = 0

    def take(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """An array with any contents."""
        free = self._free.get((prod(shape), dtype))
        if free:
            try:
                array = free.pop()
            except IndexError:  # another thread was quicker
                return np.empty(shape, dtype)
            self.idle_bytes -= array.nbytes
            if array.shape != shape:
                array.resize(shape, refcheck=False)  # a reshape would not own its memory
            return array
        return np.empty(shape, dtype)

    def give(self, array: Array) -> None:
        """Keeps an array that nobody else refers to."""
        key = (array.size, array.dtype)
        self._free.setdefault(key, []).append(array)
        self._free.move_to_end(key)
        self.idle_bytes += array.nbytes
        while self.idle_bytes > CAPACITY and self._free:
            _, arrays = self._free.popitem(last=False)
            self.idle_bytes -= sum(one.nbytes for one in arrays)

    def clear(self) -> None:
        """Lets all of them go."""
        self._free.clear()
        self.idle_bytes = 0

    def release(self, values: list[Any], slots: list[int]) -> None:
        """Empties slots of a table; arrays that nothing else refers to return to the pool."""
        owners: dict[int, Any] = {}
        for slot in slots:
            value: Any = values[slot]
            values[slot] = None
            if type(value) is np.ndarray:
                owner: Any = value if value.base is None else value.base
                owners[id(owner)] = owner
        value = owner = None
        for number in list(owners):
            array = owners.pop(number)
            if reference_count(array) == NAMED and _is_whole(array):
                self.give(array)


def _is_whole(array: Any) -> bool:
    if type(array) is not np.ndarray or array.nbytes < SMALLEST:
        return False
    flags = array.flags
    return bool(flags.owndata and flags.c_contiguous and flags.writeable)


pool = ArrayPool()
