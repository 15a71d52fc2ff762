"""How much of the host's memory models take, and how much of it this node may give them."""

from __future__ import annotations

from agent.config import WorkerSection
from agent.models.folder import ModelFolder

#: Share of the memory that is free at the agent's start that its models may take.
SHARE_OF_FREE = 0.8
#: Files of a model folder that are text; all others are the graph and its data.
_TEXT_SUFFIXES = frozenset({".json", ".jinja", ".model", ".txt"})


def needed_bytes(folder: ModelFolder, section: WorkerSection) -> int:
    """An estimate of what a worker takes: graph and data, its lanes, and what it may save of them.

    Lanes are counted with float32 keys and values, in host memory, wherever the worker runs.
    """
    files = sum(
        record.size
        for name, record in folder.files.items()
        if not any(name.endswith(suffix) for suffix in _TEXT_SUFFIXES)
    )
    token_bytes = folder.kv_bytes_per_token()
    if token_bytes == 0:
        return files  # An encoder keeps nothing of a text.
    longest = section.lanes * folder.signature.max_positions * token_bytes
    return files + min(section.kv_bytes, longest) + section.kv_host_bytes


def memory_budget(configured: int, free_bytes: int, agents_here: int) -> int:
    """What all models of this node may take together, in bytes; 0 is not known, and no limit.

    Args:
        configured: from the configuration; 0 takes a share of what is free.
        free_bytes: of the host, before any worker runs; 0 is not known.
        agents_here: agents on this machine, which share that.
    """
    return configured or int(SHARE_OF_FREE * free_bytes) // max(1, agents_here)
