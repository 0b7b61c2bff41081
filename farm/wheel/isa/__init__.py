"""CPU features that the machine code of a library needs beyond a level such as `avx` or `armv8_2`.

All of the code (`scan.scan_isa`) is decoded from end to end, restarting at every function symbol;
of a DLL, what its function table (`.pdata`) names. So what is there is found, not what runs: a
library that chooses its code at run time holds, rightly, instructions that its level lacks. Data
between the instructions (tables in hand-written assembly) are decoded too and may look like an
instruction: the result says where each find is, and `undecodable` counts the byte sequences that
were no instruction at all. Code that is unpacked or generated at run time is not seen.

What runs on import (`scan.scan_starts`) must keep to the level before any question to the CPU: a
static initialiser that was compiled with `-mavx2` because its file holds AVX2 kernels kills the
import on an older CPU. So the code is followed from where the loader and the interpreter enter it:

- DT_INIT and the functions in `.init_array`; at exit DT_FINI and those in `.fini_array`;
- the resolvers of indirect functions, whether a relocation names them (R_X86_64_IRELATIVE) or a
  symbol of type STT_GNU_IFUNC does, which the loader calls for whatever binds to it;
- the TLS callbacks and the entry point of a DLL. For Microsoft's linker that is start-up code which
  calls `_initterm` with the two ends of a table of pointers: the static initialisers, which
  compilers put into `.CRT$XI*` and `.CRT$XC*`. The table has no name in the file, and is found by
  following the code: two addresses loaded one after the other, between which are only zeros and
  pointers to code. MinGW's table begins with -1 and ends with 0; its section `.CRT` holds further
  pointers;
- an extension module's `PyInit_NAME`, and the functions in the slots of the module definitions that
  it names; of several, the name of the file decides which one is called, and what they need is left
  open.

Direct jumps and calls are followed, and those through a pointer at a fixed place (the PLT, the
GOT), by the value that the loader gives it. A function whose address is taken may be called by
anybody: what a resolver returns, what atexit, pthread_once or qsort get. Other jumps and calls
through pointers, also those of a `switch`, are not followed: such ends are counted
(`findings.InitScan.open_ends`) and leave what runs undecided, and an emulated import decides it
(`farm.smoke.emulation`). So do calls of what calls back by an object's own table (`PyObject_Call`,
streams of C++) or goes on elsewhere (exceptions: their handlers follow no jump).

A branch is followed whether or not it asks the CPU first, so a find is a place to look at. Only
what is found within two levels of calls counts as one; and, where that code asks the CPU (CPUID),
only what no branch stands before. The rest leaves open what runs, as does a function whose address
is taken, and code that is too much to be followed.

Levels are data: `isa_levels.yaml`, `aarch64_levels.yaml`. Sources: System V gABI chapter 5,
"Initialization and Termination Functions"; System V psABI for AMD64, 4.4, and AAELF64, 5.7
(relocation types); the GNU gABI for STT_GNU_IFUNC; PEP 489 (multi-phase initialisation) and
`Include/moduleobject.h` of CPython for the layout of PyModuleDef; Microsoft, "PE Format" (export,
exception and TLS directories) and "CRT initialization"; Arm Architecture Reference Manual (DDI
0487), C4.1, "A64 instruction set encoding".
"""
