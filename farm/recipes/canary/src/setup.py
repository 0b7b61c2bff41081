"""Builds canary with CMake and Ninja; README.md lists the variables that it reads."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = Path(__file__).resolve().parent
sys.path.insert(0, str(SOURCE))  # a PEP 517 backend does not put the source folder on the path

from setup_helpers import (  # noqa: E402
    EnvironmentValueError,
    check_cmake_version,
    cmake_defines,
    job_arguments,
)

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
"""Such a Python has no limited API: the wheel is for this version of it alone."""
VERSION = os.environ.get("CANARY_BUILD_VERSION") or "0.1.0"


class CMakeBuild(build_ext):
    """Hands the one extension to CMake, which builds it and the two libraries beside it."""

    def run(self) -> None:
        """Configures, compiles and installs into the folder that the wheel is made from."""
        cmake = shutil.which("cmake")
        ninja = shutil.which("ninja")
        if cmake is None:
            raise SystemExit("canary: cmake is not on the PATH")
        if ninja is None:
            raise SystemExit("canary: ninja is not on the PATH")
        try:
            answer = subprocess.run(
                [cmake, "--version"], check=True, stdout=subprocess.PIPE, text=True
            )
            check_cmake_version(answer.stdout)
            defines = cmake_defines(os.environ, VERSION)
            jobs = job_arguments(os.environ)
        except EnvironmentValueError as error:
            raise SystemExit(f"canary: {error}") from None
        build = Path(self.build_temp).resolve()
        # CMake reads CC, CFLAGS and the like only when its cache is new: an old cache keeps old
        # flags.
        shutil.rmtree(build, ignore_errors=True)
        prefix = Path(self.build_lib).resolve() / "canary"
        # What an earlier build with other settings left here would go into this wheel too.
        shutil.rmtree(prefix / "lib", ignore_errors=True)
        configure = [
            cmake,
            "-S",
            str(SOURCE),
            "-B",
            str(build),
            "-G",
            "Ninja",
            "--no-warn-unused-cli",
        ]
        configure += [f"-D{name}={value}" for name, value in defines.items()]
        if FREE_THREADED:
            configure.append(f"-DCANARY_MODULE_SUFFIX={sysconfig.get_config_var('EXT_SUFFIX')}")
        python = Path(sys.executable).as_posix()  # CMake reads a backslash as an escape
        configure += [
            f"-DCMAKE_INSTALL_PREFIX={prefix.as_posix()}",
            f"-DPython3_EXECUTABLE={python}",
        ]
        if os.name == "nt":
            install = "install"
        else:
            install = "install/strip"
        sys.stdout.flush()
        compile_and_install = [cmake, "--build", str(build), "--target", install, "--", *jobs]
        for step, command in (("configure", configure), ("build", compile_and_install)):
            code = subprocess.call(command)
            if code != 0:
                raise SystemExit(
                    f"canary: the {step} step failed with exit code {code}; its output is above"
                )


options = {}
if not FREE_THREADED:
    options["bdist_wheel"] = {"py_limited_api": "cp37"}  # as in CMakeLists.txt

setup(
    version=VERSION,
    packages=["canary"],
    ext_modules=[Extension("canary._C", sources=[], py_limited_api=not FREE_THREADED)],
    options=options,
    cmdclass={"build_ext": CMakeBuild},
    zip_safe=False,
)
