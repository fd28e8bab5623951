"""Prepare what an image needs: `slim.py packages VENV` in the build stage, `slim.py system FOLDER NAME...` in the base.

Packages keep their modules, data, licences and metadata, and lose debug symbols, C sources and their own tests. Modules
of other projects are kept as bytecode alone: a traceback has their files and line numbers, not the text of lines. So is
the standard library.

The system is copied, never deleted from: Python, a shell with the usual tools, certificates, time zones, and the
libraries that these and compiled packages need. What installs packages or manages users stays behind. The packages that
are named are copied with everything that they depend on.
"""

from __future__ import annotations

import compileall
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

# Read by compilers and type checkers only.
SOURCES = {".c", ".cpp", ".h", ".hpp", ".pxd", ".pyi", ".pyx"}
# Folders of tests that packages install. Data folders of the same name inside other packages are kept.
TESTS = ("tests", "test")
# The package whose sources are kept.
OWN = "runlane"
ELF = b"\x7fELF"

# Packages of the distribution that stay, each with the libraries that its programs load. Of openssl it is the links by
# which the library finds certificates and its configuration.
KEPT = {
    "base-files", "base-passwd", "ca-certificates", "coreutils", "dash", "findutils", "grep", "libc-bin",
    "media-types", "netbase", "openssl", "sed", "tar", "tzdata",
}  # fmt: skip
# Compiled packages are linked with these.
KEPT_LIBRARIES = {"libgcc-s1", "libstdc++6"}
KEPT_PYTHON = re.compile(r"(lib)?python3[\w.-]*")
# Where the distribution does not own the files: Python of the official image.
OWN_FOLDER = "/usr/local"
# Documentation, translations, character sets that no program here converts, files for compilers and debuggers, time
# zones with leap seconds, programs that compile locales and time zones.
LEFT_OUT = re.compile(
    r"/usr/share/(doc|doc-base|info|lintian|locale|man)/|/usr/lib/[^/]+/gconv/|/usr/(local/)?include/|/usr/local/share/"
    r"|/usr/share/(gcc|zoneinfo/(posix|right))/|/usr/lib/valgrind/|/s?bin/(iconvconfig|localedef|zic)$"
    r"|/(python3[\d.]*/(ensurepip|idlelib|lib2to3|pydoc_data|test|tkinter|turtledemo|config-[^/]+)|__pycache__)/"
    r"|/site-packages/(pip|setuptools|wheel)[-/]|/bin/(2to3|c_rehash|idle3|openssl|pip|pydoc)[^/]*$"
    r"|/lib-dynload/(nis|_dbm|_gdbm|_tkinter|_test\w*|_xxtestfuzz|xx\w+)\.|\.a$"
    # A container gets its own; the certificates are copied by an instruction of their own.
    r"|^/etc/(hostname|hosts|resolv\.conf|ssl/certs/.*)$"
)
DPKG = Path("/var/lib/dpkg")


def removable(site: Path) -> Iterator[Path]:
    """Yield the files and folders of installed packages that no process reads."""
    yield from (path for path in site.rglob("*") if path.suffix in SOURCES and path.is_file())
    # Lists of files for tools that remove packages, which the image does not have.
    yield from site.glob("*.dist-info/RECORD")
    for name in TESTS:
        yield from (path.parent for path in site.glob(f"*/{name}/__init__.py"))


def compile_alone(*paths: Path, prefix: Path = Path("/")) -> None:
    """Compile modules and remove their sources, which are in a folder that stands for the root.

    Without sources a traceback cannot mark the columns of a line, so bytecode does not have them either.
    """
    command = [sys.executable, "-X", "no_debug_ranges", "-m", "compileall", "-q", "-b"]
    options = ["--invalidation-mode", "unchecked-hash", "-s", str(prefix), "-p", "/"]
    # A file that is not a module of this version of Python stays as it is, and makes the status 1.
    subprocess.run([*command, *options, *map(str, paths)], check=False, stdout=subprocess.DEVNULL)
    for path in paths:
        for source in list(path.rglob("*.py")) if path.is_dir() else [path]:
            if source.with_suffix(".pyc").exists():
                source.unlink()


def strip(root: Path) -> None:
    """Remove symbols that only debuggers use from libraries and programs."""
    binaries = [path for path in root.rglob("*") if _is_binary(path)]
    if binaries:
        subprocess.run(["strip", "--strip-unneeded", *binaries], check=True)


