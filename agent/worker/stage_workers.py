"""What a worker process is when its model is a stage: the last one drives, others execute."""

from __future__ import annotations

from collections.abc import Callable

from agent.stage_status import stage_status
from agent.worker.driver import DriverEngine
from agent.worker.driver_loop import DriverWorker
from agent.worker.executor import Executor
from agent.worker.executor_loop import ExecutorWorker
from agent.worker.grammar import GrammarBuilder
from agent.worker.kv_cache import lane_tokens
from agent.worker.loop import WorkerLoop
from agent.worker.mailbox import Pipe
from agent.worker.stage_runner import StageRunner
from bus.ids import WorkerIncarnation
from bus.messages.worker import Ready
from bus.text.tokenizer import TextModel
from bus.text.tokenizer_files import folder_text_digest

#: The kind of a stage that answers nobody; the last one is what the whole model is.
EXECUTOR_KIND = "stage"


def make_worker(
    runner: StageRunner,
    pipe: Pipe,
    clock: Callable[[], float],
    *,
    lanes: int,
    kv_bytes: int,
    host_kv_bytes: int,
) -> WorkerLoop:
    """The loop of a stage that is loaded.

    Args:
        runner: the stage.
        pipe: to the agent.
        clock: gives `now`.
        lanes: that a chain may have.
        kv_bytes: for the lanes of all chains.
        host_kv_bytes: for what they save in host memory.
    """
    if not runner.gives_logits:
        executor = Executor(runner, kv_bytes=kv_bytes, host_kv_bytes=host_kv_bytes)
        return ExecutorWorker(pipe, executor, clock)
    text = TextModel.open(runner.folder.path)
    grammars = GrammarBuilder(lambda: text, runner.folder.signature.vocab, lanes)
    engine = DriverEngine(
        runner, kv_bytes=kv_bytes, host_kv_bytes=host_kv_bytes, text=text, grammars=grammars
    )
    return DriverWorker(pipe, engine, clock)


def ready_of(
    runner: StageRunner, incarnation: WorkerIncarnation, lanes: int, kv_bytes: int, load_s: float
) -> Ready:
    """What the agent is told of a stage that is loaded; its window is that of a lone chain.

    Raises:
        ConfigInvalid: the KV budget serves nothing.
    """
    folder = runner.folder
    window = lane_tokens(
        window=folder.signature.max_positions,
        kv_bytes=kv_bytes,
        lanes=lanes,
        token_bytes=runner.token_bytes,
    )
    return Ready(
        worker=incarnation,
        window_tokens=window,
        lanes=lanes,
        kv_total_tokens=lanes * window,
        numerics=runner.numerics,
        tokenizer_digest=TextModel.open(folder.path).digest,
        text_digest=folder_text_digest(folder.path),
        weights_digest=folder.weights_digest,
        device=runner.target.description[:64],
        load_s=load_s,
        kind="" if runner.gives_logits else EXECUTOR_KIND,
        stage=stage_status(folder),
    )
