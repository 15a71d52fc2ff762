"""`python -P -m agent.models`: makes and lists model folders, for `sfctl model`.

Every line on stdout is a JSON object:

    {"event": "progress", "step": ..., "done": n, "total": m}
    {"event": "model", "name": ..., "path": ..., ...}     of `ls` and `split`, one a folder; of
                                                           `check`, `show`, `sizes`, `stage`
    {"event": "done", "path": ...}
    {"event": "error", "code": ..., "message": ...}

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from agent.models.examine import describe_folder, examine
from agent.models.folder import ModelFolder
from agent.models.foreign_files import has_safetensors, is_foreign
from agent.models.layer_sizes import layer_sizes
from agent.models.pull import default_cache, pull
from agent.models.registry import Unusable, find_model, list_models, remove_model
from agent.models.sources import known_names
from agent.models.stages import even_stages, listed_stages
from agent.models.whisper_config import is_whisper_source
from agent.models.writer import check_name
from bus.errors import Internal, Invalid, StartError, SuperfluidError

#: What mends an error of the system.
_REMEDIES = {
    errno.ENOMEM: "free memory here, take a smaller file, or raise the limit of memory",
    errno.ENOENT: "choose another folder, which can be made",
    errno.EACCES: "choose another folder, or change its rights",
    errno.EROFS: "choose another folder, which can be written to",
}
#: A step of more units than this reports a unit in a hundred.
_FINE_STEPS = 200


def emit(event: str, **fields: Any) -> None:
    """Print one line."""
    print(json.dumps({"event": event, **fields}), flush=True)


class ProgressLines:
    """Prints progress, at most about a hundred lines a step."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def __call__(self, step: str, done: int, total: int) -> None:
        """Report, unless too little has changed since the last line of this step."""
        mark = done if total <= _FINE_STEPS else done * 100 // total
        if done < total and self._last.get(step) == mark:
            return
        self._last[step] = mark
        emit("progress", step=step, done=done, total=total)


def run_pull(arguments: argparse.Namespace) -> Path:
    """`pull NAME`: gives the path of the GGUF file or the encoder's folder."""
    return pull(arguments.name, arguments.cache, ProgressLines())


def run_import(arguments: argparse.Namespace) -> Path:
    """`import PATH`: gives the model folder's path."""
    source: Path = arguments.file
    if arguments.stage is not None or arguments.layers is not None:
        return _import_stage(source, arguments)
    target = arguments.into / check_name(arguments.name)
    if source.resolve().is_relative_to(target.resolve()):
        raise Invalid(
            f"{source} would be removed: it is where model {arguments.name} is to be made; move it "
            "to another folder, or give the model another name with --name",
            param="name",
        )
    progress = ProgressLines()
    try:
        from agent.models.encoder_importer import import_encoder
        from agent.models.foreign import import_foreign
        from agent.models.importer import import_gguf
        from agent.models.whisper_importer import import_whisper
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    whisper = is_whisper_source(source)
    if not whisper and source.is_dir() and (is_foreign(source) or not has_safetensors(source)):
        variant = arguments.variant
        return import_foreign(source, target, variant=variant, progress=progress).path
    if arguments.variant is not None:
        raise _no_variants(source)
    make = import_whisper if whisper else import_encoder if source.is_dir() else import_gguf
    return make(source, target, progress=progress).path


def _no_variants(source: Path) -> Invalid:
    return Invalid(f"{source} has no variants; leave --variant out", param="variant")


def _refuse_folder(source: Path, name: str) -> None:
    """Only of a GGUF file is one stage made alone."""
    if source.is_dir():
        raise Invalid(
            f"{source} is a folder, and one stage alone is made of a GGUF file only; import it "
            f"whole, and split it with `sfctl model split {name}`",
            param="stage",
        )


def _import_stage(source: Path, arguments: argparse.Namespace) -> Path:
    _refuse_folder(source, arguments.name)
    if arguments.variant is not None:
        raise _no_variants(source)
    try:
        from agent.models.importer import import_gguf_stage
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    folder = import_gguf_stage(
        source,
        arguments.into,
        arguments.name,
        place=arguments.stage,
        layers=arguments.layers,
        progress=ProgressLines(),
    )
    return folder.path


