"""First bytes of libraries."""

ELF_MAGIC = b"\x7fELF"
PE_MAGIC = b"MZ"
FATBIN_MAGIC = b"\x50\xed\x55\xba"  # of CUDA, as a file of its own (nvcc -fatbin)
