/* rc.exe: an empty resource file, whatever it is asked for: CMake links one into each program and library. */
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    static const unsigned char empty[32] = {[4] = 0x20, [8] = 0xff, [9] = 0xff, [12] = 0xff, [13] = 0xff};
    for (int i = 1; i < argc; i++) {
        const char *name = !strncmp(argv[i], "/fo", 3) || !strncmp(argv[i], "-fo", 3) ? argv[i] + 3 : NULL;
        if (!name) continue;
        FILE *file = fopen(*name || i + 1 == argc ? name : argv[i + 1], "wb");
        return !file || fwrite(empty, sizeof empty, 1, file) != 1 || fclose(file);
    }
    return 1;
}
