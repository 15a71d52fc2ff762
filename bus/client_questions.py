"""The client's part for what the head answers by one reply: what there is, and texts as tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bus.call import Pump
from bus.client_request import checked_messages, checked_template
from bus.errors import NotFound, WireError
from bus.rendered_prompt import RenderedPrompt, rendered_prompt
from bus.session_handle import Operations
from bus.tool_functions import checked_tools


class Questions(Pump, Operations):
    """What `Client` has for them; it gives the connection."""

    def hello(self) -> dict[str, Any]:
        """Versions, limits and features of the head."""
        return self.operation("hello")

    def ping(self) -> float:
        """Ask whether the head lives; gives the seconds that it took."""
        start = self.clock()
        self.operation("ping")
        return self.clock() - start

    def status(self) -> dict[str, Any]:
        """The head's view of itself and the fleet."""
        return self.operation("status")

    def nodes(self) -> list[dict[str, Any]]:
        """One map per node."""
        return _maps(self.operation("nodes"), "nodes")

    def models(self) -> list[dict[str, Any]]:
        """One map per model that the fleet knows."""
        return _maps(self.operation("models"), "models")

    def advertised_context(self, model: str) -> int:
        """The most tokens that a context may have on some node now; 0 when none serves the model.

        Raises:
            NotFound: the fleet knows no such model.
        """
        found = next((each for each in self.models() if each.get("name") == model), None)
        if found is None:
            raise NotFound(f"the fleet knows no model {model}; see models()", param="model")
        return int(found.get("window_tokens", 0))

    def tokenize(self, model: str, text: str, *, add_special: bool = True) -> list[int]:
        """The token ids of a text."""
        body: dict[str, Any] = {"model": model, "text": text, "add_special": add_special}
        tokens = self.operation("tokenize", **body).get("tokens")
        if not isinstance(tokens, list) or not all(type(item) is int for item in tokens):
            raise WireError("the head answered tokenize without tokens; are versions equal?")
        return tokens

    def detokenize(self, model: str, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of token ids."""
        body: dict[str, Any] = {
            "model": model,
            "tokens": list(tokens),
            "skip_special": skip_special,
        }
        text = self.operation("detokenize", **body).get("text")
        if not isinstance(text, str):
            raise WireError("the head answered detokenize without text; are versions equal?")
        return text

    def render(
        self,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        template: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
    ) -> RenderedPrompt:
        """The prompt that a chat would have; nothing runs.

        Args:
            model: its name in the fleet.
            messages: maps with `role` and `content`.
            tools: as for `chat`.
            template: further variables for the model's chat template.
            add_generation_prompt: whether it ends with what begins an answer.
            continue_final: whether it ends where the last message does, which is the assistant's.
        """
        body: dict[str, Any] = {
            "messages": checked_messages(messages),
            "tools": None if tools is None else checked_tools(tools)[0] or None,
            "template": checked_template(template),
            "add_generation_prompt": add_generation_prompt,
            "continue_final": continue_final,
        }
        return rendered_prompt(self.operation("render", model=model, **body))


def _maps(body: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = body.get(key)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise WireError(f"the head answered without {key}; are versions equal?")
    return found
