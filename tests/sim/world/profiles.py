"""Kinds of runs: how much of what goes wrong. The seed chooses the profile, unless one is named."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Ranges are (least, most); a choice is drawn from them for each run. Times in seconds."""

    name: str
    nodes: tuple[int, int] = (2, 3)
    calls: tuple[int, int] = (7, 12)
    tokens: tuple[int, int] = (5, 60)
    bursts: tuple[int, ...] = (1, 2, 4)
    step_s: tuple[float, ...] = (0.1, 0.2)
    #: Mean time between faults, and their kinds with weights.
    fault_every_s: tuple[float, ...] = (1.0, 2.0, 4.0)
    faults: dict[str, int] = field(default_factory=dict)
    faulty_s: tuple[float, float] = (14.0, 28.0)
    drop: tuple[float, ...] = (0.0,)
    duplicate: tuple[float, ...] = (0.0,)
    reorder: tuple[float, ...] = (0.0,)
    misdirect: tuple[float, ...] = (0.0,)
    delay_s: tuple[float, ...] = (0.0005, 0.005, 0.05)
    commit_s: tuple[float, ...] = (0.0005, 0.005, 0.03)
    lease_s: tuple[float, ...] = (3.0, 6.0, 20.0)
    silence_s: tuple[float, ...] = (3.0, 6.0, 15.0)
    reattach_s: tuple[float, ...] = (0.2, 0.5, 2.0)
    adopt_s: tuple[float, ...] = (1.0, 3.0)
    failover_wait_s: tuple[float, ...] = (15.0, 40.0)
    #: Answers that may wait; more are refused.
    queue_limit: tuple[int, ...] = (1024,)
    drift: float = 0.04
    rekey_s: tuple[float, ...] = (3600.0, 3600.0, 4.0)
    #: Share of commands that nodes are given twice.
    repeat: tuple[float, ...] = (0.0, 0.3)
    #: Shares of calls: with a key, cancelled, with a wall budget, dropped by their client.
    keyed: float = 0.5
    cancelled: float = 0.2
    budgeted: float = 0.1
    dropped: float = 0.15
    poisoned: float = 0.0
    #: Share of callers that keep a session of several turns.
    sessions: float = 0.0
    #: Share of callers that have chats of several turns; then there are no other turns.
    chats: float = 0.0
    #: Share of callers that ask for jobs.
    jobs: float = 0.0
    #: Share of those that want vectors.
    embeds: float = 0.5
    #: Texts of a request, of which a part has fifteen.
    texts: tuple[int, ...] = (1, 3, 14, 15, 16, 40)
    #: How long a text process may take for a job.
    text_s: tuple[float, ...] = (0.001,)
    #: Shares of pauses between turns, and of turns, in which a session is parked; of pauses in
    #: which it is forked.
    parked: float = 0.25
    forked: float = 0.1
    small_credit: float = 0.2
    #: Whether answers may end by themselves, before their budget.
    ends: bool = True


CRASHES = {"crash_node": 2, "crash_worker": 2, "crash_head": 2, "crash_in_commit": 2}
CABLES = {"partition": 3, "one_way": 3, "cut": 2, "flap": 2}
PAUSES = {"pause_node": 3, "pause_head": 1, "pause_worker": 2}

JOBS = {"crash_side": 4, "drain": 2}

