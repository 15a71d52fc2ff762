"""An encoder in an ONNX Runtime session: batches of texts in, vectors out.

It runs on CPU, whatever the machine has: a folder has the float32 graph only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agent.models.blocks import FloatArray
from agent.models.folder import EncoderFigures, ModelFolder
from agent.models.sentence_vectors import check_vectors, hidden_states, pool
from agent.worker.embed_queue import EmbedQueue, Piece
from agent.worker.numerics import encoder_numerics_id
from agent.worker.sessions import open_on_cpu
from bus.errors import Internal, ModelIncomplete


class Encoder:
    """Owns a session. One thread drives it.

    Args:
        folder: an opened folder of kind encoder.
        threads: of the session; 0 takes all processors that this process may use.

    Raises:
        ModelIncomplete: it is of another kind, or its graph can not be loaded.
    """

    def __init__(self, folder: ModelFolder, *, threads: int = 0) -> None:
        self.folder = folder
        self.figures = _figures(folder)
        self.numerics = encoder_numerics_id(folder)
        self._session = open_on_cpu(folder, folder.graph, threads)

    @property
    def window(self) -> int:
        """Most tokens of a text."""
        return self.folder.signature.max_positions

    def make_queue(self) -> EmbedQueue:
        """A queue for this model."""
        return EmbedQueue(
            window=self.window,
            vocab=self.folder.signature.vocab,
            pooling=self.figures.pooling,
            normalize=self.figures.normalize,
        )

    def self_test(self) -> None:
        """Run the folder's test.

        Raises:
            ModelIncomplete: the graph no longer gives the vector that it gave when it was made.
        """
        check_vectors(self._session, self.folder)

    def vectors(self, batch: Sequence[Piece]) -> list[bytes | None]:
        """Run texts as one batch.

        Returns:
            A vector of each, float32 little-endian; None where it would be no numbers.

        Raises:
            Internal: ONNX Runtime failed.
        """
        try:
            states = hidden_states(self._session, [piece.ids for piece in batch])
        except Exception as error:  # its errors share no narrower base
            raise Internal(f"ONNX Runtime failed in a run: {error}") from error
        return [_packed(piece, of_text) for piece, of_text in zip(batch, states, strict=True)]


def _packed(piece: Piece, states: FloatArray) -> bytes | None:
    vector = pool(states, piece.pooling, normalize=piece.normalize)
    return vector.astype("<f4").tobytes() if np.isfinite(vector).all() else None


def _figures(folder: ModelFolder) -> EncoderFigures:
    if folder.encoder is None:
        raise ModelIncomplete(f"model {folder.name} makes text and no vectors", param="model")
    return folder.encoder
