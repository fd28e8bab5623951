"""The App that a command is given as module:name."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from runlane.app import App
from runlane.errors import AppNotFound, RunlaneError, nearest


def find_app(path: str) -> App:
    """Import the App at module:name, with the current folder on the path."""
    module_name, _, name = path.partition(":")
    if not module_name:
        raise AppNotFound(f'"{path}" is not a valid app path. Form: package.module:name, such as shop.tasks:app')
    if module_name.endswith(".py") or "/" in module_name:
        raise AppNotFound(f'"{path}" is the path of a file. Name its module: {_module_of(module_name)}:{name or "app"}')
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except RunlaneError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise AppNotFound(f"{module_name} does not import: {error}. Install what it needs, or fix it.") from error
        raise AppNotFound(
            f'The module "{module_name}" does not exist. Run the command from the folder that contains it ({here} is '
            "searched), or install the package."
        ) from None
    except Exception as error:
        raise AppNotFound(f"{module_name} does not import: {type(error).__name__}: {error}") from error
    apps = {key: value for key, value in vars(module).items() if isinstance(value, App)}
    if not name and len(apps) == 1:
        return next(iter(apps.values()))
    found = getattr(module, name, None) if name else None
    if isinstance(found, App):
        return found
    if not apps:
        raise AppNotFound(f"{module_name} has no App. Create one there: app = runlane.App()")
    raise AppNotFound(f'{module_name} has no App "{name}"{nearest(name, apps)}. Apps there: {", ".join(sorted(apps))}.')


def _module_of(file: str) -> str:
    """Return the module that a file probably is: relative to the current folder, or else in its own folder."""
    path = Path(file).with_suffix("") if file.endswith(".py") else Path(file)
    return path.name if path.is_absolute() or ".." in path.parts else ".".join(path.parts)


def task_names(path: str | None) -> list[str] | None:
    """Return the tasks of the App at this path; None without a path."""
    return None if path is None else sorted(find_app(path).tasks)
