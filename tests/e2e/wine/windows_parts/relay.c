/* Asks the test (relay.py) to run the Unix program of the same name (git for git.exe): there is no git or curl for
 * Windows to be had from a registry. Writes PLACE\<pid>.request (folder and arguments, each ended by a zero, then what
 * stands at its input), waits for PLACE\<pid>.done and hands on its output and exit code. */
#include <stdio.h>
#include <stdlib.h>
#include <windows.h>

static void text(FILE *file, const wchar_t *value) {
    char out[8192];
    int size = WideCharToMultiByte(CP_UTF8, 0, value, -1, out, sizeof out, NULL, NULL);
    fwrite(out, 1, size, file);
}

static void pass(const wchar_t *name, HANDLE to) {
    char block[4096];
    size_t size;
    DWORD written;
    FILE *file = _wfopen(name, L"rb");
    while (file && (size = fread(block, 1, sizeof block, file)) > 0) WriteFile(to, block, size, &written, NULL);
    if (file) fclose(file);
}

int wmain(int argc, wchar_t **argv) {
    wchar_t self[1024], folder[1024], name[1024], request[1024], done[1024];
    char block[4096];
    DWORD size;
    GetModuleFileNameW(NULL, self, 1024);
    GetCurrentDirectoryW(1024, folder);
    swprintf(name, 1024, PLACE L"%lu.new", GetCurrentProcessId());
    swprintf(request, 1024, PLACE L"%lu.request", GetCurrentProcessId());
    swprintf(done, 1024, PLACE L"%lu.done", GetCurrentProcessId());
    DeleteFileW(done);
    FILE *file = _wfopen(name, L"wb");
    if (!file) return 99;
    text(file, folder);
    text(file, wcsrchr(self, L'\\') + 1);
    for (int i = 1; i < argc; i++) text(file, argv[i]);
    fputc(0, file);
    HANDLE in = GetStdHandle(STD_INPUT_HANDLE);
    if (GetFileType(in) == FILE_TYPE_PIPE)
        while (ReadFile(in, block, sizeof block, &size, NULL) && size) fwrite(block, 1, size, file);
    fclose(file);
    for (int tries = 0; !MoveFileExW(name, request, MOVEFILE_REPLACE_EXISTING); tries++) { /* seen on a busy machine */
        if (tries == 50) return 98;
        Sleep(100);
    }
    while (!(file = _wfopen(done, L"rb"))) Sleep(20);
    int code = 97;
    fscanf(file, "%d", &code);
    fclose(file);
    wcscpy(wcsrchr(done, L'.'), L".out");
    pass(done, GetStdHandle(STD_OUTPUT_HANDLE));
    wcscpy(wcsrchr(done, L'.'), L".err");
    pass(done, GetStdHandle(STD_ERROR_HANDLE));
    return code;
}