def run_stage(arguments: argparse.Namespace) -> Path:
    """`stage FILE`: prints what an import of a stage would make; reads the header only."""
    try:
        from agent.models.importer import choose_gguf_stage
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    file: Path = arguments.file
    _refuse_folder(file, arguments.name)
    choice = choose_gguf_stage(file, arguments.stage, arguments.layers)
    name = choice.folder_name(check_name(arguments.name))
    emit("model", name=name, layers=str(choice.layers))
    return file


def run_split(arguments: argparse.Namespace) -> Path:
    """`split FOLDER`: prints a line for each stage's folder."""
    progress = ProgressLines()
    try:
        from agent.models.split import split_model
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    progress("read", 0, 1)
    folder = ModelFolder.open(arguments.folder, verify=True)
    progress("read", 1, 1)
    layers = folder.signature.layers
    if arguments.layers is None:
        chosen = even_stages(layers, arguments.stages)
    else:
        chosen = listed_stages(layers, arguments.layers)
    for made in split_model(folder, arguments.into, chosen, progress=progress):
        emit("model", name=made.path.name, path=str(made.path), **_described(made))
    return Path(arguments.into)


def run_export(arguments: argparse.Namespace) -> Path:
    """`export FOLDER --genai --into DIR`: gives DIR."""
    try:
        from agent.models.export import export_genai
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return export_genai(ModelFolder.open(arguments.folder), arguments.into)


def run_toy(arguments: argparse.Namespace) -> Path:
    """`toy`: gives the model folder's path."""
    target = arguments.into / check_name(arguments.name)
    try:
        from agent.models.toy import write_toy
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return write_toy(target, progress=ProgressLines()).path


def run_check(arguments: argparse.Namespace) -> Path:
    """`check PATH`: prints what a file or folder is and what is wrong with it."""
    path: Path = arguments.path
    try:
        found = examine(path, verify=arguments.verify, variant=arguments.variant)
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    emit("model", **found)
    return path


def run_show(arguments: argparse.Namespace) -> Path:
    """`show DIR NAME`: prints all that a folder says of itself."""
    folder = find_model(arguments.models, arguments.name)
    emit("model", **describe_folder(folder))
    return folder.path


def run_sizes(arguments: argparse.Namespace) -> Path:
    """`sizes PATH`: prints what each part of a decoder takes; reads no weights."""
    path: Path = arguments.path
    try:
        found = layer_sizes(path)
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    emit("model", **asdict(found))
    return path


def run_rm(arguments: argparse.Namespace) -> Path:
    """`rm DIR NAME`: gives the path that is gone."""
    return remove_model(arguments.models, arguments.name)


def run_ls(arguments: argparse.Namespace) -> Path:
    """`ls DIR`: prints a line for each folder."""
    models: Path = arguments.models
    for name, model in list_models(models).items():
        emit("model", name=name, path=str(model.path), **_described(model))
    return models


def _described(model: ModelFolder | Unusable) -> dict[str, Any]:
    if isinstance(model, Unusable):
        return {"usable": False, "reason": model.reason}
    return {
        "usable": True,
        "kind": model.kind,
        "architecture": model.architecture,
        "size_bytes": model.size_bytes,
        "window": model.signature.max_positions,
        "kv_bytes_per_token": model.kv_bytes_per_token(),
        "source": dict(model.source),
        **({} if model.stage is None else {"stage": model.stage.describe()}),
    }


def _missing(error: ModuleNotFoundError) -> StartError:
    return StartError(
        f"making a model needs the package {error.name}, which is not installed; install it with "
        f"`{sys.executable} -m pip install 'superfluid-fleet[import]'`"
    )


