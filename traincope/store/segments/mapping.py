"""Maps of files that keep no descriptor open.

A training may close any number, and open a file of its own under it. Python's `mmap` of a file keeps a descriptor until
the map is gone, and closes its number then. Here the map is created without a file, and its pages are replaced.
"""

import ctypes
import mmap
import os

MAP_FIXED = 0x10
"""A flag of Linux that Python's `mmap` lacks."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)


def map_file(descriptor: int, size: int) -> mmap.mmap:
    """Map a file to read and write. The map keeps nothing of the descriptor. Raises OSError."""
    mmap.mmap(descriptor, size).close()  # a file that cannot be mapped raises here
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if not replace_pages(start_of(memory), size, flags=mmap.MAP_SHARED, descriptor=descriptor):
        number = ctypes.get_errno()
        # The kernel may have given its addresses back. They may be the training's by now: it must never unmap them.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
        raise OSError(number, os.strerror(number))
    return memory


def start_of(memory: mmap.mmap) -> int:
    """Return the address of a map."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def replace_pages(start: int, size: int, *, flags: int, descriptor: int = -1) -> bool:
    """Put other pages in the place of mapped ones, to read and write. Returns whether that succeeded."""
    both = mmap.PROT_READ | mmap.PROT_WRITE
    return bool(_libc.mmap(start, size, both, flags | MAP_FIXED, descriptor, 0) == start)
