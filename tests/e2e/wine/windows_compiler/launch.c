/* NAME.exe runs the program that NAME.txt beside it names. Lines of the text, in this order in the command:
     TEXT          before the arguments
     ?WORD TEXT    only if the arguments hold WORD;  !WORD TEXT: only if they do not
     +TEXT, +?WORD TEXT, +!WORD TEXT   after the arguments
   A text whose first line begins with "=" is printed instead, without that sign. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

static char command[32768];

static void add(const char *text) {
    if (strlen(command) + strlen(text) + 2 > sizeof command) exit(125);
    strcat(command, text);
    strcat(command, " ");
}

static const char *arguments(void) {
    const char *rest = GetCommandLineA();
    int quoted = 0;
    for (; *rest && (quoted || *rest != ' '); rest++) quoted ^= *rest == '"';
    return rest + strspn(rest, " ");
}

static void add_line(char *line, const char *rest) {
    if (*line == '?' || *line == '!') {
        char *word = line + 1, *text = strchr(word, ' ');
        if (!text) exit(124);
        *text = 0;
        if ((strstr(rest, word) != NULL) == (*line == '?')) add(text + 1);
    } else {
        add(line);
    }
}

int main(void) {
    static char lines[64][8192];
    char path[MAX_PATH];
    const char *rest = arguments();
    int count = 0;
    GetModuleFileNameA(NULL, path, sizeof path);
    strcpy(strrchr(path, '.'), ".txt");
    FILE *file = fopen(path, "r");
    if (!file) return 126;
    while (count < 64 && fgets(lines[count], sizeof lines[count], file)) {
        lines[count][strcspn(lines[count], "\r\n")] = 0;
        if (*lines[count]) count++;
    }
    fclose(file);
    if (*lines[0] == '=') {
        for (int i = 0; i < count; i++) puts(lines[i] + (i == 0));
        return 0;
    }
    for (int i = 0; i < count; i++) if (*lines[i] != '+') add_line(lines[i], rest);
    add(rest);
    for (int i = 0; i < count; i++) if (*lines[i] == '+') add_line(lines[i] + 1, rest);
    STARTUPINFOA start = {.cb = sizeof start};
    PROCESS_INFORMATION process;
    if (!CreateProcessA(NULL, command, NULL, NULL, TRUE, 0, NULL, NULL, &start, &process)) return 127;
    WaitForSingleObject(process.hProcess, INFINITE);
    DWORD code = 1;
    GetExitCodeProcess(process.hProcess, &code);
    return (int)code;
}
