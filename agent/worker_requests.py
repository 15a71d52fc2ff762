"""What sessions ask of workers, on its way there: declined where no worker can take it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from agent.actions import ForgetParked, SendToWorker
from agent.blobs import NodeBlobs
from agent.parked_files import to_worker
from agent.served_model import ServedModel
from agent.worker_jobs import why_not
from bus.agent_records import SubmitToWorker, ToWorker
from bus.agent_session import AgentSession
from bus.errors import BlobMissing
from bus.ids import ModelName
from bus.messages import worker
from bus.messages.parts import BlobRef


class WorkerRequests:
    """Owned by the node's core, which shares `models`."""

    def __init__(
        self,
        models: Mapping[ModelName, ServedModel],
        session: AgentSession,
        blobs: NodeBlobs | None,
    ) -> None:
        self._models = models
        self._session = session
        self._blobs = blobs

    def take(self, wanted: SubmitToWorker | ToWorker) -> SendToWorker | ForgetParked | None:
        """What is to be done for one; None when it was declined."""
        match wanted:
            case SubmitToWorker(model=model, submit=submit):
                return self._submit(model, submit)
            case ToWorker(model=model, message=message):
                found = self._models.get(model)
                return to_worker(self._session.parking, model, found, message)

    def files_of(self, blobs: tuple[BlobRef, ...]) -> tuple[str, ...]:
        """The paths of files that the head has put here, in their order.

        Raises:
            BlobMissing: one is not here.
        """
        if self._blobs is None:
            raise BlobMissing("this node takes no files")
        return self._blobs.files_of(blobs)

    def _submit(self, model: ModelName, submit: worker.Submit) -> SendToWorker | None:
        refusal = why_not(model, self._models.get(model))
        if refusal is not None:
            self._session.decline(submit.generation, *refusal)
            return None
        if blobs := self._session.blobs_of(submit.generation):
            try:
                submit = replace(submit, files=self.files_of(blobs))
            except BlobMissing as error:
                self._session.decline(submit.generation, error.code, error.message)
                return None
        return SendToWorker(model=model, message=submit)
