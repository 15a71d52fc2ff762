"""The engine: one process for each loaded model.

runner.Worker        the process's loop: pipe in, turns, pipe out
engine.Engine        scheduler, model and sampler joined; no socket, no clock
scheduler.Scheduler  who runs next; pure
model_runner         an ONNX Runtime session over the KV slab (kv_cache)
sampler              next tokens from logits (counter_random)
"""
