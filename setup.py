"""Builds libcoda.so with make and puts it beside the Python files: the wheel needs no compiler and no other package."""

import os
import pathlib
import re
import shutil
import subprocess

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = pathlib.Path(__file__).resolve().parent


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        library = ROOT / "build" / "libcoda.so"
        subprocess.run(["make", f"-j{os.cpu_count() or 1}", "build/libcoda.so"], cwd=ROOT, check=True)
        place = ROOT / "python" / "coda" if self.editable_mode else pathlib.Path(self.build_lib) / "coda"
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, place / "libcoda.so")


class WithLibrary(Distribution):
    def has_ext_modules(self):
        return True  # for this machine's kind only


class WheelOfThisPlatform(bdist_wheel):
    """One wheel serves every Python: it carries a library and no extension module."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


version = re.search(r'CODA_VERSION "(.*)"', (ROOT / "include" / "coda.h").read_text()).group(1)
setup(version=version, distclass=WithLibrary, options={"build": {"build_base": "build/python"}},
      cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": WheelOfThisPlatform})
