"""What a model takes of memory, and what a node has for them."""

from __future__ import annotations

from pathlib import Path

from agent.config import WorkerSection
from agent.model_commands import human_bytes
from agent.model_loader import known_needs
from agent.model_memory import memory_budget, needed_bytes
from agent.models.encoder_importer import import_encoder
from agent.models.folder import ModelFolder
from agent.models.registry import Unusable
from bus.ids import ModelName
from tests.harness.models import toy_model_folder
from tests.harness.small_encoder import write_small_encoder


def test_a_model_takes_its_graph_its_lanes_and_what_is_saved_of_them() -> None:
    folder = toy_model_folder()
    graph = sum(file.stat().st_size for file in folder.path.glob("model*.onnx*"))
    figures = folder.signature
    token_bytes = 2 * 4 * figures.layers * figures.kv_heads * figures.head_dim
    large = WorkerSection(lanes=4, kv_bytes=1 << 40, kv_host_bytes=1000)
    lanes = 4 * figures.max_positions * token_bytes
    assert needed_bytes(folder, large) == graph + lanes + 1000
    small = WorkerSection(lanes=4, kv_bytes=1 << 20, kv_host_bytes=0)
    assert needed_bytes(folder, small) == graph + (1 << 20)
    broken = Unusable(folder.path, "it is broken")
    models: dict[ModelName, ModelFolder | Unusable] = {
        ModelName("toy"): folder,
        ModelName("b"): broken,
    }
    assert known_needs(models, small) == {"toy": graph + (1 << 20)}


def test_an_encoder_takes_its_graph(tmp_path: Path) -> None:
    folder = import_encoder(write_small_encoder(tmp_path / "source"), tmp_path / "small")
    graph = sum(file.stat().st_size for file in folder.path.glob("model.onnx*"))
    assert needed_bytes(folder, WorkerSection()) == graph


def test_the_budget_is_what_is_set_or_most_of_what_is_free_shared_by_the_agents() -> None:
    assert memory_budget(5000, 1000, 2) == 5000
    assert memory_budget(0, 1000, 1) == 800
    assert memory_budget(0, 1000, 2) == 400
    assert memory_budget(0, 0, 1) == 0


def test_sizes_are_shown_for_people() -> None:
    sizes = (0, 1023, 1024, 1536 << 20, 5 << 50)
    assert [human_bytes(size) for size in sizes] == [
        *("0 B", "1023 B", "1.0 KiB", "1.5 GiB", "5120.0 TiB"),
    ]
