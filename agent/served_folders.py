"""Which models this node serves, where their folders are, and what was changed while it ran.

The configuration says what a node begins with. A model that was loaded or unloaded at run time is
noted in `models.json` of the node's folder, so that a restart serves the same set:

    {"loaded": ["gemma"], "unloaded": ["smollm2"]}

Only differences are kept: a model that is imported later is served at the next start where the
configuration says so. Without the file, the configuration alone counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from agent.models.folder import ModelFolder
from agent.models.registry import Unusable, find_model, list_models
from bus.errors import StoreCorrupt
from bus.ids import ModelName
from bus.state import write_atomically

CHANGES_FILE = "models.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChanges:
    """Models that were loaded, and unloaded, since. Invariant: none is in both."""

    loaded: frozenset[ModelName] = frozenset()
    unloaded: frozenset[ModelName] = frozenset()

    def has(self, model: ModelName) -> bool:
        """Whether something was changed about a model."""
        return model in self.loaded or model in self.unloaded

    def after(self, model: ModelName, *, served: bool) -> ModelChanges:
        """The same, with one model served from now on, or not."""
        one = frozenset({model})
        if served:
            return ModelChanges(loaded=self.loaded | one, unloaded=self.unloaded - one)
        return ModelChanges(loaded=self.loaded - one, unloaded=self.unloaded | one)


NO_CHANGES = ModelChanges()


def read_changes(node_folder: Path) -> ModelChanges:
    """What was changed; nothing where no file is.

    Raises:
        StoreCorrupt: the file is damaged.
    """
    file = node_folder / CHANGES_FILE
    try:
        found = json.loads(file.read_text("utf-8"))
        loaded, unloaded = (
            frozenset(ModelName(str(name)) for name in list(found[key]))
            for key in ("loaded", "unloaded")
        )
    except FileNotFoundError:
        return NO_CHANGES
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StoreCorrupt(
            f"{file} can not be read ({error}); remove it to serve what the configuration says, "
            "and load or unload models again"
        ) from error
    return ModelChanges(loaded=loaded, unloaded=unloaded - loaded)


def write_changes(node_folder: Path, changes: ModelChanges) -> None:
    """Keep what was changed.

    Raises:
        OSError: it can not be written.
    """
    content = {"loaded": sorted(changes.loaded), "unloaded": sorted(changes.unloaded)}
    write_atomically(node_folder / CHANGES_FILE, json.dumps(content, indent=1) + "\n")


def forget_removed(
    node_folder: Path, changes: ModelChanges, folder: Path, names: tuple[str, ...]
) -> ModelChanges:
    """Keep what still counts of the changes: what is said of a removed model is forgotten.

    So a model that is imported under the same name later is served as the configuration says. A
    folder of models that is not there at all, such as a disk that is not mounted, says nothing, and
    what the configuration names stays unloaded.

    Raises:
        OSError: it can not be written.
    """
    if not folder.is_dir():
        return changes
    known = frozenset(map(ModelName, (*list_models(folder), *names)))
    left = ModelChanges(loaded=changes.loaded & known, unloaded=changes.unloaded & known)
    if left != changes:
        write_changes(node_folder, left)
    return left


def served_folders(
    folder: Path, names: tuple[str, ...], changes: ModelChanges = NO_CHANGES
) -> dict[ModelName, ModelFolder | Unusable]:
    """Choose the models of a node.

    A folder that can not be served is chosen too when nobody named it: its worker says what is
    wrong with it, the head hears that, and it is served once it was repaired. A model that was
    loaded at run time and is not there any more is passed over.

    Args:
        folder: of the model folders.
        names: those to serve; none means all in the folder.
        changes: goes over both.

    Raises:
        NotFound: a named model is not there.
        ModelIncomplete: a named model lacks a file.
    """
    here = {ModelName(name): found for name, found in list_models(folder).items()}
    begun = {ModelName(name) for name in names} or set(here)
    for name in sorted(begun - changes.unloaded):
        if names:
            find_model(folder, name)
    chosen = (begun | changes.loaded) - changes.unloaded
    return {name: found for name, found in here.items() if name in chosen}