def _refused(error: OSError, parsed: argparse.Namespace) -> str:
    """What the system refused, over which file, and what to do."""
    source = getattr(parsed, "file", None) or getattr(parsed, "path", None)
    at = error.filename or source or getattr(parsed, "into", None)
    where = f"{at}: " if at else ""
    remedy = _REMEDIES.get(error.errno or 0, "make room or choose another folder")
    return f"{where}{error.strerror or error}; {remedy}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -P -m agent.models", description=__doc__)
    commands = parser.add_subparsers(required=True)
    add = commands.add_parser("pull", help=f"get a known model's files: {', '.join(known_names())}")
    add.add_argument("name")
    add.add_argument("--cache", type=Path, default=default_cache())
    add.set_defaults(run=run_pull)
    add = commands.add_parser("import", help="make a model folder")
    add.add_argument(
        "file",
        type=Path,
        help="a GGUF file, an encoder's folder of safetensors, a Whisper's folder of CTranslate2, "
        "or a folder of onnxruntime-genai or Optimum",
    )
    _add_variant(add)
    add.add_argument("--into", type=Path, required=True, help="the folder of models")
    add.add_argument("--name", required=True, help="of a stage, the whole model's")
    _add_stage(add)
    add.set_defaults(run=run_import)
    add = commands.add_parser("stage", help="say what an import of one stage would make")
    add.add_argument("file", type=Path, help="a GGUF file")
    add.add_argument("--name", required=True, help="the whole model's")
    _add_stage(add)
    add.set_defaults(run=run_stage)
    add = commands.add_parser("split", help="make folders of a model's stages")
    add.add_argument("folder", type=Path)
    chosen = add.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--stages", type=int, help="how many, evenly cut")
    chosen.add_argument("--layers", help="ranges such as 0-14,15-29")
    add.add_argument("--into", type=Path, required=True, help="the folder of models")
    add.set_defaults(run=run_split)
    add = commands.add_parser("export", help="write a model folder as another runtime loads it")
    add.add_argument("folder", type=Path)
    add.add_argument("--genai", action="store_true", required=True, help="for onnxruntime-genai")
    add.add_argument("--into", type=Path, required=True, help="a folder that is not there yet")
    add.set_defaults(run=run_export)
    add = commands.add_parser("toy", help="make the toy model's folder")
    add.add_argument("--into", type=Path, required=True, help="the folder of models")
    add.add_argument("--name", default="toy")
    add.set_defaults(run=run_toy)
    add = commands.add_parser("check", help="say whether a GGUF file or a folder can be served")
    add.add_argument("path", type=Path)
    add.add_argument("--verify", action="store_true", help="compare a folder's hashes too")
    _add_variant(add)
    add.set_defaults(run=run_check)
    add = commands.add_parser("sizes", help="say what each layer of a model takes")
    add.add_argument("path", type=Path, help="a model folder or a GGUF file")
    add.set_defaults(run=run_sizes)
    add = commands.add_parser("show", help="describe a model folder")
    add.add_argument("models", type=Path)
    add.add_argument("name")
    add.set_defaults(run=run_show)
    add = commands.add_parser("rm", help="remove a model folder")
    add.add_argument("models", type=Path)
    add.add_argument("name")
    add.set_defaults(run=run_rm)
    add = commands.add_parser("ls", help="list a folder of models")
    add.add_argument("models", type=Path)
    add.set_defaults(run=run_ls)
    return parser


def _add_variant(command: argparse.ArgumentParser) -> None:
    command.add_argument("--variant", help="which of several graphs, such as q4 or fp16")


def _add_stage(command: argparse.ArgumentParser) -> None:
    command.add_argument("--stage", help="one stage alone: which of how many, such as 1/2")
    command.add_argument("--layers", help="its layers such as 0-14, or those of all stages")


def _stop(number: int, frame: FrameType | None) -> None:
    """End by exception, so that half-made folders are removed."""
    raise SystemExit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code."""
    parsed = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _stop)
    try:
        path = parsed.run(parsed)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except SuperfluidError as error:
        emit("error", code=error.code, message=error.message, param=error.param)
        return 1
    except OSError as error:
        emit("error", code=Internal.code, message=_refused(error, parsed))
        return 1
    emit("done", path=str(path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