def _is_binary(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == ELF


def slim_packages(environment: Path) -> None:
    """Remove from an environment what no process reads, and compile the rest."""
    (site,) = (environment / "lib").glob("python*/site-packages")
    for path in list(removable(site)):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    strip(environment)
    own = site / OWN
    compileall.compile_dir(own, maxlevels=99, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    others = [path for path in sorted(site.iterdir()) if path != own and (path.is_dir() or path.suffix == ".py")]
    compile_alone(*others)


def copy_system(target: Path, wanted: Iterable[str]) -> None:
    """Copy what an image needs of this system into an empty folder, and the packages that are named."""
    owned = _files_of_packages()
    entries = read_entries((DPKG / "status").read_text())
    kept = {name for name in owned if name in KEPT | KEPT_LIBRARIES or KEPT_PYTHON.fullmatch(name)}
    kept |= with_dependencies(wanted, entries)
    others = [*_below(Path(OWN_FOLDER)), *_unowned(Path("/etc"), owned)]
    while True:
        files = {path for name in kept for path in owned[name]} | {path for path in others if not _left_out(path)}
        needed = _owners(_libraries(files), owned) - kept
        if not needed:
            break
        kept |= needed
    for path in [*(path for path in Path("/").iterdir() if path.is_symlink()), *sorted(files)]:
        _copy(path, target)
    _copy_list_of_packages(kept, entries, target)
    subprocess.run(["/sbin/ldconfig", "-r", str(target)], check=True)
    library = target / Path(sysconfig.get_path("stdlib")).relative_to("/")
    compile_alone(library, prefix=target)


def _files_of_packages() -> dict[str, list[Path]]:
    """Return the files and folders of each package of the distribution that are kept with it."""
    owned: dict[str, list[Path]] = {}
    for listing in (DPKG / "info").glob("*.list"):
        paths = (Path(line) for line in listing.read_text().splitlines() if line != "/.")
        name = listing.stem.partition(":")[0]
        owned[name] = [real for path in paths if not _left_out(real := _real(path)) and os.path.lexists(real)]
    return owned


def _real(path: Path) -> Path:
    """Return the path without links in its folder: /lib is a link to /usr/lib."""
    return Path(os.path.realpath(path.parent)) / path.name


def _left_out(path: Path) -> bool:
    return LEFT_OUT.search(str(path) if path.is_symlink() or not path.is_dir() else f"{path}/") is not None


def _below(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*"))


def _unowned(folder: Path, owned: dict[str, list[Path]]) -> Iterator[Path]:
    """Yield the files of a folder that no package lists: the installation has created them."""
    listed = {path for paths in owned.values() for path in paths}
    return (path for path in _below(folder) if path not in listed)


def _libraries(files: Iterable[Path]) -> set[Path]:
    """Return the shared libraries that programs and libraries load."""
    binaries = [str(path) for path in files if _is_binary(path)]
    done = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False)
    return {_real(Path(found)) for found in re.findall(r"(?:=> |^\t)(/\S+)", done.stdout, re.MULTILINE)}


def _owners(files: set[Path], owned: dict[str, list[Path]]) -> set[str]:
    return {name for name, paths in owned.items() if not files.isdisjoint(paths)}


def _copy(path: Path, target: Path) -> None:
    """Copy a file, a link, or a folder without its content."""
    copied = target / path.relative_to("/")
    if path.is_dir() and not path.is_symlink():
        copied.mkdir(parents=True, exist_ok=True)
        shutil.copystat(path, copied)
    elif not os.path.lexists(copied):
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copied, follow_symlinks=False)


def read_entries(status: str) -> dict[str, str]:
    """Return the entry of each package in the list of installed packages."""
    found = ((re.match(r"Package: (\S+)", entry), entry.strip()) for entry in status.split("\n\n"))
    return {name[1]: entry for name, entry in found if name is not None}


def with_dependencies(wanted: Iterable[str], entries: dict[str, str]) -> set[str]:
    """Return packages with the installed ones that they depend on. An unknown name is an error."""
    found: set[str] = set()
    missing = sorted(name for name in wanted if name not in entries)
    if missing:
        sys.exit(f"Not installed: {', '.join(missing)}.")
    new = set(wanted)
    while new:
        found |= new
        lines = re.findall(r"^(?:Pre-)?Depends: (.*)$", "\n".join(entries[name] for name in new), re.MULTILINE)
        names = {name for line in lines for name in re.findall(r"(?:^|[,|] *)([a-z0-9][a-z0-9+.-]*)", line)}
        new = (names & entries.keys()) - found
    return found


def _copy_list_of_packages(kept: set[str], entries: dict[str, str], target: Path) -> None:
    """Copy the entries of packages, which scanners for vulnerabilities read."""
    place = target / DPKG.relative_to("/")
    (place / "info").mkdir(parents=True, exist_ok=True)
    (place / "status").write_text("".join(f"{entries[name]}\n\n" for name in sorted(kept & entries.keys())))
    for listing in (DPKG / "info").glob("*.list"):
        if listing.stem.partition(":")[0] in kept:
            _copy(listing, target)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["packages", environment]:
            slim_packages(Path(environment))
        case ["system", folder, *names]:
            copy_system(Path(folder), names)
        case _:
            sys.exit("Usage: slim.py packages VENV | slim.py system FOLDER [PACKAGE...]")
