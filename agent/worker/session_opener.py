"""Opens a model's sessions: with weights from the copy that all processes share, or as they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agent.models.folder import ModelFolder
from agent.models.onnx_runtime import onnxruntime
from agent.worker.page_cache import gather_pages
from agent.worker.prepacked import DATA, open_prepacked
from agent.worker.provider import Target, check_provider, preload_cuda
from agent.worker.sessions import SessionOptions, open_session
from bus.errors import ModelIncomplete


class SessionOpener:
    """Opens a folder's sessions.

    Args:
        folder: of the model.
        target: where it runs.
        threads: of each session.
        prepack: whether weights are mapped from a copy beside the model, where that can be.

    Attributes:
        prepack: whether weights come from a copy that all processes share.
        threads: of each session.
    """

    def __init__(self, folder: ModelFolder, target: Target, threads: int, *, prepack: bool) -> None:
        self._folder = folder
        self._target = target
        self.threads = threads
        # On a GPU weights are in its memory.
        self.prepack = prepack and target.gpu is None
        if target.gpu:
            preload_cuda()

    def open(
        self, *, spin: bool, provider_options: Mapping[str, str] | None = None
    ) -> onnxruntime.InferenceSession:
        """A session whose threads spin or not.

        Raises:
            ModelIncomplete: the graph can not be loaded.
        """
        session = self._prepacked(spin) if self.prepack else None
        if session is None:
            self.prepack = False
            session = self._plain(spin, provider_options or {})
        check_provider(session, self._target)
        return session

    def _prepacked(self, spin: bool) -> onnxruntime.InferenceSession | None:
        target = self._target
        options = SessionOptions(threads=self.threads, spin=spin, optimized=True)

        def opened(copy: Path) -> onnxruntime.InferenceSession:
            gather_pages(copy.with_name(DATA))
            return open_session(copy, target.providers, options)

        return open_prepacked(self._folder, target.graph, target.providers[0], opened)

    def _plain(
        self, spin: bool, provider_options: Mapping[str, str]
    ) -> onnxruntime.InferenceSession:
        options = SessionOptions(threads=self.threads, spin=spin, provider_options=provider_options)
        try:
            return open_session(self._target.graph, self._target.providers, options)
        except Exception as error:  # its errors share no narrower base
            name, device = self._folder.name, self._target.device
            raise ModelIncomplete(
                f"model {name} can not be loaded on {device}: {error}; make it again with "
                f"`{self._folder.import_command}`",
                param="model",
            ) from error
