"""onnxruntime-genai as a process of its own, in its own environment, driven by lines.

It is measured in the variant that is fastest here for each kind of work: its threads spin between
operators, which is its default and the faster way on processors that are otherwise idle, or not.

    build/peers/genai/bin/python -m bench.genai_side --folder FOLDER --threads 2
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from typing import Any

from bench.lines import Handler, serve
from bench.prompts import prompts

#: Runs of each variant that choose the faster one.
TRIES = 3
SPINNING = "spinning"
VARIANTS = (SPINNING, "not spinning")


class Genai:
    """Measures one loaded model, in the variant that is fastest for each kind of work.

    Args:
        folder: as `python -P -m agent.models export --genai` writes it.
        threads: of its session.
    """

    def __init__(self, folder: str, threads: int) -> None:
        # Its ONNX Runtime sends what it does to Microsoft otherwise, as ours did.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        # Not a package of our environment, so types are not to be had.
        self._genai: Any = importlib.import_module("onnxruntime_genai")
        self._folder, self._threads = folder, threads
        start = time.perf_counter()
        self._models = {SPINNING: self._load(SPINNING)}
        self.load_s = time.perf_counter() - start
        self._chosen: dict[str, str] = {}

    def choose(
        self, batches: list[int], context: int, steps: int, prompt: int, vocab: int
    ) -> dict[str, Any]:
        """Try both variants and keep the faster for each kind; gives what was chosen."""
        self._models = {variant: self._load(variant) for variant in VARIANTS}
        for kind in [*(f"b{batch}" for batch in batches), "prefill"]:
            best = dict.fromkeys(VARIANTS, 0.0)
            for seed in range(TRIES):
                for variant in VARIANTS:
                    self._chosen[kind] = variant
                    found = (
                        self.prefill(prompt, vocab, seed)
                        if kind == "prefill"
                        else self.decode(int(kind[1:]), context, steps, vocab, seed)
                    )
                    best[variant] = max(best[variant], found["tokens_s"])
            self._chosen[kind] = max(VARIANTS, key=lambda variant: best[variant])
        return dict(self._chosen)

    def decode(self, batch: int, context: int, steps: int, vocab: int, seed: int) -> dict[str, Any]:
        """Tokens/s of `batch` sequences in one generator, past prompts of `context` tokens."""
        generator = self._generator(f"b{batch}", batch, context + steps + 2)
        generator.append_tokens(prompts(vocab, batch, context, seed))
        generator.generate_next_token()
        generator.generate_next_token()
        start = time.perf_counter()
        for _ in range(steps):
            generator.generate_next_token()
        return {"tokens_s": batch * steps / (time.perf_counter() - start)}

    def prefill(self, tokens: int, vocab: int, seed: int) -> dict[str, Any]:
        """Tokens/s of one prompt alone, its first token included; its KV is made before."""
        generator = self._generator("prefill", 1, tokens + 2)
        prompt = prompts(vocab, 1, tokens, seed)
        start = time.perf_counter()
        generator.append_tokens(prompt)
        generator.generate_next_token()
        return {"tokens_s": tokens / (time.perf_counter() - start)}

    def greedy(self, prompt: list[int], count: int) -> dict[str, Any]:
        """The ids that follow a prompt."""
        generator = self._generator("b1", 1, len(prompt) + count)
        generator.append_tokens(prompt)
        for _ in range(count):
            generator.generate_next_token()
        return {"ids": [int(token) for token in generator.get_sequence(0)[len(prompt) :]]}

    def _load(self, variant: str) -> Any:
        config = self._genai.Config(self._folder)
        session = {
            "intra_op_num_threads": self._threads,
            "inter_op_num_threads": 1,
            "session.intra_op.allow_spinning": "1" if variant == SPINNING else "0",
        }
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
        return self._genai.Model(config)

    def _generator(self, kind: str, batch: int, tokens: int) -> Any:
        model = self._models[self._chosen.get(kind, SPINNING)]
        params = self._genai.GeneratorParams(model)
        params.set_search_options(
            batch_size=batch,
            max_length=tokens,
            # An end of sequence would end a lane before its steps are over.
            min_length=tokens,
            do_sample=False,
            past_present_share_buffer=True,
        )
        return self._genai.Generator(model, params)


def main() -> None:
    """Load, then answer lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    peer = Genai(options.folder, options.threads)
    handlers: dict[str, Handler] = {
        "choose": peer.choose,
        "decode": peer.decode,
        "prefill": peer.prefill,
        "greedy": peer.greedy,
    }
    serve({"load_s": peer.load_s}, handlers)


if __name__ == "__main__":
    main()
