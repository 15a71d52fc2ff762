"""What benches give an engine without a head: greedy requests that no end of a text cuts short."""

from __future__ import annotations

from bus.ids import GenerationId, pack_ids
from bus.messages.api import QOS_CLASSES
from bus.messages.sampling import SamplingParams
from bus.messages.worker import Submit

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


def greedy_request(
    generation: GenerationId, prompt: list[int], most: int, qos: str = "interactive"
) -> Submit:
    """A request for `most` tokens after a prompt.

    Args:
        generation: its id, which no other of the engine has.
        prompt: token ids.
        most: tokens that it makes, unless it is cancelled.
        qos: a key of `QOS_CLASSES`.
    """
    return Submit(
        generation=generation,
        context=pack_ids(prompt),
        sampling=GREEDY,
        max_new_tokens=most,
        prompt_tokens=len(prompt),
        qos=QOS_CLASSES[qos],
    )
