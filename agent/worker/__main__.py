"""`python -P -m agent.worker`: one worker process. Started by an agent, never by hand."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent.worker.kv_cache import DEFAULT_KV_BYTES, DEFAULT_LANES
from agent.worker.parking import DEFAULT_PARK_AGE_S, DEFAULT_PARK_BYTES, Parking, ParkLimits
from agent.worker.transfers import DEFAULT_HOST_KV_BYTES
from bus.errors import Internal, SuperfluidError
from bus.ids import WorkerIncarnation
from bus.log import EventLog, LogConfig, setup_logging
from bus.messages.worker import WORKER, Failed, Ready
from bus.text.tokenizer_files import folder_text_digest
from bus.transport.clock import now
from bus.transport.orphan import die_with_parent
from bus.transport.pipes import WorkerPipe

if TYPE_CHECKING:
    from agent.models.folder import ModelFolder
    from agent.worker.encoder import Encoder
    from agent.worker.engine import Engine
    from agent.worker.job_loop import JobLoop
    from agent.worker.transcriber import Transcriber

log = EventLog("agent.worker")


def main(arguments: Sequence[str] | None = None) -> int:
    """Load the model, say so, and work until told to stop; 1 when it can not be loaded."""
    options = _parser().parse_args(arguments)
    die_with_parent(options.parent_pid, options.death_fd)
    # Ctrl-C reaches the whole foreground group, and the agent ends its workers in its own order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nothing here needs tidying, so the system's own way of ending is the quickest.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    setup_logging(LogConfig(level=options.log_level))
    with WorkerPipe(options.pipe) as pipe:
        try:
            _serve(options, pipe)
        except SuperfluidError as error:
            return _failed(pipe, error)
        except Exception as error:
            log.error("worker_crashed", error=repr(error))
            _failed(pipe, Internal(f"the worker crashed: {error!r}; its log has more"))
            raise
    return 0


def _serve(options: argparse.Namespace, pipe: WorkerPipe) -> None:
    # Imported here: whatever is wrong with ONNX Runtime is then told to the agent.
    from agent.models.folder import ENCODER, TRANSCRIBER, ModelFolder

    start = time.perf_counter()
    folder = ModelFolder.open(options.model_folder)
    if folder.kind == ENCODER:
        _serve_encoder(folder, options, pipe, start)
    elif folder.kind == TRANSCRIBER:
        _serve_transcriber(folder, options, pipe, start)
    elif folder.stage is not None:
        _serve_stage(folder, options, pipe, start)
    else:
        _serve_decoder(folder, options, pipe, start)


def _serve_decoder(
    folder: ModelFolder, options: argparse.Namespace, pipe: WorkerPipe, start: float
) -> None:
    from agent.worker.engine import Engine
    from agent.worker.grammar import GrammarBuilder
    from agent.worker.model_runner import ModelRunner
    from agent.worker.runner import Worker
    from bus.text.tokenizer import TextModel

    runner = ModelRunner(
        folder,
        device=options.device,
        lanes=options.lanes,
        kv_bytes=options.kv_bytes,
        threads=options.threads,
        prepack=options.prepack == "on",
    )
    runner.self_test()
    load_s = time.perf_counter() - start
    text = TextModel.open(folder.path)
    grammars = GrammarBuilder(lambda: text, folder.signature.vocab, options.lanes)
    engine = Engine(runner, host_kv_bytes=options.kv_host_bytes, text=text, grammars=grammars)
    worker = Worker(pipe, engine, now, _parking(engine, options))
    worker.post(
        Ready(
            worker=WorkerIncarnation(options.incarnation),
            window_tokens=runner.window,
            lanes=options.lanes,
            kv_total_tokens=options.lanes * runner.window,
            numerics=runner.numerics,
            tokenizer_digest=text.digest,
            text_digest=folder_text_digest(folder.path),
            weights_digest=folder.weights_digest,
            device=runner.target.description[:64],
            load_s=load_s,
        )
    )
    _log_ready(folder, runner.target.description, load_s)
    worker.run()


def _serve_stage(
    folder: ModelFolder, options: argparse.Namespace, pipe: WorkerPipe, start: float
) -> None:
    from agent.worker.stage_runner import StageRunner
    from agent.worker.stage_workers import make_worker, ready_of

    runner = StageRunner(
        folder, device=options.device, threads=options.threads, prepack=options.prepack == "on"
    )
    runner.self_test()
    load_s = time.perf_counter() - start
    worker = make_worker(
        runner,
        pipe,
        now,
        lanes=options.lanes,
        kv_bytes=options.kv_bytes,
        host_kv_bytes=options.kv_host_bytes,
    )
    incarnation = WorkerIncarnation(options.incarnation)
    worker.post(ready_of(runner, incarnation, options.lanes, options.kv_bytes, load_s))
    _log_ready(folder, runner.target.description, load_s)
    worker.run()


def _serve_encoder(
    folder: ModelFolder, options: argparse.Namespace, pipe: WorkerPipe, start: float
) -> None:
    from agent.worker.encoder import Encoder
    from agent.worker.encoder_loop import EncoderWorker
    from bus.text.tokenizer import TextModel

    encoder = Encoder(folder, threads=options.threads)
    encoder.self_test()
    load_s = time.perf_counter() - start
    digest = TextModel.open(folder.path).digest
    _serve_jobs(EncoderWorker(pipe, encoder, now), encoder, digest, options, load_s)


def _serve_transcriber(
    folder: ModelFolder, options: argparse.Namespace, pipe: WorkerPipe, start: float
) -> None:
    from agent.worker.transcriber import Transcriber
    from agent.worker.transcriber_loop import TranscriberWorker
    from bus.text.tokenizer import TextModel

    transcriber = Transcriber(folder, threads=options.threads)
    transcriber.self_test()
    load_s = time.perf_counter() - start
    text = TextModel.open(folder.path)
    worker = TranscriberWorker(pipe, transcriber, text.vocabulary, now)
    _serve_jobs(worker, transcriber, text.digest, options, load_s)


def _serve_jobs(
    worker: JobLoop,
    model: Encoder | Transcriber,
    tokenizer_digest: int,
    options: argparse.Namespace,
    load_s: float,
) -> None:
    """Options of lanes, caches and devices are for decoders, and mean nothing here."""
    folder, device = model.folder, "cpu"
    worker.post(
        Ready(
            worker=WorkerIncarnation(options.incarnation),
            window_tokens=folder.signature.max_positions,
            # So that a generation comes here, and is told that there are none.
            lanes=1,
            kv_total_tokens=0,
            numerics=model.numerics,
            tokenizer_digest=tokenizer_digest,
            text_digest=folder_text_digest(folder.path),
            weights_digest=folder.weights_digest,
            device=device,
            load_s=load_s,
            kind=folder.kind,
        )
    )
    _log_ready(folder, device, load_s)
    worker.run()


def _log_ready(folder: ModelFolder, device: str, load_s: float) -> None:
    # The agent tells of it, in the same log.
    log.debug("worker_ready", model=folder.name, device=device, load_s=round(load_s, 3))


def _parking(engine: Engine, options: argparse.Namespace) -> Parking | None:
    if options.park is None:
        return None
    return Parking(
        engine.scheduler,
        engine.transfers,
        engine.runner.slab,
        folder=options.park,
        model=engine.runner.folder.digest,
        numerics=engine.runner.numerics,
        wall_clock=time.time,
        limits=ParkLimits(options.park_bytes, options.park_age_s),
    )


def _failed(pipe: WorkerPipe, error: SuperfluidError) -> int:
    log.error("worker_failed", code=error.code, error=error.message)
    pipe.send(WORKER.encode(Failed(code=error.code, message=error.message[:500])))
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agent.worker", description=__doc__)
    parser.add_argument("--model-folder", type=Path, required=True)
    parser.add_argument("--pipe", required=True, help="path prefix of the pipes to the agent")
    parser.add_argument("--incarnation", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--death-fd", type=int, help="ends when the agent does")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--lanes", type=_at_least_one, default=DEFAULT_LANES)
    parser.add_argument("--kv-bytes", type=_at_least_one, default=DEFAULT_KV_BYTES)
    parser.add_argument(
        "--kv-host-bytes",
        type=_at_least_zero,
        default=DEFAULT_HOST_KV_BYTES,
        help="memory for saved prefixes and preempted lanes; 0: neither",
    )
    parser.add_argument("--threads", type=int, default=0, help="0: all that it may use")
    parser.add_argument(
        "--prepack",
        choices=("on", "off"),
        default="off",
        help="map weights from a copy beside the model, made when there is none",
    )
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--park", type=Path, help="folder to park sessions in; none: not at all")
    parser.add_argument("--park-bytes", type=_at_least_one, default=DEFAULT_PARK_BYTES)
    parser.add_argument("--park-age-s", type=float, default=DEFAULT_PARK_AGE_S)
    return parser


def _at_least_one(text: str) -> int:
    return _at_least(text, 1)


def _at_least_zero(text: str) -> int:
    return _at_least(text, 0)


def _at_least(text: str, least: int) -> int:
    number = int(text)
    if number < least:
        raise argparse.ArgumentTypeError(f"{number} is below {least}")
    return number


if __name__ == "__main__":
    sys.exit(main())
