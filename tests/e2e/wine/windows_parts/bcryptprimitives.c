/* bcryptprimitives.dll, which Windows has since 7 and Wine only since 9: Rust's standard library asks it for random
 * numbers. Wine's own generator answers. */
#include <windows.h>
BOOLEAN NTAPI SystemFunction036(void *buffer, ULONG length);
__declspec(dllexport) BOOL WINAPI ProcessPrng(BYTE *buffer, SIZE_T length) {
    return SystemFunction036(buffer, (ULONG)length);
}
