"""faster-whisper as a process of its own, in its own environment: files in, a line of JSON each.

Float32, greedy, no temperature above 0, windows that do not depend on each other: as we decode. It
has its own decoder of audio (FFmpeg's), spectrograms, runtime (CTranslate2) and rules.

    build/peers/whisper/bin/python -m bench.whisper_side --folder FOLDER --threads 2 FILE...
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from typing import Any


def main() -> None:
    """Transcribe each file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    # Not a package of our environment, so types are not to be had.
    package: Any = importlib.import_module("faster_whisper")
    model = package.WhisperModel(
        options.folder, device="cpu", compute_type="float32", cpu_threads=options.threads
    )
    for file in options.files:
        start = time.perf_counter()
        segments, _ = model.transcribe(
            file,
            language="en",
            beam_size=1,
            temperature=0.0,
            condition_on_previous_text=False,
            vad_filter=False,
        )
        text = " ".join(segment.text.strip() for segment in segments)
        print(json.dumps({"text": text, "seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
