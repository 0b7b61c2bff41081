"""Kernel32 for `farm.base.processes.windows`, by ctypes: constants, structures and functions of the Windows SDK.

Named as in winnt.h, winbase.h, tlhelp32.h and psapi.h, in this project's spelling.
"""

import ctypes
import sys
from ctypes import wintypes
from typing import Any

assert sys.platform == "win32"  # also tells mypy, which reads this file with --platform win32

CREATE_SUSPENDED = 0x4
TH32CS_SNAPTHREAD = 0x4
THREAD_SUSPEND_RESUME = 0x2
PROCESS_TERMINATE, PROCESS_VM_READ, PROCESS_SET_QUOTA = 0x1, 0x10, 0x100
PROCESS_QUERY_LIMITED_INFORMATION = 0x1000
STILL_ACTIVE = 259
ERROR_INVALID_PARAMETER = 87
INVALID_HANDLE = ctypes.c_void_p(-1).value
LIMIT_JOB_MEMORY, LIMIT_DIE_ON_UNHANDLED_EXCEPTION, LIMIT_KILL_ON_JOB_CLOSE = 0x200, 0x400, 0x2000
CLASS_PROCESS_IDS, CLASS_COMPLETION_PORT, CLASS_EXTENDED_LIMITS = 3, 7, 9  # JOBOBJECTINFOCLASS
MSG_JOB_MEMORY_LIMIT = 10  # JOB_OBJECT_MSG_JOB_MEMORY_LIMIT
MAX_PIDS = 8192


class BasicLimits(ctypes.Structure):
    _fields_ = (
        ("per_process_time", ctypes.c_int64),
        ("per_job_time", ctypes.c_int64),
        ("flags", wintypes.DWORD),
        ("min_working_set", ctypes.c_size_t),
        ("max_working_set", ctypes.c_size_t),
        ("active_processes", wintypes.DWORD),
        ("affinity", ctypes.c_size_t),
        ("priority", wintypes.DWORD),
        ("scheduling", wintypes.DWORD),
    )


class ExtendedLimits(ctypes.Structure):
    _fields_ = (
        ("basic", BasicLimits),
        ("io", ctypes.c_uint64 * 6),
        ("process_memory", ctypes.c_size_t),
        ("job_memory", ctypes.c_size_t),
        ("peak_process_memory", ctypes.c_size_t),
        ("peak_job_memory", ctypes.c_size_t),
    )


class Port(ctypes.Structure):
    _fields_ = (("key", wintypes.LPVOID), ("port", wintypes.HANDLE))


class Pids(ctypes.Structure):
    _fields_ = (("assigned", wintypes.DWORD), ("listed", wintypes.DWORD), ("ids", ctypes.c_size_t * MAX_PIDS))


class Thread(ctypes.Structure):
    _fields_ = (
        ("size", wintypes.DWORD),
        ("usage", wintypes.DWORD),
        ("id", wintypes.DWORD),
        ("owner", wintypes.DWORD),
        ("base_priority", wintypes.LONG),
        ("delta_priority", wintypes.LONG),
        ("flags", wintypes.DWORD),
    )


class Memory(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS."""

    _fields_ = (
        ("size", wintypes.DWORD),
        ("page_faults", wintypes.DWORD),
        ("working_sets", ctypes.c_size_t * 2),
        ("pools", ctypes.c_size_t * 4),
        ("committed", ctypes.c_size_t),
        ("peak_committed", ctypes.c_size_t),
    )


class MemoryStatus(ctypes.Structure):
    _fields_ = (("size", wintypes.DWORD), ("load", wintypes.DWORD), ("bytes", ctypes.c_uint64 * 7))


_kernel = ctypes.WinDLL("kernel32", use_last_error=True)


def _declare(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_kernel, name)
    function.restype, function.argtypes = result, arguments
    return function


_H, _D, _P, _B, _I = wintypes.HANDLE, wintypes.DWORD, wintypes.LPVOID, wintypes.BOOL, ctypes.c_int
open_process = _declare("OpenProcess", _H, _D, _B, _D)
exit_code = _declare("GetExitCodeProcess", _B, _H, _P)
times = _declare("GetProcessTimes", _B, _H, _P, _P, _P, _P)
memory_info = _declare("K32GetProcessMemoryInfo", _B, _H, _P, _D)
close = _declare("CloseHandle", _B, _H)
this = _declare("GetCurrentProcess", _H)
affinity = _declare("GetProcessAffinityMask", _B, _H, _P, _P)
set_affinity = _declare("SetProcessAffinityMask", _B, _H, ctypes.c_size_t)
memory_status = _declare("GlobalMemoryStatusEx", _B, _P)
create_job = _declare("CreateJobObjectW", _H, _P, wintypes.LPCWSTR)
set_job = _declare("SetInformationJobObject", _B, _H, _I, _P, _D)
query_job = _declare("QueryInformationJobObject", _B, _H, _I, _P, _D, _P)
assign = _declare("AssignProcessToJobObject", _B, _H, _H)
terminate_job = _declare("TerminateJobObject", _B, _H, wintypes.UINT)
create_port = _declare("CreateIoCompletionPort", _H, _H, _H, ctypes.c_size_t, _D)
next_message = _declare("GetQueuedCompletionStatus", _B, _H, _P, _P, _P, _D)
snapshot = _declare("CreateToolhelp32Snapshot", _H, _D, _D)
first_thread = _declare("Thread32First", _B, _H, _P)
next_thread = _declare("Thread32Next", _B, _H, _P)
open_thread = _declare("OpenThread", _H, _D, _B, _D)
resume = _declare("ResumeThread", _D, _H)


def sure(result: Any) -> Any:
    """The result of a call that says 0 when it fails; OSError then."""
    if not result:
        raise ctypes.WinError(ctypes.get_last_error())
    return result
