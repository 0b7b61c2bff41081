# cmake -DINPUT=a.fatbin -DOUTPUT=a.cpp -P embed.cmake: a file as an array of bytes.
file(READ "${INPUT}" hex HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
file(WRITE "${OUTPUT}" "extern \"C\" {\nalignas(16) extern const unsigned char canary_fatbin[] = {${bytes}};\n}\n")
