"""Python for Windows under Wine: what it is, and the farm on it."""


def test_it_is_pythons_own_windows_build(windows_python):
    done = windows_python.run("-c", "import sys, os; print(sys.version); print(os.sep, os.name); print(sys.executable)")
    assert done.returncode == 0, done.stderr
    version, kind, exe = done.stdout.splitlines()
    assert version.startswith("3.11.9 (tags/v3.11.9:de54cf5, ")
    assert version.endswith("[MSC v.1938 64 bit (AMD64)]")
    assert kind == "\\ nt"
    assert exe.endswith("\\python\\python.exe")
