"""The agent's part in files of parked sessions: which are kept, and who is asked about them."""

from __future__ import annotations

from pathlib import Path

from agent.actions import ForgetParked, KeepParked, SendToWorker
from agent.parked_files import ParkedFiles, park_folder, to_worker
from agent.served_model import ServedModel
from agent.worker.lane_folder import lane_path
from bus.agent_parking import WORKER_GONE, NodeParking
from bus.agent_records import ActionQueue, Held, SendToHead
from bus.ids import CommandId, Epoch, ModelName, SessionId, pack_ids
from bus.log import EventLog
from bus.messages import worker
from bus.messages.link_parking import SessionPark, SessionParked

TOY = ModelName("toy")
A, B = SessionId("s-1-a"), SessionId("s/../b")


def test_files_of_sessions_that_are_not_named_are_removed(tmp_path: Path) -> None:
    folder = park_folder(tmp_path)
    files = ParkedFiles(folder, EventLog("test"))
    files.act(KeepParked(sessions=frozenset()))  # Nothing was parked yet.
    folder.mkdir()
    for session in (A, B):
        lane_path(folder, session).touch()
    (folder / "another").touch()
    files.act(KeepParked(sessions=frozenset({B})))
    assert sorted(path.name for path in folder.iterdir()) == ["another", lane_path(folder, B).name]
    files.act(ForgetParked(session=B))
    files.act(ForgetParked(session=B))
    assert [path.name for path in folder.iterdir()] == ["another"]


def test_a_model_without_a_worker_parks_nothing_and_its_files_go_all_the_same() -> None:
    actions = ActionQueue()
    actions.open()
    parking = NodeParking(actions)
    held = Held(session=A, model=TOY)
    held.context.append(pack_ids([1, 2]))
    parking.park(SessionPark(command=CommandId(1), session=A, epoch=Epoch(3)), held)
    (asked,) = actions.take()
    message = getattr(asked, "message", None)
    assert message == worker.Park(session=A, context=pack_ids([1, 2]))
    loading = ServedModel(TOY)
    assert to_worker(parking, TOY, loading, message) is None
    why = "toy is not ready on this node"
    told = SessionParked(session=A, epoch=Epoch(3), code=WORKER_GONE, message=why)
    assert actions.take() == [SendToHead(message=told)]
    forget = worker.Forget(session=A)
    assert to_worker(parking, TOY, None, forget) == ForgetParked(session=A)
    cancel = worker.Cancel(generation=1)  # type: ignore[arg-type]
    assert to_worker(parking, TOY, loading, cancel) == SendToWorker(model=TOY, message=cancel)
