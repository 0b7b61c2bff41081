"""What libraries begin with."""

ELF_MAGIC = b"\x7fELF"
PE_MAGIC = b"MZ"
