"""llama.cpp as a process of its own, in its own environment, driven by lines.

Batches go through its batch interface, one sequence a lane, as its own batched bench does. It is
measured in the variant that is fastest here for each kind of work: with and without flash
attention, with one key-value buffer for all sequences or one for each.

    build/peers/llamacpp/bin/python -m bench.llamacpp_side --file FILE.gguf --threads 2
"""

from __future__ import annotations

import argparse
import functools
import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.lines import Handler, serve
from bench.prompts import prompts

#: Runs of each variant that choose the fastest one.
TRIES = 3
#: Flash attention off and on; of a batch also one KV buffer for each sequence or for all, of a
#: prompt how many tokens run at once.
DECODE_VARIANTS = [{"flash": flash, "unified": one} for flash in (0, 1) for one in (0, 1)]
PREFILL_VARIANTS = [{"flash": flash, "run": run} for flash in (0, 1) for run in (512, 128)]

Variant = dict[str, int]


class Context:
    """A llama.cpp context, and the KV of its lanes. Closed by hand.

    Args:
        lib: the module.
        model: loaded.
        lanes: sequences.
        tokens: that a lane holds.
        variant: how it computes.
    """

    def __init__(
        self, lib: Any, model: Any, *, lanes: int, tokens: int, threads: int, variant: Variant
    ) -> None:
        self.variant = variant
        self._lib = lib
        params = lib.llama_context_default_params()
        params.n_ctx = lanes * tokens
        params.n_batch = tokens
        params.n_ubatch = variant.get("run", 512)
        params.n_seq_max = lanes
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = variant["flash"]
        params.kv_unified = bool(variant.get("unified", 0))
        params.no_perf = True
        self._context = lib.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp can not make a context of {variant}")
        self._vocab = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)))
        self._batch = lib.llama_batch_init(tokens, 0, 1)
        self._memory = lib.llama_get_memory(self._context)

    def close(self) -> None:
        """Free what it holds."""
        self._lib.llama_batch_free(self._batch)
        self._lib.llama_free(self._context)

    def forget(self, lane: int, behind: int) -> None:
        """Empty a lane's KV from a position on."""
        self._lib.llama_memory_seq_rm(self._memory, lane, behind, -1)

    def prompt(self, lane: int, ids: npt.NDArray[np.int32]) -> int:
        """Feed a prompt to an empty lane; gives the greedy token after it."""
        places = [(int(token), place, lane) for place, token in enumerate(ids)]
        return self._run(places, [len(places) - 1])[0]

    def step(self, feed: list[int], place: int) -> list[int]:
        """Feed one token to each of the lanes; gives the greedy tokens after them."""
        places = [(token, place, lane) for lane, token in enumerate(feed)]
        return self._run(places, list(range(len(feed))))

    def _run(self, places: list[tuple[int, int, int]], wanted: list[int]) -> list[int]:
        batch, lib = self._batch, self._lib
        batch.n_tokens = len(places)
        for row, (token, place, lane) in enumerate(places):
            batch.token[row] = token
            batch.pos[row] = place
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = lane
            batch.logits[row] = 0
        for row in wanted:
            batch.logits[row] = 1
        if status := lib.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode gave {status}")
        return [self._greedy(row) for row in wanted]

    def _greedy(self, row: int) -> int:
        logits = self._lib.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, (self._vocab,)).argmax())


