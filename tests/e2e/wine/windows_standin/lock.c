/* Holds a file open, not shared, until its standard input ends: what an editor or a virus scanner does. */
#include <stdio.h>
#include <windows.h>
int wmain(int argc, wchar_t **argv) {
    HANDLE file = CreateFileW(argv[1], GENERIC_READ, 0, NULL, OPEN_EXISTING, 0, NULL);
    if (file == INVALID_HANDLE_VALUE) return 1;
    puts("held");
    fflush(stdout);
    getchar();
    return 0;
}
