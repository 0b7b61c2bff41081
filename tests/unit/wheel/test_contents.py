"""What repair looks at."""

from farm.wheel.archive import Archive
from farm.wheel.library import read_needs


def test_only_files_with_a_wrong_length_in_record_and_libraries_are_read(tmp_path, make_pe, make_wheel, monkeypatch):
    files = {"torch/a.py": b"a", "torch/b.py": b"b", "torch/lib/a.dll": make_pe(needed=["c10.dll"])}
    read = []
    real = Archive.content
    monkeypatch.setattr(
        Archive, "content", lambda self, name, *args, **kwargs: read.append(name) or real(self, name, *args, **kwargs)
    )
    with Archive(make_wheel(tmp_path, files)) as archive:
        believed = {name: ("00", entry.size) for name, entry in archive.members.items()}
        contents = read_needs(archive, {**believed, "torch/b.py": ("00", 2)})
    assert read == ["torch/b.py", "torch/lib/a.dll"]
    assert contents.files["torch/a.py"] == ("00", 1)
    assert [(library.path, library.needed) for library in contents.libraries] == [("torch/lib/a.dll", ("c10.dll",))]
