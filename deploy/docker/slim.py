"""Remove what an image does not need: `slim.py packages VENV` in the build stage, `slim.py system` in the base.

Packages keep their modules, data, licences and metadata, and lose debug symbols, C sources and their own tests. Modules
of other projects are kept as bytecode alone: a traceback has their files and line numbers, not the text of lines. The
base loses pip, the parts of the standard library that install packages or open windows, documentation and caches.
"""

from __future__ import annotations

import compileall
import py_compile
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

# Read by compilers and type checkers only.
SOURCES = {".c", ".cpp", ".h", ".hpp", ".pxd", ".pyi", ".pyx"}
# Folders of tests that packages install. Data folders of the same name inside other packages are kept.
TESTS = ("tests", "test")
INSTALLERS = ("ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "tkinter", "turtledemo")
# Not the caches of users: a build may mount the cache of its host there.
SYSTEM = (
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "var/cache",
    "var/lib/apt/lists",
    "var/log",
)
# The package whose sources are kept.
OWN = "runlane"
ELF = b"\x7fELF"


def removable(site: Path) -> Iterator[Path]:
    """Yield the files and folders of installed packages that no process reads."""
    yield from (path for path in site.rglob("*") if path.suffix in SOURCES and path.is_file())
    for name in TESTS:
        yield from (path.parent for path in site.glob(f"*/{name}/__init__.py"))


def compile_packages(site: Path) -> None:
    """Compile every module, and remove the sources of other projects, which are read to compile them."""
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    for path in sorted(site.iterdir()):
        if path.name == OWN:
            compileall.compile_dir(path, maxlevels=99, quiet=1, invalidation_mode=mode)
        elif path.is_dir():
            compileall.compile_dir(path, maxlevels=99, quiet=1, invalidation_mode=mode, legacy=True)
        elif path.suffix == ".py":
            compileall.compile_file(path, quiet=1, invalidation_mode=mode, legacy=True)
    for source in list(site.rglob("*.py")):
        # A file that is not a module of this version of Python stays as it is.
        if source.relative_to(site).parts[0] != OWN and source.with_suffix(".pyc").exists():
            source.unlink()


def strip(root: Path) -> None:
    """Remove symbols that only debuggers use from libraries and programs."""
    binaries = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink() and _is_binary(path)]
    if binaries:
        subprocess.run(["strip", "--strip-unneeded", *binaries], check=True)


def _is_binary(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == ELF


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def slim_packages(environment: Path) -> None:
    (site,) = (environment / "lib").glob("python*/site-packages")
    for path in list(removable(site)):
        if path.exists():
            _remove(path)
    strip(environment)
    compile_packages(site)


def slim_system() -> None:
    library = Path(sysconfig.get_path("stdlib"))
    for name in INSTALLERS:
        _remove(library / name)
    for pattern in ("pip", "pip-*", "setuptools", "setuptools-*", "wheel", "wheel-*"):
        for path in (library / "site-packages").glob(pattern):
            _remove(path)
    for program in ("pip*", "idle3*", "2to3*", "pydoc3*"):
        for path in (Path(sys.base_prefix) / "bin").glob(program):
            _remove(path)
    for name in SYSTEM:
        for path in (Path("/") / name).glob("*"):
            # A folder that the build mounts is not part of the image, and its content belongs to the host.
            if not path.is_mount():
                _remove(path)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["packages", environment]:
            slim_packages(Path(environment))
        case ["system"]:
            slim_system()
        case _:
            sys.exit("Usage: slim.py packages VENV | slim.py system")
