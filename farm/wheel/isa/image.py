"""A library as it is in memory."""

from collections.abc import Collection, Iterable

from farm.wheel.archive import Buffer

ENTRY_NAMES = (b"PyInit_", b"PyInitU_")
"""How the functions begin that an interpreter calls on import; the second is for names beyond ASCII
(PEP 489).
"""
SLOTS_AT = (72, 88)
"""Where PyModuleDef has its `m_slots`: behind a PyObject of 16 bytes, and of 32 in free-threaded
Pythons.
"""
_MAX_MODULE_SLOTS = 64
ALL_ONES = (1 << 64) - 1
MAX_STARTS = 100_000


def module_slots(addresses: Iterable[int], image: "Image") -> list[int]:
    """The functions in the slots of the module definitions (PyModuleDef, PEP 489) among
    `addresses`.

    The interpreter calls them on import. A definition that the code fills at run time names none in
    the file.
    """
    functions: dict[int, None] = {}
    for address in addresses:
        for place in SLOTS_AT:
            slots = image.pointer(address + place)
            for index in range(_MAX_MODULE_SLOTS):
                if slots is None:
                    break
                identifier = image.word(slots + 16 * index)
                value = image.pointer(slots + 16 * index + 8)
                # Slots have small numbers, and a zero ends them; anything else is no table of
                # slots.
                if not identifier or identifier > _MAX_MODULE_SLOTS:
                    break
                if value is not None and image.offset(value) is not None:
                    functions[value] = None
    return list(functions)


Code = list[tuple[int, int, int]]
"""(first address, address behind, file offset) of what is code."""


class Image:
    """A library as it is in memory.

    Attributes:
        code: What is code.
        slots: Pointers (by address) that lead to functions of its own.
        elsewhere: Slots of other libraries' functions, or of nothing (__gmon_start__).
        may_call_what_is_taken: A function whose address is taken may run. Not of DLLs, where the
            start-up code takes those of handlers that never do.
    """

    may_call_what_is_taken = True

    def __init__(self, data: Buffer, code: Code) -> None:
        self.data = data
        self.code = code
        self.slots: dict[int, int] = {}
        self.elsewhere: Collection[int] = ()

    def offset(self, address: int) -> tuple[int, int] | None:
        """(file offset, end of its section in the file) of code; None for an address that is not
        code here.
        """
        for first, last, start in self.code:
            if first <= address < last:
                return start + address - first, start + last - first
        return None

    def of_code(self, addresses: Iterable[int]) -> list[int]:
        """The addresses that are code here, each once."""
        in_code = []
        for address in dict.fromkeys(addresses):
            if self.offset(address) is not None:
                in_code.append(address)
        return in_code

    def name(self, slot: int) -> str:
        """The function of another library that a slot leads to."""
        raise NotImplementedError

    def pointer(self, slot: int) -> int | None:
        """The pointer into this library that the loader writes to an address; None where there is
        none.
        """
        raise NotImplementedError

    def word(self, address: int) -> int | None:
        """The eight bytes at an address, as the file has them; None where the file has none."""
        raise NotImplementedError
