"""Nodes as real processes that serve a model together, each with folders of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agent.models.folder import ModelFolder
from bench.cluster import START_LIMIT_S, Cluster


class StageCluster(Cluster):
    """One head and agents that serve model folders of their own; ended and removed at exit.

    The head has no folder of the model, and the names of the agents are their identities.

    Args:
        served: by an agent's name, the folders that it serves: stages of one model.
        threads: engine threads of each worker.
        lanes: of each worker.
        settings: further environment of all processes.
    """

    def __init__(
        self,
        served: Mapping[str, Sequence[ModelFolder]],
        *,
        threads: int = 1,
        lanes: int = 8,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        folders = [folder for each in served.values() for folder in each]
        super().__init__(folders[0].path, threads=threads, lanes=lanes, nodes=0, settings=settings)
        (self.state / "models" / self.model).unlink()
        self.model = next(folder.stage.model for folder in folders if folder.stage is not None)
        self.names = list(served)
        for name, own in served.items():
            for folder in own:
                self.put(name, folder.path)

    def put(self, name: str, folder: Path) -> None:
        """Put a model folder into those of an agent, which has it when it is started."""
        models = self.models_of(name)
        models.mkdir(parents=True, exist_ok=True)
        (models / folder.name).symlink_to(folder.resolve())

    def models_of(self, name: str) -> Path:
        """The folder of an agent's model folders."""
        return self.state / "served" / name

    def start_node(self, name: str) -> None:
        """Start an agent; `wait_ready` waits until the model is served."""
        models = str(self.models_of(name))
        self._start(
            name,
            *("-m", "agent", "--state", str(self.state), "--name", name),
            *("--identity", name, "--models-folder", models),
        )

    def wait_ready(self) -> None:
        """Wait until every worker is loaded, and every last stage has an open chain."""
        until = time.monotonic() + START_LIMIT_S
        while not self.is_whole():
            self._check_alive(until)
            time.sleep(0.05)

    def is_whole(self) -> bool:
        """Whether all that the agents have is served."""
        phases = [model["phase"] for node in self.client.nodes() for model in node["models"]]
        served = sum(len(list(self.models_of(name).iterdir())) for name in self.names)
        return phases.count("ready") == len(phases) == served

    def chains(self) -> list[list[str]]:
        """The nodes of every open chain, in order."""
        return [
            [stage["node"] for stage in chain["stages"]]
            for chain in self.client.status()["chains"]
            if chain["state"] == "open"
        ]

    def node(self, name: str) -> dict[str, Any]:
        """What the head says of a node."""
        return next(node for node in self.client.nodes() if node["identity"] == name)
