"""What a side can do beyond the wire version, by name; each side tells, both use what both have.

A capability stands for messages, or fields of them, that an older peer would not know. What a peer
lacks is refused before anything is sent to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bus.errors import UnsupportedOnFleet

if TYPE_CHECKING:
    from bus.link import PeerInfo

#: New frame keys inside a link (bus/rekey.py).
REKEY = "rekey"
#: Probe and ProbeAnswer.
PROBE = "probe"
#: Files beside a request (the Xfer messages).
BLOBS = "blobs"
#: All of SamplingParams; an older peer would pass over what follows `ignore_eos`.
SAMPLING = "sampling"
#: Models that are loaded and unloaded while the node runs.
MODELS = "models"
#: Sessions that are parked in files; a node without it gives them up.
PARKING = "parking"
#: Work that makes no session: embeddings and such (the Job messages).
JOBS = "jobs"
#: Prompts in which tokens stand for files (`media` of GenerateReq).
MEDIA = "media"
#: Constraints that begin with a tag (`at_start` of a structural one).
TAGS_AT_START = "tags_at_start"
#: Constraints that are nothing but tags (`only_tags` of a structural one), or have text `before`.
ONLY_TAGS = "only_tags"
#: Workers that serve a model together, a range of its layers each (the Stage messages).
STAGES = "stages"
#: Everything that this version can do.
CAPABILITIES = (
    *(REKEY, PROBE, BLOBS, SAMPLING, MODELS, PARKING, JOBS, MEDIA, TAGS_AT_START),
    *(STAGES, ONLY_TAGS),
)


def negotiated(ours: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[str, ...]:
    """What both sides can do, in our order."""
    return tuple(name for name in ours if name in theirs)


def require(peer: PeerInfo, capability: str, purpose: str) -> None:
    """See that a peer can do something before anything is sent to it.

    Args:
        peer: as `LinkUp` gave it.
        capability: one of this module's names.
        purpose: what it is needed for, as the subject of a sentence ("files with a request").

    Raises:
        UnsupportedOnFleet: the peer lacks it; names it and the remedy.
    """
    if capability not in peer.capabilities:
        raise UnsupportedOnFleet(
            f"{purpose} can not be used on {peer.role} {peer.name}: its version does not know "
            f"'{capability}'; update superfluid on that {peer.role}",
            details={"node": peer.name, "capability": capability},
        )
