/* python.exe: what python.org's own is, a few lines around the DLL. */
#include <windows.h>
int wmain(int argc, wchar_t **argv) {
    HMODULE module = LoadLibraryW(L"python311.dll");
    int (*run)(int, wchar_t **) = module ? (int (*)(int, wchar_t **))GetProcAddress(module, "Py_Main") : NULL;
    return run ? run(argc, argv) : 126;
}
