/* Stands in for any tool: appends who it is, its command line, folder and environment to FARM_TEST_RECORD as one line
 * of JSON, then does what the first fitting rules of FARM_TEST_RULES say (C:\tools\record and C:\tools\rules where
 * the environment does not say). A rule is a line of fields between tabs:
 * tool, part of the command line, then actions: exit=N, print=TEXT, mkdir=PATH, write=PATH, self=PATH, run=NAME,
 * fill=PATH (writes until the disk is full), hang=PATH (writes it, and does not end), leave=NAME (starts it, and does not wait: it has our handles).
 * Called as Python with logged.py, it writes into FARM_LOG and is the program that logged.py would start. */
#include <fcntl.h>
#include <io.h>
#include <process.h>
#include <share.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <windows.h>

static char *utf8(const wchar_t *text) {
    int size = WideCharToMultiByte(CP_UTF8, 0, text, -1, NULL, 0, NULL, NULL);
    char *out = malloc(size);
    WideCharToMultiByte(CP_UTF8, 0, text, -1, out, size, NULL, NULL);
    return out;
}

static wchar_t *wide(const char *text) {
    int size = MultiByteToWideChar(CP_UTF8, 0, text, -1, NULL, 0);
    wchar_t *out = malloc(size * sizeof(wchar_t));
    MultiByteToWideChar(CP_UTF8, 0, text, -1, out, size);
    return out;
}

static const wchar_t *place(const wchar_t *name, const wchar_t *otherwise) {
    const wchar_t *value = _wgetenv(name);
    return value ? value : otherwise;
}

static void json(FILE *file, const char *text, size_t length) {
    fputc('"', file);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = text[i];
        if (c == '"' || c == '\\') fprintf(file, "\\%c", c);
        else if (c < 32) fprintf(file, "\\u%04x", c);
        else fputc(c, file);
    }
    fputc('"', file);
}

static void parents(wchar_t *path) {
    for (wchar_t *p = path + 3; *p; p++)
        if (*p == L'\\') { *p = 0; CreateDirectoryW(path, NULL); *p = L'\\'; }
}

static long long size(const wchar_t *path) {
    struct _stat64 found;
    return _wstat64(path, &found) ? -1 : found.st_size;
}

/* Starts a program, which has our handles. */
static HANDLE start(wchar_t *words) {
    STARTUPINFOW how = {.cb = sizeof how, .dwFlags = STARTF_USESTDHANDLES};
    PROCESS_INFORMATION made;
    how.hStdOutput = (HANDLE)_get_osfhandle(1);
    how.hStdError = (HANDLE)_get_osfhandle(2);
    return CreateProcessW(NULL, words, NULL, NULL, TRUE, 0, NULL, NULL, &how, &made) ? made.hProcess : NULL;
}

/* What stands in a command line after its first words, which may be quoted. */
static wchar_t *after(wchar_t *line, int words) {
    for (; words; words--) {
        for (int quoted = 0; *line && (quoted || *line != L' '); line++) quoted ^= *line == L'"';
        while (*line == L' ') line++;
    }
    return line;
}

int wmain(int argc, wchar_t **argv) {
    wchar_t self[1024], folder[1024], *words = GetCommandLineW(), *place_of = self, other[1024];
    GetModuleFileNameW(NULL, self, 1024);
    GetCurrentDirectoryW(1024, folder);
    if (argc > 2 && wcsstr(argv[1], L"logged.py")) {
        int log = _wsopen(_wgetenv(L"FARM_LOG"), _O_WRONLY | _O_APPEND | _O_CREAT | _O_BINARY, _SH_DENYNO, _S_IREAD | _S_IWRITE);
        if (log < 0) return 9;
        _dup2(log, 1);
        _dup2(log, 2);
        words = after(words, 2);
        if (size(argv[2]) != size(self)) { /* no stand-in */
            DWORD ended = 99;
            HANDLE made = start(words);
            if (!made) return 99;
            WaitForSingleObject(made, INFINITE);
            GetExitCodeProcess(made, &ended);
            return ended;
        }
        GetFullPathNameW(argv[2], 1024, other, NULL);
        place_of = other;
    }
    char *path = utf8(place_of), *command = utf8(words);
    char *name = strrchr(path, '\\') + 1;
    FILE *record = NULL;
    for (int tries = 0; !record && tries < 100; tries++) { /* another stand-in may be writing */
        if (tries) Sleep(100);
        record = _wfopen(place(L"FARM_TEST_RECORD", L"C:\\tools\\record"), L"ab");
    }
    if (!record) return 99;
    fputs("{\"path\": ", record); json(record, path, strlen(path));
    fputs(", \"command\": ", record); json(record, command, strlen(command));
    char *cwd = utf8(folder);
    fputs(", \"cwd\": ", record); json(record, cwd, strlen(cwd));
    fputs(", \"env\": {", record);
    int first = 1;
    for (wchar_t *entry = GetEnvironmentStringsW(); *entry; entry += wcslen(entry) + 1) {
        char *text = utf8(entry), *equal = strchr(text + 1, '=');
        if (text[0] == '=' || !equal) continue;
        if (!first) fputs(", ", record);
        first = 0;
        json(record, text, equal - text); fputs(": ", record); json(record, equal + 1, strlen(equal + 1));
    }
    fputs("}}\n", record);
    fclose(record);

    FILE *rules = _wfopen(place(L"FARM_TEST_RULES", L"C:\\tools\\rules"), L"rb");
    char line[8192];
    int code = 0;
    while (rules && fgets(line, sizeof line, rules)) {
        line[strcspn(line, "\r\n")] = 0;
        char *tool = line, *part = strchr(line, '\t');
        if (!part) continue;
        *part++ = 0;
        char *actions = strchr(part, '\t');
        if (actions) *actions++ = 0;
        if (_stricmp(tool, name) || !strstr(command, part)) continue;
        for (char *action = actions; action; ) {
            char *next = strchr(action, '\t');
            if (next) *next++ = 0;
            char *value = strchr(action, '=') + 1;
            if (!strncmp(action, "exit=", 5)) code = atoi(value);
            else if (!strncmp(action, "print=", 6)) { fputs(value, stdout); fputc('\n', stdout); }
            else {
                wchar_t *target = wide(value);
                if (!strncmp(action, "run=", 4)) { fflush(stdout); code |= _wsystem(target); }
                else if (!strncmp(action, "leave=", 6)) { fflush(stdout); if (!start(target)) code = 98; }
                else {
                    parents(target);
                    if (!strncmp(action, "mkdir=", 6)) CreateDirectoryW(target, NULL);
                    else if (!strncmp(action, "self=", 5)) CopyFileW(self, target, FALSE);
                    else { FILE *made = _wfopen(target, L"wb"); if (made) fclose(made); }
                    if (!strncmp(action, "hang=", 5)) Sleep(INFINITE);
                    if (!strncmp(action, "fill=", 5)) {
                        static char zeros[4096];
                        DWORD written;
                        HANDLE disk = CreateFileW(target, GENERIC_WRITE, 0, NULL, CREATE_ALWAYS, 0, NULL);
                        while (WriteFile(disk, zeros, sizeof zeros, &written, NULL) && written) continue;
                        CloseHandle(disk);
                    }
                }
            }
            action = next;
        }
        if (code) break;
    }
    fflush(stdout);
    return code;
}
