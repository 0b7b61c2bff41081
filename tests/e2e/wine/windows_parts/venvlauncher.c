/* Lib\venv\scripts\nt\python.exe: starts the Python that pyvenv.cfg names as home, which then finds the environment
 * by __PYVENV_LAUNCHER__ and ends with this one. Stands in for python.org's own, which no wheel holds. */
#include <stdio.h>
#include <windows.h>
int wmain(void) {
    static wchar_t self[4096], path[4096], home[4096];
    STARTUPINFOW start = {.cb = sizeof start};
    PROCESS_INFORMATION child;
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION limits = {0};
    HANDLE job = CreateJobObjectW(NULL, NULL);
    DWORD code = 1;
    char line[4096];
    FILE *file;
    GetModuleFileNameW(NULL, self, 4096);
    wcscpy(path, self);
    *wcsrchr(path, '\\') = 0;
    wcscpy(wcsrchr(path, '\\'), L"\\pyvenv.cfg");
    if (!(file = _wfopen(path, L"r"))) return 106;
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, "home = ", 7)) MultiByteToWideChar(CP_UTF8, 0, line + 7, -1, home, 4000);
    home[wcscspn(home, L"\r\n")] = 0;
    wcscat(home, L"\\python.exe");
    SetEnvironmentVariableW(L"__PYVENV_LAUNCHER__", self);
    GetStartupInfoW(&start);
    limits.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE | JOB_OBJECT_LIMIT_SILENT_BREAKAWAY_OK;
    SetInformationJobObject(job, JobObjectExtendedLimitInformation, &limits, sizeof limits);
    if (!CreateProcessW(home, GetCommandLineW(), NULL, NULL, TRUE, 0, NULL, NULL, &start, &child)) return 101;
    AssignProcessToJobObject(job, child.hProcess);
    WaitForSingleObject(child.hProcess, INFINITE);
    GetExitCodeProcess(child.hProcess, &code);
    return code;
}