class LlamaCpp:
    """Measures one loaded model, in the variant that is fastest for each kind of work."""

    def __init__(self, file: str, threads: int) -> None:
        # Not a package of our environment, so types are not to be had.
        self._lib: Any = importlib.import_module("llama_cpp")
        self._threads = threads
        self._quiet = self._lib.llama_log_callback(lambda level, text, data: None)
        self._lib.llama_log_set(self._quiet, None)
        self._lib.llama_backend_init()
        start = time.perf_counter()
        params = self._lib.llama_model_default_params()
        self._model = self._lib.llama_model_load_from_file(file.encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp can not load {file}")
        self.load_s = time.perf_counter() - start
        self._contexts: dict[str, Context] = {}

    def choose(
        self, batches: list[int], context: int, steps: int, prompt: int, vocab: int
    ) -> dict[str, Any]:
        """Try all variants and keep the fastest for each kind; gives what was chosen."""
        for batch in batches:
            # As a step before the first one counts, two tokens more than the steps.
            tokens = -(-(context + steps + 2) // 64) * 64
            rows = prompts(vocab, batch, context, batch)
            made = [self._open(batch, tokens, variant) for variant in DECODE_VARIANTS]
            for llama in made:
                for lane, row in enumerate(rows):
                    llama.prompt(lane, row)
            self._keep(
                f"b{batch}",
                made,
                functools.partial(_steps, batch=batch, context=context, steps=steps),
            )
        made = [self._open(1, prompt, variant) for variant in PREFILL_VARIANTS]
        ids = prompts(vocab, 1, prompt, 0)[0]
        self._keep("prefill", made, lambda llama: _prefill(llama, ids))
        return {kind: llama.variant for kind, llama in self._contexts.items()}

    def warm(self, batch: int, context: int, steps: int, vocab: int) -> dict[str, Any]:
        """Decode once without choosing, so that what it takes of memory can be read."""
        kind = f"b{batch}"
        llama = self._contexts[kind] = self._open(batch, context + steps + 2, DECODE_VARIANTS[0])
        for lane, row in enumerate(prompts(vocab, batch, context, 0)):
            llama.prompt(lane, row)
        return self.decode(batch, context, steps)

    def decode(self, batch: int, context: int, steps: int) -> dict[str, Any]:
        """Tokens/s of `batch` sequences together, past prompts of `context` tokens."""
        return {"tokens_s": _steps(self._contexts[f"b{batch}"], batch, context, steps)}

    def prefill(self, tokens: int, vocab: int, seed: int) -> dict[str, Any]:
        """Tokens/s of one prompt alone, its first token included."""
        ids = prompts(vocab, 1, tokens, seed)[0]
        return {"tokens_s": _prefill(self._contexts["prefill"], ids)}

    def system(self) -> dict[str, Any]:
        """What the library says of the instructions it was built for."""
        return {"system": self._lib.llama_print_system_info().decode()}

    def _open(self, lanes: int, tokens: int, variant: Variant) -> Context:
        return Context(
            self._lib,
            self._model,
            lanes=lanes,
            tokens=tokens,
            threads=self._threads,
            variant=variant,
        )

    def _keep(self, kind: str, made: list[Context], measure: Callable[[Context], float]) -> None:
        rates = [[measure(llama) for llama in made] for _ in range(TRIES)]
        best = [max(turn) for turn in zip(*rates, strict=True)]
        self._contexts[kind] = made[best.index(max(best))]
        for llama in made:
            if llama is not self._contexts[kind]:
                llama.close()


def _steps(llama: Context, batch: int, context: int, steps: int) -> float:
    for lane in range(batch):
        llama.forget(lane, context)
    feed = llama.step([1] * batch, context)
    start = time.perf_counter()
    for step in range(steps):
        feed = llama.step(feed, context + 1 + step)
    return batch * steps / (time.perf_counter() - start)


def _prefill(llama: Context, ids: npt.NDArray[np.int32]) -> float:
    llama.forget(0, 0)
    start = time.perf_counter()
    llama.prompt(0, ids)
    return len(ids) / (time.perf_counter() - start)


def main() -> None:
    """Load, then answer lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--file", required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    peer = LlamaCpp(options.file, options.threads)
    handlers: dict[str, Handler] = {
        "choose": peer.choose,
        "decode": peer.decode,
        "prefill": peer.prefill,
        "warm": peer.warm,
        "system": peer.system,
    }
    serve({"load_s": peer.load_s}, handlers)


if __name__ == "__main__":
    main()
