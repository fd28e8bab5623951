"""Import the object at the location of a graph: `./folder/file.py:name` or `package.module:name`.

A class of a graph's state is stored in checkpoints by its module and name, so the module of a file has the same name in
every worker: its path from the outermost package, or from the folder of the configuration file.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from runlane.domain.graph_registry import GraphSource
from runlane.errors import GraphNotLoaded, nearest

# The prefix of the names of modules whose own name another module has.
_PRIVATE: Final = "runlane_hosted_graph_"


def load_export(source: GraphSource) -> Any:
    """Return the exported object of a graph. GraphNotLoaded with the reason."""
    if source.location is None:
        return source.export
    location, _, name = source.location.rpartition(":")
    try:
        module = _import_file(_file(source, location)) if _is_file(location) else importlib.import_module(location)
    except GraphNotLoaded:
        raise
    except ModuleNotFoundError as error:
        raise GraphNotLoaded(
            f'The graph "{source.id}" does not import: {error}. Install the package, or add its folder to '
            '"dependencies".'
        ) from error
    except Exception as error:
        raise GraphNotLoaded(f'The graph "{source.id}" does not import: {type(error).__name__}: {error}') from error
    return _attribute(module, name, source)


def forget_modules(folders: Iterable[Path]) -> None:
    """Forget every imported module of these folders, so that the next load reads the changed files."""
    roots = [folder.resolve() for folder in folders]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is None or "site-packages" in file:
            continue
        path = Path(file).resolve()
        if any(path.is_relative_to(root) for root in roots) and not _is_environment(path, roots):
            del sys.modules[name]
    importlib.invalidate_caches()


def _is_environment(path: Path, roots: Iterable[Path]) -> bool:
    """Return whether a file belongs to a virtual environment inside of one of the folders."""
    found = [part for part in (".venv", "venv") if part in path.parts]
    return any((root / part / "pyvenv.cfg").is_file() for root in roots for part in found)


def _is_file(location: str) -> bool:
    return location.endswith(".py") or "/" in location


def _file(source: GraphSource, location: str) -> Path:
    path = ((source.folder or Path.cwd()) / location).resolve()
    if not path.is_file():
        raise GraphNotLoaded(f'The file "{location}" of the graph "{source.id}" does not exist. Correct its path.')
    return path


def _import_file(path: Path) -> ModuleType:
    root = path.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    if root == path.parent:
        # A module outside of a package is named from the nearest folder of the import path, so that relative imports
        # work.
        parents = [Path(entry) for entry in sys.path if entry and path.is_relative_to(Path(entry).resolve())]
        root = max(parents, key=lambda entry: len(entry.parts), default=root)
    name = ".".join(path.relative_to(root.resolve()).with_suffix("").parts)
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    if all(part.isidentifier() for part in name.split(".")):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
        else:
            if getattr(module, "__file__", None) and Path(str(module.__file__)).resolve() == path:
                return module
    return _import_under_private_name(path)


def _import_under_private_name(path: Path) -> ModuleType:
    """Import a file whose name another module has, such as `test.py`."""
    name = _PRIVATE + re.sub(r"\W", "_", f"{path.parent.name}_{path.stem}")
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise GraphNotLoaded(f'The file "{path.name}" is not a Python module.')
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _attribute(module: ModuleType, name: str, source: GraphSource) -> Any:
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            hint = nearest(part, [key for key in vars(module) if not key.startswith("_")])
            raise GraphNotLoaded(f'The graph "{source.id}": {source.location} does not exist{hint}.') from None
    return found