PROFILES = (
    Profile(name="calm", fault_every_s=(8.0,), faults={"cut": 2, "crash_worker": 1}),
    Profile(
        name="lossy",
        drop=(0.002, 0.01),
        duplicate=(0.0, 0.05),
        reorder=(0.0, 0.01),
        misdirect=(0.0, 0.01),
        fault_every_s=(4.0,),
        faults=CABLES,
    ),
    Profile(
        name="crashy", faults=CRASHES | {"cut": 2, "slow_disk": 1}, commit_s=(0.0005, 0.03, 0.2)
    ),
    Profile(name="partitions", faults=CABLES | {"crash_head": 1}, duplicate=(0.0, 0.02)),
    Profile(name="pauses", faults=PAUSES | {"cut": 1}),
    Profile(
        name="slow-disk",
        commit_s=(0.1, 0.4, 1.0),
        faults=CRASHES | {"slow_disk": 4, "cut": 2},
        fault_every_s=(3.0,),
    ),
    Profile(
        name="wide-window",
        calls=(2, 4),
        nodes=(1, 2),
        tokens=(900, 2400),
        bursts=(32, 64),
        step_s=(0.1,),
        faults=CABLES | {"pause_head": 2, "slow_disk": 2, "crash_head": 1},
        lease_s=(20.0,),
        cancelled=0.1,
        budgeted=0.0,
        ends=False,
    ),
    Profile(
        name="worker-killer",
        faults={"crash_worker": 8, "crash_node": 1, "cut": 1},
        fault_every_s=(0.8, 1.5),
        poisoned=0.05,
    ),
    Profile(
        name="poison",
        nodes=(1, 3),
        poisoned=0.25,
        faults={"cut": 1, "crash_head": 1},
        fault_every_s=(5.0,),
    ),
    Profile(
        name="multi-turn",
        sessions=0.7,
        calls=(3, 5),
        tokens=(3, 25),
        faults=CRASHES | CABLES | PAUSES,
        fault_every_s=(1.5, 3.0),
        cancelled=0.4,
    ),
    Profile(
        name="parks",
        sessions=1.0,
        calls=(2, 4),
        tokens=(3, 25),
        faults=CRASHES | CABLES | PAUSES,
        fault_every_s=(1.5, 3.0),
        parked=0.8,
        forked=0.3,
    ),
    Profile(
        name="chats",
        chats=1.0,
        calls=(2, 4),
        tokens=(3, 25),
        faults=CRASHES | CABLES | PAUSES | {"drain": 2},
        fault_every_s=(1.5, 3.0),
        cancelled=0.4,
        poisoned=0.05,
        forked=0.2,
        text_s=(0.001, 0.3, 2.0),
    ),
    Profile(
        name="jobs",
        jobs=0.8,
        faults=CRASHES | CABLES | PAUSES | JOBS,
        fault_every_s=(0.7, 1.5, 3.0),
        dropped=0.25,
    ),
    Profile(
        name="offices",
        chats=1.0,
        jobs=0.5,
        calls=(5, 8),
        tokens=(3, 25),
        faults=CRASHES | CABLES | PAUSES | JOBS,
        drop=(0.0, 0.002),
        duplicate=(0.0, 0.02),
        reorder=(0.0, 0.005),
        text_s=(0.001, 0.3),
    ),
    Profile(
        name="crowd",
        nodes=(1, 2),
        calls=(20, 32),
        tokens=(5, 25),
        bursts=(4, 8),
        queue_limit=(4, 10),
        faults={"crash_worker": 2, "crash_node": 1, "crash_head": 1, "cut": 1, "partition": 1},
        fault_every_s=(2.0, 5.0),
        faulty_s=(8.0, 14.0),
    ),
    Profile(
        name="loading",
        tokens=(5, 40),
        sessions=0.3,
        faults={"unload": 9, "crash_worker": 1, "crash_node": 1, "crash_head": 1, "cut": 2}
        | {"partition": 1, "pause_node": 1},
        fault_every_s=(1.0, 2.0),
        faulty_s=(12.0, 20.0),
    ),
    Profile(
        name="drains",
        sessions=0.3,
        faults={"drain": 9, "crash_worker": 1, "crash_head": 2, "cut": 1, "partition": 1},
        fault_every_s=(1.0, 2.0),
        faulty_s=(12.0, 20.0),
    ),
    Profile(
        name="everything",
        nodes=(2, 5),
        faults=CRASHES | CABLES | PAUSES | {"slow_disk": 2},
        drop=(0.0, 0.002),
        duplicate=(0.0, 0.02),
        reorder=(0.0, 0.005),
        misdirect=(0.0, 0.002),
        poisoned=0.03,
        sessions=0.3,
    ),
)
#: Frames are lost on links that live on, with little after them that would show it. Not drawn.
DRIPS = Profile(
    name="drips",
    calls=(2, 4),
    tokens=(2, 10),
    bursts=(1,),
    drop=(0.02, 0.05),
    rekey_s=(3600.0,),
    faults={"cut": 1},
    fault_every_s=(30.0,),
    faulty_s=(8.0, 14.0),
)
#: One node after the other is drained for long, and little else happens. Not drawn.
ROLLING = Profile(
    name="rolling",
    nodes=(3, 4),
    calls=(5, 8),
    tokens=(40, 90),
    bursts=(1,),
    step_s=(0.2,),
    faults={"drain": 1},
    fault_every_s=(5.0,),
)
#: Few nodes, which are drained too, for calls that take long and have little time. Not drawn.
QUEUES = Profile(
    name="queues",
    nodes=(1, 2),
    calls=(9, 14),
    tokens=(40, 90),
    bursts=(1, 2),
    keyed=0.8,
    budgeted=0.4,
    faults={"drain": 1},
    fault_every_s=(5.0,),
)
#: Vectors of many texts, which are read slowly over links that are cut. Not drawn.
VECTORS = Profile(
    name="vectors",
    jobs=1.0,
    embeds=1.0,
    texts=(240, 300),
    calls=(2, 3),
    small_credit=1.0,
    budgeted=0.0,
    cancelled=0.0,
    dropped=0.0,
    faults={"cut": 3, "crash_side": 1},
    fault_every_s=(2.0, 4.0),
)
#: Long answers that move, whose readers take next to nothing. Not drawn.
SLOW_READERS = Profile(
    name="slow-readers",
    calls=(2, 4),
    tokens=(900, 2400),
    bursts=(32, 64),
    step_s=(0.1,),
    lease_s=(20.0,),
    keyed=0.0,
    cancelled=0.0,
    budgeted=0.0,
    dropped=0.0,
    small_credit=1.0,
    faults={"crash_node": 1},
    fault_every_s=(2.0, 4.0),
    ends=False,
)
#: More jobs than nodes take at once, of which many stand still for their readers. Not drawn.
HELD_JOBS = Profile(
    name="held-jobs",
    nodes=(1, 1),
    jobs=1.0,
    embeds=0.8,
    texts=(16, 240, 300),
    calls=(14, 20),
    small_credit=0.5,
    budgeted=0.0,
    cancelled=0.1,
    dropped=0.0,
    faults={"cut": 1, "crash_side": 1},
    fault_every_s=(6.0,),
)
NOT_DRAWN = (DRIPS, ROLLING, QUEUES, VECTORS, SLOW_READERS, HELD_JOBS)
BY_NAME = {profile.name: profile for profile in (*PROFILES, *NOT_DRAWN)}


def choose(seed: int, name: str | None = None) -> Profile:
    """The profile of a seed."""
    return (
        BY_NAME[name] if name else PROFILES[random.Random(seed ^ 0x5EED).randrange(len(PROFILES))]
    )
