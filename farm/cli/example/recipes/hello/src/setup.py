import os

from setuptools import Extension, setup

setup(
    name="hello",
    version=os.environ.get("FARM_VERSION", "0.1.0"),
    ext_modules=[Extension("hello", ["hello.cpp"], language="c++")],
)
