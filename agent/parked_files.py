"""Files of parked sessions: what workers are asked about them, and which of them are kept.

One folder serves all workers of the node, so that their limits are of all files together.
"""

from __future__ import annotations

from pathlib import Path

from agent.actions import ForgetParked, KeepParked, SendToWorker
from agent.served_model import ServedModel
from agent.worker.lane_folder import forget, forget_others
from bus.agent_parking import NodeParking
from bus.ids import ModelName
from bus.log import EventLog
from bus.messages.worker import Forget, Park, Restore

FOLDER = "parked"


def park_folder(node_folder: Path) -> Path:
    """Where an agent's workers park."""
    return node_folder / FOLDER


def to_worker(
    parking: NodeParking, model: ModelName, found: ServedModel | None, message: object
) -> SendToWorker | ForgetParked | None:
    """What is to be done for a message to a model's worker, which only one that is ready parks by.

    Args:
        found: the model, when this node serves it.
    """
    is_ready = found is not None and found.phase == "ready"
    if isinstance(message, Forget) and not is_ready:
        return ForgetParked(session=message.session)
    if isinstance(message, Park | Restore) and not is_ready:
        parking.not_asked(model, message, f"{model} is not ready on this node")
        return None
    return SendToWorker(model=model, message=message)


class ParkedFiles:
    """Removes files that nobody means any more.

    Args:
        folder: of the files; need not be there.
        log: for what can not be removed, which changes nothing else.
    """

    def __init__(self, folder: Path, log: EventLog) -> None:
        self._folder = folder
        self._log = log

    def act(self, action: KeepParked | ForgetParked) -> None:
        """Do what the core asks."""
        try:
            if isinstance(action, ForgetParked):
                forget(self._folder, action.session)
            elif removed := forget_others(self._folder, action.sessions):
                self._log.info("parked_files_removed", files=removed)
        except OSError as error:
            self._log.error("parked_file_not_removed", folder=self._folder, error=error.strerror)
